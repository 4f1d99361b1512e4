"""How many guesses a turn asks for: a fixed number, or as many as have been worth their time.

A guess costs about the same whether it stands or not; it is worth something as often as it and all
before it stand. Leviathan et al., "Fast Inference from Transformers via Speculative Decoding",
2023, section 3.3.
"""

from typing import Protocol

# A guess and its row in the verify pass, in plain steps: (6.87 ms / 5.20 ms - 1) / 4 at the 27B
# shape on an H200 (bench/results/h200/decode.json). A constant, not a clock of this machine, so
# that a request takes the same depths in every run and a seed gives the same text.
COST_OF_A_GUESS = 0.08
_MEMORY = 0.9  # what an estimate keeps of itself at each observation: about ten turns count
_PRIOR = 0.7


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
    """From 1 to ``most``, by the share of guesses at each depth that stood lately.

    The depth with the most expected tokens a unit of time: with ``a_i`` the estimated chance that
    guess i stands when all before it stood, ``(1 + sum_i a_1 ... a_i) / (1 + cost * depth)``.
    """

    def __init__(self, most: int, cost: float = COST_OF_A_GUESS) -> None:
        self.most = most
        self.cost = cost
        self.begin()

    def begin(self) -> None:
        """See DepthPolicy."""
        self._chances = [_PRIOR] * self.most

    def observe(self, guessed: int, stood: int) -> None:
        """See DepthPolicy. Guesses behind the first that fell say nothing."""
        for i in range(min(guessed, stood + 1)):
            seen = 1.0 if i < stood else 0.0
            self._chances[i] = _MEMORY * self._chances[i] + (1 - _MEMORY) * seen

    @property
    def depth(self) -> int:
        """See DepthPolicy."""
        best, found, tokens, all_stand = 0.0, 1, 1.0, 1.0
        for depth, chance in enumerate(self._chances, 1):
            all_stand *= chance
            tokens += all_stand
            rate = tokens / (1 + self.cost * depth)
            if rate > best:
                best, found = rate, depth
        return found
