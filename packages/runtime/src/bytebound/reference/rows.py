"""Which rows of a pass are live, and where they lie.

Promise 1 (speculation never changes a token) needs a row's bits to be independent of how many rows
are processed with it. A matrix product does not give that: its kernel, and so its rounding, follows
the number of rows. A decode pass therefore always has ``WINDOW`` rows, and the row of position p
lies in slot p mod WINDOW: the same product, the same place in it, the same bits, whether the row
comes alone or among eight drafts.
"""

from dataclasses import dataclass

import torch

WINDOW = 12  # rows of every decode pass: 8 drafts and their predecessor, in whole vectors
MAX_VERIFY_ROWS = 9


@dataclass(frozen=True, slots=True)
class Rows:
    """The live rows of one pass: positions ``start .. start+count-1``."""

    start: int
    count: int
    wide: bool
    """True: prefill, rows in order, all live. False: a decode window, live rows in slots."""

    @property
    def size(self) -> int:
        """Rows of the activations, dead slots included."""
        return self.count if self.wide else WINDOW

    @property
    def slots(self) -> list[int]:
        """Where each live row lies, in order of position."""
        if self.wide:
            return list(range(self.count))
        return [position % WINDOW for position in range(self.start, self.start + self.count)]

    def positions(self, device: torch.device) -> torch.Tensor:
        """Position of every row [size] (0 in dead slots)."""
        live = torch.arange(self.start, self.start + self.count, device=device)
        if self.wide:
            return live
        positions = live.new_zeros(WINDOW)
        positions[self.slots] = live
        return positions

    def place(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids [count] into their slots [size] (0 in dead slots)."""
        if self.wide:
            return ids
        placed = ids.new_zeros(WINDOW)
        placed[self.slots] = ids
        return placed
