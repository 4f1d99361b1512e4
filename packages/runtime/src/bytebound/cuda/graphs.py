"""Work recorded as CUDA graphs, in one memory pool.

A recorded pass costs one launch, whatever it holds. It does what the eager pass does, bit for bit,
since it is a recording of it.
"""

import gc
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch


class Recordings:
    """Runs ``work(key)``: eagerly the first time, from a recording afterwards.

    ``work`` must neither allocate, nor wait, nor ask the device for a value. On a CPU, where there
    are no graphs, it always runs eagerly.
    """

    def __init__(self, work: Callable[[Hashable], None], device: torch.device) -> None:
        self._work = work
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._can_record = device.type == "cuda"
        if self._can_record:
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(self, key: Hashable) -> None:
        """Do the work on the current stream."""
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
            return
        self._work(key)  # loads kernels and modules as well, which a recording does not allow
        if self._can_record:
            self._graphs[key] = self._record(key)

    def _record(self, key: Hashable) -> torch.cuda.CUDAGraph:
        """Record the work; nothing of it is executed."""
        graph = torch.cuda.CUDAGraph()
        with (
            no_garbage_collection(),
            torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ),
        ):
            self._work(key)
        return graph


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect garbage before, and none within.

    A recording that is collected while another one is made gives its memory back, which the other
    one does not survive. Within another such block there is nothing to do.
    """
    if not gc.isenabled():
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
