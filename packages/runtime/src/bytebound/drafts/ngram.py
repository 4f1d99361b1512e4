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
    """Keeps, for every n-gram seen, the positions after its occurrences."""

    name = "ngram"

    def __init__(self, *, min_ngram: int = MIN_NGRAM, max_ngram: int = MAX_NGRAM) -> None:
        self.sizes = range(max_ngram, min_ngram - 1, -1)
        self.ids: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}

    def begin(self, first_id: int) -> None:
        """Start a new sequence."""
        self.ids = []
        self._ends = {}
        self._append(first_id)

    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        """Take committed ids; the hidden states are of no use here."""
        for token in next_ids:
            self._append(token)

    def rewind(self, length: int) -> None:
        """See RewindingDraft."""
        while len(self.ids) > length:
            for gram in self._last_grams():
                ends = self._ends.get(gram, [])
                # Not there where an interrupt came between the id and its n-grams.
                if ends[-1:] == [len(self.ids)]:
                    ends.pop()
                if not ends:
                    self._ends.pop(gram, None)
            self.ids.pop()

    @property
    def caches(self) -> tuple[torch.Tensor, ...]:
        """See ParkableDraft. The ids are all that there is."""
        return ()

    def resume(self, ids: Sequence[int]) -> None:
        """See ParkableDraft."""
        same = (own == other for own, other in zip(self.ids, ids, strict=False))
        shared = next((place for place, one in enumerate(same) if not one), len(self.ids))
        # The last id goes in any case: an interrupt may have come between it and its n-grams.
        self.rewind(max(0, min(shared, len(self.ids) - 1, len(ids))))
        self.observe(ids[len(self.ids) :], None)

    def propose(self, count: int, sampler: Sampler) -> Proposal:
        """Copy what followed the longest n-gram that ends the sequence and occurred before."""
        for gram in self._last_grams():
            # The latest occurrence is the sequence's own end; the one before it has a continuation.
            earlier = self._ends.get(gram, [])[-2:-1]
            if earlier:
                return Proposal(tuple(self.ids[earlier[0] : earlier[0] + count]))
        return Proposal(())

    def _append(self, token: int) -> None:
        self.ids.append(token)
        for gram in self._last_grams():
            self._ends.setdefault(gram, []).append(len(self.ids))

    def _last_grams(self) -> list[tuple[int, ...]]:
        """The n-grams that end the sequence, the longest first."""
        return [tuple(self.ids[-size:]) for size in self.sizes if size <= len(self.ids)]
