"""The contract between the decode loop and whatever computes logits.

An executor owns the state of one sequence: positions, KV, recurrent state and conv windows. It
knows token ids and logits, never text, sampling or acceptance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What of a sequence cannot be cut back to an earlier position: all of it but KV.

    KV stays in place, so a snapshot is good as long as the positions before it are not written
    again, or are written back (``Executor.caches``).
    """

    position: int
    last_hidden: torch.Tensor | None
    """[1, D] after the final norm, of the row before ``position``."""
    state: tuple[torch.Tensor, ...] = ()
    """Recurrent states and conv windows, in an order that only their executor knows."""

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        hidden = () if self.last_hidden is None else (self.last_hidden,)
        return sum(tensor.nbytes for tensor in (*self.state, *hidden))


class Observer(Protocol):
    """Receives each committed row: what a draft learns from."""

    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        """Take ``n`` committed rows: the id after each, and ``hidden`` [n, D] after the norm.

        ``hidden`` is None where the executor has no hidden states (scripted).
        """


class Executor(Protocol):
    """One sequence of at most ``max_len`` positions; ids in, fp32 logits out."""

    vocab_size: int
    max_len: int
    prefill_chunk: int
    """Most rows of one wide pass."""
    prefill_floor: int
    """Rows that a wide pass costs, about, beside those that it has: fewer do not pay."""
    snapshot_bytes: int
    """What one ``Snapshot`` takes."""
    epoch: int
    """Grows with every ``reset``: what was remembered of the sequence before is void."""
    last_hidden: torch.Tensor | None
    """[R, D] after the final norm: all rows of a ``verify``, or the last of a ``prefill``."""

    @property
    def position(self) -> int:
        """Number of committed positions: the next row is processed at this position."""

    @property
    def caches(self) -> tuple[torch.Tensor, ...]:
        """What it holds by position, [n, S, ...] each, S at least ``max_len``: keys and values.

        Their addresses never change. Written back with a ``Snapshot`` of the same ids, they are as
        good as they were.
        """

    def reset(self) -> None:
        """Forget the sequence: position 0, zero recurrent state and conv windows."""

    def prefill(self, ids: Sequence[int], observer: Observer | None = None) -> torch.Tensor:
        """Commit ``ids`` in bounded chunks and return the logits [vocab] fp32 after the last one.

        Every row but the last is handed to ``observer`` with the id that follows it; the last row's
        successor is not known yet, so its hidden state stays in ``last_hidden`` for the caller to
        hand over.
        """

    def snapshot(self) -> Snapshot:
        """Keep the state after a ``prefill`` or ``restore``, before anything else is run."""

    def restore(self, snapshot: Snapshot) -> torch.Tensor:
        """Go back to a snapshot whose ``caches`` are in place; the logits [vocab] fp32 after it.

        They, and those of every row to come, have the bits that they had when it was taken.
        """

    def verify(self, ids: Sequence[int]) -> torch.Tensor:
        """Run ``R`` rows at positions ``position .. position+R-1``; their logits [R, vocab] fp32.

        Nothing is committed. Row r has the same bits whatever R is.
        """

    def commit(self, count: int) -> None:
        """Keep the first ``count`` (1..R) rows of the last ``verify``; the rest leave no trace."""

    def score(self, ids: Sequence[int]) -> torch.Tensor:
        """Teacher-forced logits [T, vocab] fp32 of a new sequence; leaves the executor reset."""
