"""Conversations of the OpenAI and the Anthropic protocol in the form that chat templates take.

That form: ``role`` (system, user, assistant, tool), ``content`` (a string), for assistants
``reasoning_content`` and ``tool_calls`` with arguments as objects. Templates of this family take a
system message only at the start, and drop the thoughts of all turns before the last user message.
So:

- system and developer messages at the start become one;
- a later one stays at its place, as a system reminder: behind a tool result or a user message as
  part of that, else as a user message;
- text that a client puts beside tool results becomes a user message behind them, but system
  reminders among it become part of the last result: they are no new question.

What a message becomes depends on those before it alone, so a longer conversation begins as the
shorter one did. Fields that say nothing to a model are left aside; content that is no text, and
would be lost, is refused.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from bytebound.errors import InvalidRequestError

Message = dict[str, Any]

_REMINDER, _REMINDER_END = "<system-reminder>", "</system-reminder>"
# A line for the service, which changes from request to request: no prefix would outlive it.
_BILLING = "x-anthropic-billing-header:"
_SYSTEM_ROLES = ("system", "developer")
# Reasoning that a service sealed: nobody but that service can read it.
_SEALED = ("redacted_thinking",)
_LONGEST_SHOWN = 80  # characters of a wrong value in a message


def from_openai(messages: Any) -> list[Message]:
    """Convert the ``messages`` of a chat completion request.

    Raises:
        InvalidRequestError: a message of the wrong shape, content that is no text, or a tool result
            that answers no call.
    """
    conversation = _Conversation()
    for place, message in _items("messages", messages):
        role = message.get("role")
        if role in _SYSTEM_ROLES:
            conversation.add_system(_text(f"{place}.content", message.get("content")))
        elif role == "user":
            conversation.add_user(_text(f"{place}.content", message.get("content")))
        elif role == "assistant":
            _add_openai_answer(conversation, place, message)
        elif role == "tool":
            call = _string(f"{place}.tool_call_id", message.get("tool_call_id"))
            conversation.add_result(
                f"{place}.tool_call_id", call, _text(f"{place}.content", message.get("content"))
            )
        else:
            _refuse(f"{place}.role", role, "system, developer, user, assistant or tool")
    return conversation.messages


def from_anthropic(system: Any, messages: Any) -> list[Message]:
    """Convert ``system`` (None, a string or text blocks) and ``messages`` of a messages request.

    Raises:
        InvalidRequestError: as for ``from_openai``.
    """
    conversation = _Conversation()
    for text in () if system is None else _texts("system", system):
        if not text.startswith(_BILLING):
            conversation.add_system(text)
    for place, message in _items("messages", messages):
        role = message.get("role")
        content = f"{place}.content"
        if role in _SYSTEM_ROLES:
            conversation.add_system(_text(content, message.get("content")))
        elif role == "user":
            _add_anthropic_user(conversation, content, message.get("content"))
        elif role == "assistant":
            _add_anthropic_answer(conversation, content, message.get("content"))
        else:
            _refuse(f"{place}.role", role, "user, assistant or system")
    return conversation.messages


class _Conversation:
    """Template messages, added in order."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._names: dict[str, str] = {}  # of the called functions, by the id of the call

    def add_system(self, text: str) -> None:
        """Instructions: at the start a system message, later a reminder at this place."""
        if not self.messages:
            self.messages.append({"role": "system", "content": text})
        elif self.messages[-1]["role"] in ("system", "tool", "user"):
            last = self.messages[-1]
            self._append(last, text if last["role"] == "system" else _reminder(text))
        else:
            self.add_user(_reminder(text))

    def add_user(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def add_answer(
        self, text: str, reasoning: str, calls: Sequence[tuple[str, str, Message]]
    ) -> None:
        """An assistant's turn; ``calls`` are (id, name, arguments)."""
        message: Message = {"role": "assistant", "content": text}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                for call_id, name, arguments in calls
            ]
        self._names |= {call_id: name for call_id, name, _ in calls}
        self.messages.append(message)

    def add_result(self, place: str, call_id: str, text: str) -> None:
        """What a tool gave back. Consecutive results stay messages of their own."""
        if call_id not in self._names:
            _refuse(place, call_id, "the id of a tool call in an earlier assistant message")
        self.messages.append(
            {
                "role": "tool",
                "content": text,
                "tool_call_id": call_id,
                "name": self._names[call_id],
            }
        )

    def add_beside_results(self, text: str) -> None:
        """Text that came in one message with tool results, behind them."""
        last = self.messages[-1]
        if _is_reminder(text) and last["role"] == "tool":
            self._append(last, text)
        else:
            self.add_user(text)

    @staticmethod
    def _append(message: Message, text: str) -> None:
        message["content"] = f"{message['content']}\n\n{text}" if message["content"] else text


def _add_openai_answer(conversation: _Conversation, place: str, message: Mapping[str, Any]) -> None:
    content = message.get("content")
    refusal = message.get("refusal")
    text = "" if content is None else _text(f"{place}.content", content, ("text", "refusal"))
    if isinstance(refusal, str):
        text += refusal
    # Two names for one thing, among clients as among servers.
    field = "reasoning" if message.get("reasoning_content") is None else "reasoning_content"
    reasoning = message.get(field)
    if reasoning is not None and not isinstance(reasoning, str):
        _refuse(f"{place}.{field}", reasoning, "a string")
    sent = message.get("tool_calls")
    calls = []
    for at, call in _items(f"{place}.tool_calls", sent) if sent else ():
        function = call.get("function")
        if call.get("type", "function") != "function" or not isinstance(function, Mapping):
            _refuse(f"{at}.type", call.get("type"), "'function' with an object function")
        calls.append(
            (
                _string(f"{at}.id", call.get("id")),
                _string(f"{at}.function.name", function.get("name")),
                _arguments(f"{at}.function.arguments", function.get("arguments")),
            )
        )
    if message.get("function_call") is not None:
        _refuse(f"{place}.function_call", "a function call", "tool_calls in its place")
    if content is None and refusal is None and not calls and reasoning is None:
        _refuse(f"{place}.content", None, "a string, or tool_calls beside it")
    conversation.add_answer(text, reasoning or "", calls)


def _add_anthropic_user(conversation: _Conversation, place: str, content: Any) -> None:
    if isinstance(content, str):
        conversation.add_user(content)
        return
    texts: list[str] = []
    results = 0
    for at, block in _items(place, content):
        kind = block.get("type")
        if kind == "text":
            texts.append(_string(f"{at}.text", block.get("text"), empty=True))
        elif kind == "tool_result":
            # Results answer the turn before: text that came first goes behind them all the same.
            call = _string(f"{at}.tool_use_id", block.get("tool_use_id"))
            conversation.add_result(f"{at}.tool_use_id", call, _result_text(at, block))
            results += 1
        else:
            _refuse(f"{at}.type", kind, "text or tool_result; images and files cannot be read")
    if not results:
        conversation.add_user("\n\n".join(texts))
        return
    for reminder in filter(_is_reminder, texts):
        conversation.add_beside_results(reminder)
    said = [text for text in texts if text.strip() and not _is_reminder(text)]
    if said:
        conversation.add_beside_results("\n\n".join(said))


def _add_anthropic_answer(conversation: _Conversation, place: str, content: Any) -> None:
    if isinstance(content, str):
        conversation.add_answer(content, "", ())
        return
    text, thoughts, calls = "", list[str](), list[tuple[str, str, Message]]()
    called = False  # since the last text
    for at, block in _items(place, content):
        kind = block.get("type")
        if kind == "text":
            more = _string(f"{at}.text", block.get("text"), empty=True)
            text += f"\n\n{more}" if called and text else more
            called = False
        elif kind == "thinking":
            thoughts.append(_string(f"{at}.thinking", block.get("thinking"), empty=True))
        elif kind == "tool_use":
            call_id = _string(f"{at}.id", block.get("id"))
            name = _string(f"{at}.name", block.get("name"))
            calls.append((call_id, name, _arguments(f"{at}.input", block.get("input"))))
            called = True
        elif kind not in _SEALED:
            _refuse(f"{at}.type", kind, "text, thinking or tool_use")
    conversation.add_answer(text, "\n\n".join(filter(None, thoughts)), calls)


def _result_text(place: str, block: Mapping[str, Any]) -> str:
    content = block.get("content")
    text = "" if content is None else _text(f"{place}.content", content)
    failed = block.get("is_error", False)
    if failed is not None and not isinstance(failed, bool):
        _refuse(f"{place}.is_error", failed, "true or false")
    return f"Error: {text}" if failed and not text.lstrip().lower().startswith("error") else text


def _arguments(place: str, value: Any) -> Message:
    """Arguments of a call: an object, or the JSON text of one; nothing means none."""
    if isinstance(value, Mapping):
        return dict(value)
    if value is None or value == "":
        return {}
    try:
        loaded = json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        loaded = None
    if not isinstance(loaded, dict):
        _refuse(place, value, "a JSON object")
    return loaded


def _text(place: str, content: Any, kinds: tuple[str, ...] = ("text",)) -> str:
    return "".join(_texts(place, content, kinds))


def _texts(place: str, content: Any, kinds: tuple[str, ...] = ("text",)) -> list[str]:
    """The texts of ``content``: a string, or a list of blocks, each with its kind as its field."""
    if isinstance(content, str):
        return [content]
    if content is None:
        _refuse(place, None, "a string or a list of text blocks")
    texts = []
    for at, block in _items(place, content):
        kind = block.get("type")
        if kind not in kinds:
            _refuse(f"{at}.type", kind, f"{' or '.join(kinds)}; only text can be read")
        texts.append(_string(f"{at}.{kind}", block.get(kind), empty=True))
    return texts


def _items(place: str, value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each object of a list, with its place."""
    if not isinstance(value, (list, tuple)):
        _refuse(place, value, "a list of objects")
    for index, item in enumerate(value):
        if not isinstance(item, Mapping):
            _refuse(f"{place}[{index}]", item, "an object")
        yield f"{place}[{index}]", item


def _string(place: str, value: Any, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty):
        _refuse(place, value, "a string")
    return value


def _reminder(text: str) -> str:
    return text if _is_reminder(text) else f"{_REMINDER}\n{text.strip()}\n{_REMINDER_END}"


def _is_reminder(text: str) -> bool:
    stripped = text.strip()
    return stripped.startswith(_REMINDER) and stripped.endswith(_REMINDER_END)


def _refuse(place: str, got: Any, expected: str) -> NoReturn:
    shown = repr(got)
    if len(shown) > _LONGEST_SHOWN:
        shown = f"{shown[:_LONGEST_SHOWN]}..."
    raise InvalidRequestError(f"{place}: got {shown}, expected {expected}")
