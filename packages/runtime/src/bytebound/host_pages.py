"""Memory of the host in pages of one size: copies of tensors go in, and come back bit for bit.

Beside a GPU the pages are page-locked, which is what a copy needs to reach the bus's speed. Locking
costs more than copying, so memory is taken in slabs, as it is first needed, and used again.
"""

import math
from collections.abc import Iterator, Sequence

import torch

# PyTorch rounds page-locked memory up to a power of two: a slab is one, so that nothing is lost.
SLAB_BYTES = 64 << 20

Pages = tuple[torch.Tensor, ...]
"""uint8 [page_bytes] each."""


class HostPages:
    """At most ``budget`` bytes; what does not fill a slab of them stays unused.

    Nothing waits for a device: copies run in the order of its current stream, and so must whatever
    writes to the tensors or reads them.
    """

    def __init__(self, budget: int, page_bytes: int, *, pinned: bool) -> None:
        self.page_bytes = page_bytes
        self.pinned = pinned
        eighth = (1 << budget.bit_length()) >> 4  # as a power of two: little of the budget is lost
        self._slab_pages = max(1, min(SLAB_BYTES, eighth) // page_bytes)
        self._slabs_left = budget // (self._slab_pages * page_bytes)
        self.capacity = self._slabs_left * self._slab_pages
        """Pages that may be in use at once."""
        self._free = list[torch.Tensor]()
        self.used = 0
        """Pages in use."""

    @property
    def reserved_bytes(self) -> int:
        """Bytes taken of the host so far, in use or not."""
        return (len(self._free) + self.used) * self.page_bytes

    @property
    def available(self) -> int:
        """Pages that ``write`` can still take."""
        return self.capacity - self.used

    def needed(self, num_bytes: int) -> int:
        """Pages that so many bytes take."""
        return math.ceil(num_bytes / self.page_bytes)

    @torch.inference_mode()
    def write(self, tensors: Sequence[torch.Tensor]) -> Pages:
        """Copy tensors of any shape, strides and device; ``read`` gives them back.

        Raises:
            ValueError: fewer pages are available than they take.
            RuntimeError: the host has no more memory. Nothing is in use then that was not before.
        """
        pages = self._take(self.needed(sum(one.nbytes for one in tensors)))
        try:
            offset = 0
            for tensor in tensors:
                flat = _flat(tensor.contiguous())
                for page, part in self._parts(pages, offset, flat):
                    page.copy_(part, non_blocking=True)
                offset += tensor.nbytes
        except BaseException:
            self.release(pages)
            raise
        return pages

    @torch.inference_mode()
    def read(self, pages: Pages, into: Sequence[torch.Tensor]) -> None:
        """Overwrite tensors of the shapes and dtypes that were written."""
        offset = 0
        for tensor in into:
            whole = tensor
            if not tensor.is_contiguous():
                whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            for page, part in self._parts(pages, offset, _flat(whole)):
                part.copy_(page, non_blocking=True)
            if whole is not tensor:
                tensor.copy_(whole)
            offset += tensor.nbytes

    def release(self, pages: Pages) -> None:
        """Let others use them."""
        self.used -= len(pages)
        self._free.extend(pages)

    def _take(self, count: int) -> Pages:
        while len(self._free) < count and self._slabs_left > 0:
            slab = torch.empty(
                self._slab_pages * self.page_bytes, dtype=torch.uint8, pin_memory=self.pinned
            )
            self._slabs_left -= 1
            self._free.extend(slab.view(self._slab_pages, self.page_bytes))
        at = len(self._free) - count
        if at < 0:
            raise ValueError(f"{count} pages asked for, {self.available} are available")
        pages = tuple(self._free[at:])
        del self._free[at:]
        self.used += count
        return pages

    def _parts(
        self, pages: Pages, offset: int, flat: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Where the bytes ``flat``, the ones from ``offset`` on, lie: parts of pages, in order."""
        done = 0
        while done < flat.numel():
            page, at = divmod(offset + done, self.page_bytes)
            count = min(self.page_bytes - at, flat.numel() - done)
            yield pages[page][at : at + count], flat[done : done + count]
            done += count


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, as they lie."""
    return tensor.view(-1).view(torch.uint8)
