"""Drafts by prompt lookup: what followed the last n ids when they occurred before.

Saxena, "Prompt Lookup Decoding", 2023.
"""

from collections.abc import Sequence

import torch

from bytebound.drafts.base import Proposal
from bytebound.sampling import Sampler

MAX_NGRAM = 4  # a longer match says little more and misses more often
MIN_NGRAM = 2  # one common id alone recurs everywhere and drafts noise


class NgramDraft:
    """Keeps, for every n-gram seen, the position after its latest and its previous occurrence."""

    name = "ngram"

    def __init__(self, *, min_ngram: int = MIN_NGRAM, max_ngram: int = MAX_NGRAM) -> None:
        self.sizes = range(max_ngram, min_ngram - 1, -1)
        self.ids: list[int] = []
        self._follow: dict[tuple[int, ...], tuple[int, int | None]] = {}

    def begin(self, first_id: int) -> None:
        """Start a new sequence."""
        self.ids = []
        self._follow = {}
        self._append(first_id)

    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        """Take committed ids; the hidden states are of no use here."""
        for token in next_ids:
            self._append(token)

    def propose(self, count: int, sampler: Sampler) -> Proposal:
        """Copy what followed the longest n-gram that ends the sequence and occurred before."""
        for size in self.sizes:
            # The latest occurrence is the sequence's own end; the one before it has a continuation.
            _, earlier = self._follow.get(tuple(self.ids[-size:]), (0, None))
            if earlier is not None:
                return Proposal(tuple(self.ids[earlier : earlier + count]))
        return Proposal(())

    def _append(self, token: int) -> None:
        self.ids.append(token)
        end = len(self.ids)
        for size in self.sizes:
            if end >= size:
                gram = tuple(self.ids[-size:])
                latest = self._follow.get(gram)
                self._follow[gram] = (end, latest[0] if latest else None)
