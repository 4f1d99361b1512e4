"""Telling a model's thinking from its answer in streamed text.

Whether an answer begins inside a think block is read from the prompt's token ids, where only the
chat template can have put the tag; where the block ends is read from the text.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bytebound.text.tokenizer import Tokenizer

OPEN = "<think>"
CLOSE = "</think>"


def begins_thinking(tokenizer: "Tokenizer", prompt_ids: Sequence[int]) -> bool:
    """Whether the prompt ends in a think block that is still open."""
    opening, closing = _control_id(tokenizer, OPEN), _control_id(tokenizer, CLOSE)
    for token_id in reversed(prompt_ids):
        if token_id == opening:
            return True
        if token_id == closing:
            return False
    return False


def _control_id(tokenizer: "Tokenizer", tag: str) -> int | None:
    ids = tokenizer.encode(tag, parse_control=True)
    return ids[0] if len(ids) == 1 and ids[0] in tokenizer.control_ids else None


class ThinkingSplitter:
    """Takes text as it comes; gives back what of it is thinking and what is answer.

    Tags and the blank lines around them belong to neither. A model that was not put into a think
    block may open one as the first thing it writes.
    """

    def __init__(self, *, thinking: bool) -> None:
        self.thinking = thinking
        self.thought = ""
        self.answer = ""
        self._held = ""
        self._at_start = not thinking

    def push(self, delta: str) -> tuple[str, str]:
        """The new (thinking, answer); a piece that may be the beginning of a tag is held back."""
        self._held += delta
        if self._at_start and not self._passes_start():
            return "", ""
        thought = self._leave_block() if self.thinking else ""
        if self.thinking:
            return self._keep(thought, "")
        answer, self._held = self._held, ""
        return self._keep(thought, answer)

    def flush(self) -> tuple[str, str]:
        """The rest: the text is over."""
        rest, self._held = self._held, ""
        return self._keep(rest, "") if self.thinking else self._keep("", rest)

    def _passes_start(self) -> bool:
        """Whether it is decided if the text opens with a think block."""
        begun = self._held.lstrip()
        if len(begun) < len(OPEN) and OPEN.startswith(begun):
            return False
        self._at_start = False
        if begun.startswith(OPEN):
            self.thinking = True
            self._held = begun[len(OPEN) :]
        return True

    def _leave_block(self) -> str:
        """Thinking that is safe to show; at the closing tag the rest is the answer."""
        before, tag, after = self._held.partition(CLOSE)
        if tag:
            self.thinking = False
            self._held = after
            return before
        keep = next(n for n in range(len(CLOSE) - 1, -1, -1) if self._held.endswith(CLOSE[:n]))
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def _keep(self, thought: str, answer: str) -> tuple[str, str]:
        if not self.thought:
            thought = thought.lstrip()
        if not self.answer and self.thought + thought:
            answer = answer.lstrip()
        self.thought += thought
        self.answer += answer
        return thought, answer
