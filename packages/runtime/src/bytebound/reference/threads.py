"""One CPU thread for passes too small to share: the products of a small model's decode step.

Two threads that wait for each other in every product gain little there, and on a busy machine each
wait costs a time slice of the scheduler: such a step can take many times longer.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL_PRODUCT = 64_000_000  # multiply-adds: about a millisecond of one core


class _OneThread:
    """Counts who wants one thread.

    Each thread has a setting of its own, but a new one starts with what was set last by any. So a
    thread that leaves goes back to what held before the first one came, not to what it began with.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 1
        self._own = threading.local()

    def enter(self) -> None:
        with self._lock:
            if self._users == 0:
                self._before = torch.get_num_threads()
            self._users += 1
            self._own.depth = getattr(self._own, "depth", 0) + 1
            torch.set_num_threads(1)

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            self._own.depth -= 1
            if self._own.depth == 0:
                torch.set_num_threads(self._before)


_ONE_THREAD = _OneThread()


@contextmanager
def threads_for(elements: int, rows: int) -> Iterator[None]:
    """Run on one CPU thread where the largest matrix, times the rows, is a small product."""
    if elements * rows > SMALL_PRODUCT:
        yield
        return
    _ONE_THREAD.enter()
    try:
        yield
    finally:
        _ONE_THREAD.leave()
