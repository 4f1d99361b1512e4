"""One CPU thread for passes too small to share: the products of a small model's decode step.

Two threads that wait for each other in every product gain little there, and on a busy machine each
wait costs a time slice of the scheduler: such a step can take many times longer.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

SMALL_PRODUCT = 64_000_000  # multiply-adds: about a millisecond of one core


class _OneThread:
    """Each thread's way to one CPU thread and back to the number that it had.

    torch keeps a number for each thread, but a new thread starts with what was set last by any: one
    that begins while another is inside would keep its 1 for life. So the first time a thread that
    has 1 comes, it is given back what the others go back to.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._number = 1  # what the first of those inside goes back to
        self._own = threading.local()

    def enter(self) -> None:
        with self._lock:
            own = self._own
            if getattr(own, "depth", 0) == 0:
                number = torch.get_num_threads()
                if number == 1 and not hasattr(own, "number"):
                    number = self._number if self._inside else _number_of_a_new_thread()
                if self._inside == 0:
                    self._number = number
                own.number, own.depth = number, 0
                self._inside += 1
                torch.set_num_threads(1)
            own.depth += 1

    def leave(self) -> None:
        with self._lock:
            own = self._own
            own.depth -= 1
            if own.depth == 0:
                self._inside -= 1
                torch.set_num_threads(own.number)


def _number_of_a_new_thread() -> int:
    """How many CPU threads torch gives a thread that begins now."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


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
