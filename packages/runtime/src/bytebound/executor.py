"""The contract between the decode loop and whatever computes logits.

An executor owns the state of one sequence: positions, KV, recurrent state and conv windows. It
knows token ids and logits, never text, sampling or acceptance.
"""

from collections.abc import Sequence
from typing import Protocol

import torch


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
    last_hidden: torch.Tensor | None
    """[R, D] after the final norm: all rows of a ``verify``, or the last of a ``prefill``."""

    @property
    def position(self) -> int:
        """Number of committed positions: the next row is processed at this position."""

    def reset(self) -> None:
        """Forget the sequence: position 0, zero recurrent state and conv windows."""

    def prefill(self, ids: Sequence[int], observer: Observer | None = None) -> torch.Tensor:
        """Commit ``ids`` in bounded chunks and return the logits [vocab] fp32 after the last one.

        Every row but the last is handed to ``observer`` with the id that follows it; the last row's
        successor is not known yet, so its hidden state stays in ``last_hidden`` for the caller to
        hand over.
        """

    def verify(self, ids: Sequence[int]) -> torch.Tensor:
        """Run ``R`` rows at positions ``position .. position+R-1``; their logits [R, vocab] fp32.

        Nothing is committed. Row r has the same bits whatever R is.
        """

    def commit(self, count: int) -> None:
        """Keep the first ``count`` (1..R) rows of the last ``verify``; the rest leave no trace."""

    def score(self, ids: Sequence[int]) -> torch.Tensor:
        """Teacher-forced logits [T, vocab] fp32 of a new sequence; leaves the executor reset."""
