"""Conversation to template text, with everything untrusted marked.

A template mixes its own markup with strings from the request. Behind each character of those
strings that could open a control token one private-use character, the mark, is inserted before
rendering. So no request string spells a control token in the rendered text, and the reader of the
text can drop the marks and still know which tokens are the template's own. Trimming, splitting and
concatenation keep the marks.

One exception: an assistant message that begins with ``<think>``, and has no ``reasoning_content``,
keeps that tag and the first ``</think>``, because templates look for them to drop old reasoning.
"""

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from bytebound.errors import InvalidRequestError, TokenizerMissingError

_PRIVATE_USE = range(0xE000, 0xF900)
_THINKING = re.compile(r"(\s*<think>)(.*?)(</think>)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rendered:
    """Template output and the mark in it."""

    text: str
    mark: str


def render(
    hf: Any,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    add_generation_prompt: bool,
    variables: Mapping[str, Any],
    opening_chars: frozenset[str],
) -> Rendered:
    """Render ``messages`` through the template of the Hugging Face tokenizer ``hf``.

    Raises InvalidRequestError for messages of the wrong shape, for a variable that the template
    does not use and for whatever the template itself refuses.
    """
    if not hf.chat_template:
        raise TokenizerMissingError(
            "the model folder holds no chat template. Add chat_template.jinja, or send a prompt"
        )
    conversation = normalise_messages(messages)
    offered = _check_tools(tools)
    template = hf.get_chat_template(tools=offered)
    _check_variables(template, variables, hf)
    if offered and not _mentions(template, "tools"):
        raise InvalidRequestError("tools: the model's chat template has no place for tools")
    mark = _unused_character(template, conversation, offered, variables)
    marker = _Marker(opening_chars, mark)
    try:
        text = hf.apply_chat_template(
            [marker.message(message) for message in conversation],
            tools=marker.value(offered),
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **marker.value(dict(variables)),
        )
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise InvalidRequestError(f"messages: the chat template refused them: {error}") from error
    return Rendered(text, mark)


def normalise_messages(messages: Any) -> list[dict[str, Any]]:
    """Check the shape of a conversation; join the text parts of each message into one string."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidRequestError(
            f"messages: got {type(messages).__name__}, expected a list of objects "
            "with role and content"
        )
    if not messages:
        raise InvalidRequestError("messages: got an empty list, expected at least one message")
    return [_normalise(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _normalise(place: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(
            f"{place}: got {type(message).__name__}, expected an object with role and content"
        )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequestError(
            f"{place}.role: got {role!r}, expected system, user, assistant or tool"
        )
    calls = message.get("tool_calls")
    if calls is not None and (
        not isinstance(calls, (list, tuple)) or not all(isinstance(c, Mapping) for c in calls)
    ):
        raise InvalidRequestError(f"{place}.tool_calls: got {calls!r}, expected a list of objects")
    if "content" not in message and not calls:
        raise InvalidRequestError(f"{place}.content: missing, expected a string")
    content = message.get("content")
    if content is None and role != "assistant":
        raise InvalidRequestError(
            f"{place}.content: got null, expected a string; only assistant messages may have none"
        )
    checked = {**message, "content": _content_text(f"{place}.content", content)}
    if calls is not None:
        checked["tool_calls"] = [
            _call(f"{place}.tool_calls[{index}]", call) for index, call in enumerate(calls)
        ]
    return checked


def _call(place: str, call: Mapping[str, Any]) -> dict[str, Any]:
    """Turn arguments sent as JSON text, as most clients do, into what templates expect."""
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return dict(call)
    text = function["arguments"]
    try:
        arguments = json.loads(text or "{}")
    except json.JSONDecodeError:
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidRequestError(
            f"{place}.function.arguments: got {text!r}, expected a JSON object"
        )
    return {**call, "function": {**function, "arguments": arguments}}


def _content_text(place: str, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise InvalidRequestError(
            f"{place}: got {type(content).__name__}, expected a string or a list of text parts"
        )
    texts = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str) or part.get("type", "text") != "text":
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise InvalidRequestError(
                f"{place}[{index}]: got a part of type {kind!r}, expected type 'text' with a string"
            )
        texts.append(text)
    return "".join(texts)


def _check_tools(tools: Any) -> list[dict[str, Any]] | None:
    if not tools:
        return None
    if not isinstance(tools, (list, tuple)) or not all(isinstance(t, Mapping) for t in tools):
        raise InvalidRequestError(f"tools: got {tools!r}, expected a list of objects")
    return [dict(tool) for tool in tools]


def _check_variables(template: str, variables: Mapping[str, Any], hf: Any) -> None:
    reserved = set(inspect.signature(hf.apply_chat_template).parameters) | {"messages"}
    for name, value in variables.items():
        if name in reserved:
            raise InvalidRequestError(
                f"{name}: cannot be set as a variable of the chat template, the name is reserved"
            )
        # Thinking is off already where a template knows nothing of it.
        if name == "enable_thinking" and value is False:
            continue
        if not _mentions(template, name):
            raise InvalidRequestError(
                f"{name}: got {value!r}, but the model's chat template has no such variable; "
                "leave it out"
            )


def _mentions(template: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", template) is not None


def _unused_character(*values: Any) -> str:
    used = set[str]().union(*(text for value in values for text in _strings(value)))
    for code in _PRIVATE_USE:
        if chr(code) not in used:
            return chr(code)
    raise InvalidRequestError("messages: the text uses every private-use character of Unicode")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


class _Marker:
    """Inserts the mark behind each opening character, in every string of a nested value."""

    def __init__(self, opening_chars: frozenset[str], mark: str) -> None:
        self._table = str.maketrans({char: char + mark for char in opening_chars})

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return value.translate(self._table)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        marked: dict[str, Any] = self.value(message)
        # With its reasoning in a field of its own, nobody looks for tags in the content.
        if message["role"] != "assistant" or isinstance(message.get("reasoning_content"), str):
            return marked
        thinking = _THINKING.match(message["content"])
        if thinking is not None:
            opening, inside, closing, rest = thinking.groups()
            marked["content"] = opening + self.value(inside) + closing + self.value(rest)
        return marked
