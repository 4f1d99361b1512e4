"""Work on the blocks of a large file by several threads, each with a buffer of its own.

Reading, hashing and copying all let go of the interpreter, so threads overlap them. A buffer is
memory that a GPU copies from and to directly, where there is one.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

import torch

BLOCK_BYTES = 16 << 20
MAX_THREADS = 8

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Buffer:
    """``BLOCK_BYTES`` of host memory, and the stream that copies between it and the device."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.tensor = torch.empty(BLOCK_BYTES, dtype=torch.uint8, pin_memory=on_gpu)
        raw = (ctypes.c_char * BLOCK_BYTES).from_address(self.tensor.data_ptr())
        self.view = memoryview(raw).cast("B")
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy bytes between this buffer and the device, and wait for them."""
        if self._stream is None:
            target.copy_(source)
            return
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        self._stream.synchronize()


def for_each(
    items: Sequence[ItemT],
    work: Callable[[Buffer, ItemT], ResultT],
    device: torch.device,
    on_done: Callable[[ItemT], None] | None = None,
) -> list[ResultT]:
    """``work(buffer, item)`` for every item, in any order; the results in the order of the items.

    ``on_done`` is called in this thread. The first exception ends the work and is raised.
    """
    mine = threading.local()

    def run(item: ItemT) -> ResultT:
        if not hasattr(mine, "buffer"):
            mine.buffer = Buffer(device)
        return work(mine.buffer, item)

    with ThreadPoolExecutor(min(MAX_THREADS, len(os.sched_getaffinity(0)))) as pool:
        futures = {pool.submit(run, item): index for index, item in enumerate(items)}
        results: list[ResultT | None] = [None] * len(items)
        try:
            for future in as_completed(futures):
                index = futures[future]
                results[index] = future.result()
                if on_done is not None:
                    on_done(items[index])
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return results  # type: ignore[return-value]  # every one was set


def read_exactly(descriptor: int, view: memoryview, offset: int) -> None:
    """Fill ``view`` from ``offset`` of a file; OSError where the file ends before."""
    done = 0
    while done < len(view):
        got = os.preadv(descriptor, [view[done:]], offset + done)
        if not got:
            raise OSError(f"the file ends at byte {offset + done}, inside a block")
        done += got


def write_all(descriptor: int, view: memoryview, offset: int) -> None:
    """Write all of ``view`` at ``offset`` of a file."""
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], offset + done)


def pieces(size: int) -> list[tuple[int, int]]:
    """Cut ``size`` bytes into (offset, length) of at most a block."""
    return [(start, min(BLOCK_BYTES, size - start)) for start in range(0, size, BLOCK_BYTES)]
