"""The contract of a draft: it guesses ids, the target decides. It never changes the output."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from bytebound.sampling import Sampler


@dataclass(frozen=True, slots=True)
class Proposal:
    """``k`` guessed ids and the distribution each was drawn from."""

    ids: tuple[int, ...]
    probs: torch.Tensor | None = None
    """[k, vocab] float64, row i what ``ids[i]`` was drawn from; None: picked, not drawn."""


class Draft(Protocol):
    """Guesses ids for one sequence. Sees every committed token exactly once, in order."""

    name: str

    def begin(self, first_id: int) -> None:
        """Start a new sequence whose first id is ``first_id``."""

    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        """Take committed rows: the id after each, and the target's hidden [n, D] (or None)."""

    def propose(self, count: int, sampler: "Sampler") -> Proposal:
        """Guess at most ``count`` ids after the last observed one; an empty proposal is allowed."""
