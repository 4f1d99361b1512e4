"""One reply put together from its pieces.

Both protocols are written from these pieces, streamed or not, so the two forms cannot differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bytebound.text.pieces import (
    Piece,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)


class Splitter(Protocol):
    """Turns one reply's token ids and text into pieces."""

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended the text; nothing comes after it."""

    @property
    def surplus(self) -> int:
        """Ids of the last step behind the one that completed it."""

    def push(self, token_ids: Sequence[int], text_delta: str) -> list[Piece]:
        """Take one step; return what it completes."""

    def finish(self, reason: str) -> list[Piece]:
        """Return what was held back: the reply is over."""


class PlainSplitter:
    """Takes everything for text, as completions do; their stop strings are the engine's affair."""

    matched_stop: str | None = None
    surplus = 0

    def push(self, token_ids: Sequence[int], text_delta: str) -> list[Piece]:
        """Return the text of one step."""
        return [TextDelta(text_delta)] if text_delta else []

    def finish(self, reason: str) -> list[Piece]:
        """Nothing is held back."""
        return []


@dataclass(slots=True)
class ToolCall:
    """One call as far as it came."""

    id: str
    name: str
    arguments: str = ""
    complete: bool = False


class Reply:
    """The pieces of one reply, put together."""

    def __init__(self) -> None:
        self.reasoning = ""
        self.text = ""
        self.calls: list[ToolCall] = []

    def take(self, pieces: Sequence[Piece]) -> None:
        """Add what came."""
        for piece in pieces:
            match piece:
                case ReasoningDelta(text):
                    self.reasoning += text
                case TextDelta(text):
                    self.text += text
                case ToolCallStart(_, call_id, name):
                    self.calls.append(ToolCall(call_id, name))
                case ToolCallArguments(index, delta):
                    self.calls[index].arguments += delta
                case ToolCallEnd(index, complete):
                    self.calls[index].complete = complete
