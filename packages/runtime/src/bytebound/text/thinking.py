"""When a model thinks: the tags of a thought, prompts that leave one open, and soft switches."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bytebound.text.tokenizer import Tokenizer

OPEN = "<think>"
CLOSE = "</think>"

_SWITCH = r"/(?P<word>think|no_think)"
# Alone at an end of the message: "/think" in the middle of a sentence or of a path is just text.
_LEADING = re.compile(rf"\A\s*{_SWITCH}(?!\S)\s*")
_TRAILING = re.compile(rf"\s*(?<!\S){_SWITCH}\s*\Z")


def control_id(tokenizer: "Tokenizer", tag: str) -> int | None:
    """The id of the control token ``tag``; None where the vocabulary has no such token."""
    ids = tokenizer.encode(tag, parse_control=True)
    return ids[0] if len(ids) == 1 and ids[0] in tokenizer.control_ids else None


def begins_thinking(tokenizer: "Tokenizer", prompt_ids: Sequence[int]) -> bool:
    """Whether the prompt ends in a thought that is still open.

    Only a chat template's own markup can have put the tags there as control tokens.
    """
    opening, closing = control_id(tokenizer, OPEN), control_id(tokenizer, CLOSE)
    for token_id in reversed(prompt_ids):
        if token_id == opening:
            return True
        if token_id == closing or token_id in tokenizer.turn_start_ids:
            return False
    return False


def take_switches(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], bool | None]:
    """Remove ``/think`` and ``/no_think`` from the messages; say what the last of them asks.

    A switch counts where it is the first or the last word of a system or user message. It goes from
    each of them, so that a message reads the same in the next turn's history. None: no switch.
    """
    asked: bool | None = None
    cleaned = []
    for message in messages:
        content = message.get("content")
        if message.get("role") in ("system", "user") and isinstance(content, str):
            for pattern in (_LEADING, _TRAILING):
                while (found := pattern.search(content)) is not None:
                    asked = found["word"] == "think"
                    content = content[: found.start()] + content[found.end() :]
        cleaned.append({**message, "content": content} if "content" in message else {**message})
    return cleaned, asked
