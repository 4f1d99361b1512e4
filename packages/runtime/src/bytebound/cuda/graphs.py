"""Passes captured as CUDA graphs: one for each number of rows, in one memory pool.

A captured pass costs one launch, whatever it holds. It does what the eager pass does, bit for bit,
since it is a recording of it.
"""

from collections.abc import Callable

import torch


class PassGraphs:
    """Records ``run_pass(rows)`` once for each number of rows and replays it from then on."""

    def __init__(self, run_pass: Callable[[int], None], device: torch.device) -> None:
        self._run_pass = run_pass
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def capture(self, rows: int) -> None:
        """Run a pass of so many rows eagerly once, then record it. Recording runs nothing."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._run_pass(rows)  # loads kernels and modules, which a capture does not allow
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            self._run_pass(rows)
        self._graphs[rows] = graph

    def run(self, rows: int) -> None:
        """Replay the pass on the current stream."""
        self._graphs[rows].replay()
