"""One CPU thread for passes too small to share: the products of a small model's decode step.

Two threads that wait for each other in every product gain little there, and on a busy machine each
wait costs a time slice of the scheduler: such a step can take thirty times longer.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL_PRODUCT = 64_000_000  # multiply-adds: about a millisecond of one core


@contextmanager
def threads_for(elements: int, rows: int) -> Iterator[None]:
    """Run on one CPU thread where the largest matrix, times the rows, is a small product."""
    before = torch.get_num_threads()
    if elements * rows > SMALL_PRODUCT or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
