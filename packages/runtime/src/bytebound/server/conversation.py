"""From a request's messages, tools and template variables to the prompt's ids."""

from collections.abc import Mapping, Sequence
from typing import Any

from bytebound.server.errors import bad_request
from bytebound.server.openai_bodies import ChatBody
from bytebound.text.thinking import take_switches
from bytebound.text.tokenizer import Tokenizer

_NOT_VARIABLES = frozenset({"self", "messages", "tools", "add_generation_prompt"})


def template_variables(body: ChatBody) -> dict[str, Any]:
    """Variables of the chat template that the request sets."""
    variables = dict(body.chat_template_kwargs or {})
    for name in variables:
        if name in _NOT_VARIABLES:
            raise bad_request(
                f"chat_template_kwargs.{name}: the name is reserved", "chat_template_kwargs"
            )
    if body.reasoning_effort == "none":
        if variables.get("enable_thinking"):
            raise bad_request(
                "reasoning_effort: got 'none' with enable_thinking = true; give one of them",
                "reasoning_effort",
            )
        variables["enable_thinking"] = False
    thinking = variables.get("enable_thinking")
    if thinking is not None and not isinstance(thinking, bool):
        raise bad_request(
            "chat_template_kwargs.enable_thinking: expected true or false", "chat_template_kwargs"
        )
    return variables


def render(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
    thinking: bool | None = None,
) -> list[int]:
    """The prompt's ids; slow for a long history, so not for the event loop.

    Whether to think: as ``variables`` say, else the last ``/think`` or ``/no_think`` in the
    messages, else ``thinking``, where None leaves it to the template.
    """
    cleaned, asked = take_switches(messages)
    asked = thinking if asked is None else asked
    if asked is not None and "enable_thinking" not in variables:
        variables = {**variables, "enable_thinking": asked}
    return tokenizer.apply_chat_template(cleaned, tools, **variables)
