"""What a reply is made of, piece by piece: reasoning, text and tool calls. Plain records."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins. ``index`` counts the calls of one reply from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of the JSON text of a call's arguments; joined, the deltas are one JSON object."""

    index: int
    json_delta: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call is over.

    ``complete`` False means that the reply ended inside it, or that the model wrote arguments that
    are no JSON object. What was sent of the arguments then does not parse, so that nobody takes
    half a call for a whole one.
    """

    index: int
    complete: bool = True


Piece = ReasoningDelta | TextDelta | ToolCallStart | ToolCallArguments | ToolCallEnd
