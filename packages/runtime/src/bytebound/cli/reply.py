"""The model's thinking and its answer, as a conversation in the terminal keeps them."""

from collections.abc import Iterable
from dataclasses import dataclass

from bytebound.text.pieces import Piece, ReasoningDelta, TextDelta


@dataclass(slots=True)
class Reply:
    """What came so far. No tools were offered, so there is nothing else in it."""

    thought: str = ""
    answer: str = ""

    def take(self, pieces: Iterable[Piece]) -> tuple[str, str]:
        """Add pieces; return what they add to the thinking and to the answer."""
        thought = answer = ""
        for piece in pieces:
            if isinstance(piece, ReasoningDelta):
                thought += piece.text
            elif isinstance(piece, TextDelta):
                answer += piece.text
        self.thought += thought
        self.answer += answer
        return thought, answer
