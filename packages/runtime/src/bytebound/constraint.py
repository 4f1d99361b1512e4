"""One request's place in its grammar: which ids may come next, as bits.

A thought is free; the grammar begins behind the token that ends it, which is told by its id alone.
The place moves with accepted tokens only. What would follow the guesses of a draft is looked up by
going there and back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import torch
from llguidance import LLMatcher

from bytebound.errors import InvalidRequestError
from bytebound.text import thinking, tool_calls
from bytebound.text.tokenizer import Tokenizer


class Phase(Enum):
    """Where an answer stands."""

    THINKING = auto()
    START = auto()  # of a reply that may open a thought by itself
    INSIDE = auto()  # of the grammar
    ENDED = auto()


@dataclass(frozen=True, slots=True)
class Tags:
    """Ids of the control tokens that matter; None where the vocabulary has no such token."""

    think_open: int | None
    think_close: int | None
    call_open: int | None
    call_close: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Tags":
        """Those of a vocabulary."""
        names = (thinking.OPEN, thinking.CLOSE, tool_calls.OPEN, tool_calls.CLOSE)
        return cls(*(thinking.control_id(tokenizer, name) for name in names))

    def phase_behind(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> Phase:
        """Where an answer to ``prompt`` begins.

        It may open a thought by itself where the prompt ends in a turn that has none.
        """
        if thinking.begins_thinking(tokenizer, prompt):
            return Phase.THINKING
        for token in reversed(prompt):
            if token == self.think_close:
                return Phase.INSIDE
            if token in tokenizer.turn_start_ids:
                return Phase.INSIDE if self.think_open is None else Phase.START
        return Phase.INSIDE


class Constraint:
    """What a grammar allows behind the tokens so far. ``matcher`` belongs to it alone."""

    def __init__(
        self,
        matcher: LLMatcher,
        vocab_size: int,
        end_ids: Iterable[int],
        tags: Tags,
        phase: Phase,
        *,
        calls: bool,
    ) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._end_ids = frozenset(end_ids)
        self._think_open, self._think_close = tags.think_open, tags.think_close
        self._call_open = tags.call_open if calls else None
        self._phase = phase
        self._ends = self._bits_of(self._end_ids)
        self._opening = self._bits_of(() if tags.think_open is None else (tags.think_open,))
        self._known: dict[tuple[int, ...], torch.Tensor | None] = {}

    def allowed(self, guesses: Sequence[int] = ()) -> torch.Tensor | None:
        """The ids that may follow ``guesses``: uint8 on the CPU, bit i of byte j is id 8·j + i.

        None: one of the guesses may not stand, or nothing may follow it. Bits behind the vocabulary
        are without meaning.

        Raises:
            InvalidRequestError: the grammar became too complex to follow.
        """
        key = tuple(guesses)
        if key not in self._known:
            phase, stood, fed = self._walk(key)
            try:
                whole = stood == len(key) and phase is not Phase.ENDED
                self._known[key] = self._bits_at(phase) if whole else None
            finally:
                self._go_back(fed)
        return self._known[key]

    def admitted(self, guesses: Sequence[int]) -> int:
        """How many of ``guesses``, from the first on, the grammar allows one after the other."""
        _, stood, fed = self._walk(guesses)
        self._go_back(fed)
        return stood

    def append(self, token: int) -> None:
        """Move behind an accepted token, which must be one that ``allowed`` names."""
        phase, stood, _ = self._walk((token,))
        if not stood:
            raise RuntimeError(f"token {token} was accepted against the grammar")
        self._phase = phase
        self._known = {key[1:]: bits for key, bits in self._known.items() if key[:1] == (token,)}

    def _walk(self, tokens: Sequence[int]) -> tuple[Phase, int, int]:
        """Go over ``tokens``: the phase then, how many may stand, how many the matcher took."""
        phase, fed = self._phase, 0
        for stood, token in enumerate(tokens):
            found = self._pass(phase, token)
            if found is None:
                return phase, stood, fed
            phase, taken = found
            fed += taken
        return phase, len(tokens), fed

    def _pass(self, phase: Phase, token: int) -> tuple[Phase, int] | None:
        """The phase behind one token, and how many the matcher took; None if it may not stand."""
        if phase is Phase.ENDED:
            return None
        if token in self._end_ids:
            ends = phase is not Phase.THINKING and self._matcher.is_accepting()
            return (Phase.ENDED, 0) if ends else None
        if phase is Phase.THINKING and token == self._think_close:
            return Phase.INSIDE, 0
        if phase is Phase.THINKING and token != self._call_open:
            return phase, 0
        if phase is Phase.START and token == self._think_open:
            return Phase.THINKING, 0
        taken = self._matcher.try_consume_tokens([token])
        self._check()
        return (Phase.INSIDE, taken) if taken else None

    def _go_back(self, count: int) -> None:
        if count:
            self._matcher.rollback(count)
            self._check()

    def _bits_at(self, phase: Phase) -> torch.Tensor:
        if phase is Phase.THINKING:
            return ~self._ends
        raw = self._matcher.compute_bitmask()[: len(self._ends)]
        self._check()
        bits = torch.frombuffer(bytearray(raw), dtype=torch.uint8) & ~self._ends
        if self._matcher.is_accepting():
            bits |= self._ends
        if phase is Phase.START:
            bits |= self._opening
        return bits

    def _bits_of(self, ids: Iterable[int]) -> torch.Tensor:
        bits = torch.zeros(-(-self._vocab_size // 8), dtype=torch.uint8)
        for token in ids:
            if token < self._vocab_size:
                bits[token // 8] |= 1 << (token % 8)
        return bits

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = " ".join(self._matcher.get_error().split())[:200]
            raise InvalidRequestError(
                f"grammar: the answer cannot be continued under it: {reason}; simplify the schema"
            )
