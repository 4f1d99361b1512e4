"""How many guesses a turn asks for: a fixed number, or as many as have been worth their time.

A guess costs about the same whether it stands or not; it is worth something as often as it and all
before it stand. Leviathan et al., "Fast Inference from Transformers via Speculative Decoding",
2023, section 3.3.
"""

from typing import Protocol

# In plain steps: showing the head what was emitted, and a guess with its row in the verify pass.
# They fit cycles of 1, 4 and 7 guesses of the 27B shape on an H200 within 1 %
# (bench/results/h200/decode.json). Constants, not a clock of this machine, so that a request takes
# the same depths in every run and a seed gives the same text.
COST_OF_THE_HEAD = 0.02
COST_OF_A_GUESS = 0.094
_MEMORY = 0.9  # what an estimate keeps of itself at each observation: about ten turns count
_PRIOR = 0.7
_TURNS_WITHOUT = 16  # then a guess is tried again


class DepthPolicy(Protocol):
    """Chooses the number of guesses of each turn of a request."""

    def begin(self) -> None:
        """Start a request."""

    def observe(self, guessed: int, stood: int) -> None:
        """Of ``guessed`` ids the first ``stood`` stood."""

    @property
    def depth(self) -> int:
        """Guesses of the next turn."""


class FixedDepth:
    """Always the same."""

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def begin(self) -> None:
        """See DepthPolicy."""

    def observe(self, guessed: int, stood: int) -> None:
        """See DepthPolicy."""


class AdaptiveDepth:
    """From 0 to ``most``, by the share of guesses at each depth that stood lately.

    The depth with the most expected tokens a unit of time, ``(1 + sum_i a_1 ... a_i) / (1 + head +
    cost * depth)``, with ``a_i`` the estimated chance that guess i stands when all before it stood.
    Where that is 0, one guess is tried from time to time.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.begin()

    def begin(self) -> None:
        """See DepthPolicy."""
        self._chances = [_PRIOR] * self.most
        self._without = 0

    def observe(self, guessed: int, stood: int) -> None:
        """See DepthPolicy. Guesses behind the first that fell say nothing."""
        self._without = 0 if guessed else self._without + 1
        for i in range(min(guessed, stood + 1)):
            seen = 1.0 if i < stood else 0.0
            self._chances[i] = _MEMORY * self._chances[i] + (1 - _MEMORY) * seen

    @property
    def depth(self) -> int:
        """See DepthPolicy."""
        tokens, all_stand, found = 1.0, 1.0, 0
        best = 1 / (1 + COST_OF_THE_HEAD)
        for depth, chance in enumerate(self._chances, 1):
            all_stand *= chance
            tokens += all_stand
            rate = tokens / (1 + COST_OF_THE_HEAD + COST_OF_A_GUESS * depth)
            if rate > best:
                best, found = rate, depth
        return max(found, 1) if self._without >= _TURNS_WITHOUT else found
