"""The contract of a draft: it guesses ids, the target decides. It never changes the output."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from bytebound.errors import InvalidSettingError

if TYPE_CHECKING:
    from bytebound.sampling import Sampler


@dataclass(frozen=True, slots=True)
class Proposal:
    """``k`` guessed ids and the distribution each was drawn from."""

    ids: tuple[int, ...]
    probs: torch.Tensor | None = None
    """[k, vocab] float64, row i what ``ids[i]`` was drawn from; None: picked, not drawn."""

    def check(self, name: str, count: int, vocab_size: int) -> None:
        """Refuse what breaks the contract of the draft ``name``, asked for ``count`` ids.

        Acceptance would otherwise decide on ids that the model does not have.
        """
        if len(self.ids) > count:
            raise InvalidSettingError(
                f"draft {name!r} proposed {len(self.ids)} ids, expected at most {count}"
            )
        for token in self.ids:
            if type(token) is not int or not 0 <= token < vocab_size:
                raise InvalidSettingError(
                    f"draft {name!r} proposed id {token!r}, expected 0 to {vocab_size - 1}"
                )
        if self.probs is None or not self.ids:
            return
        shape, expected = tuple(self.probs.shape), (len(self.ids), vocab_size)
        if shape != expected:
            raise InvalidSettingError(
                f"draft {name!r} proposed probs of shape {shape}, expected {expected}"
            )
        for row, token in zip(self.probs, self.ids, strict=True):
            if not row[token] > 0:
                raise InvalidSettingError(
                    f"draft {name!r} proposed id {token} with probability {float(row[token])}, "
                    "expected the probability above 0 that it was drawn with"
                )
        sums = self.probs.sum(-1)
        if not bool(((sums - 1).abs() < 1e-6).all()):
            raise InvalidSettingError(
                f"draft {name!r} proposed probs with sums {sums.tolist()}, expected 1 each"
            )


class Draft(Protocol):
    """Guesses ids for one sequence. Sees every committed token exactly once, in order."""

    name: str

    def begin(self, first_id: int) -> None:
        """Start a new sequence whose first id is ``first_id``."""

    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        """Take committed rows: the id after each, and the target's hidden [n, D] (or None)."""

    def propose(self, count: int, sampler: "Sampler") -> Proposal:
        """Guess at most ``count`` ids after the last observed one; an empty proposal is allowed."""


@runtime_checkable
class RewindingDraft(Draft, Protocol):
    """A draft that can go back. Only with such a one, or none, is a prompt's prefix reused."""

    def rewind(self, length: int) -> None:
        """Forget all but the sequence's first ``length`` ids (1 or more).

        Then it is as after ``begin`` and ``observe`` of just these, and proposes the same.
        """


@runtime_checkable
class ParkableDraft(RewindingDraft, Protocol):
    """A draft whose sequence can be kept elsewhere and come back.

    Only with such a one, or none, are conversations parked (``bytebound.parked``).
    """

    @property
    def caches(self) -> tuple[torch.Tensor, ...]:
        """What it holds by position, [n, S, ...] each: entry p depends on the ids up to p + 1."""

    def resume(self, ids: Sequence[int]) -> None:
        """Be as after ``begin`` and ``observe`` of just ``ids`` (1 or more), whatever was before.

        The first ``len(ids) - 1`` entries of ``caches`` are then what they were after that.
        """
