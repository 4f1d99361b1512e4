"""Many small kernels, recorded once on a CUDA device and started again as one.

A loop over the columns of a matrix, or over the chunks of a window, is thousands of kernels that
each take a few microseconds, less than starting one does. A CUDA graph starts all of them at once.
The kernels are those of the plain run, so the bits are too. Knows no matrix and no model.
"""

import warnings
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

R = TypeVar("R")

_STREAMS: dict[torch.device, torch.cuda.Stream] = {}  # to record on, one a device


class Replayed(Generic[R]):
    """``run`` over tensors, called again and again with tensors of the same shapes.

    On a CUDA device the first call runs as it stands, the second is recorded over buffers, and from
    then on a call copies its arguments there, replays, and copies the first ``changed`` arguments,
    which ``run`` changes in place, back. A result stays valid until the next call. Other shapes run
    as they stand; so does everything on other devices, and where recording fails.

    ``run`` must not read a value back to the host, nor keep anything between calls.
    """

    def __init__(self, run: Callable[..., R], *, changed: int = 0) -> None:
        self._run = run
        self._changed = changed
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._places: list[Tensor] = []
        self._results: list[R] = []

    def __call__(self, *given: Tensor) -> R:
        """``run(*given)``."""
        if not self._can_record(given[0]):
            return self._run(*given)
        self._calls += 1
        if self._calls == 2:
            self._record(given)
        if self._graph is None or not self._fits(given):
            return self._run(*given)
        for place, one in zip(self._places, given, strict=True):
            place.copy_(one)
        self._graph.replay()
        for place, one in zip(self._places[: self._changed], given, strict=False):
            one.copy_(place)
        return self._results[0]

    def _can_record(self, one: Tensor) -> bool:
        return one.is_cuda

    def _fits(self, given: tuple[Tensor, ...]) -> bool:
        return [one.shape for one in given] == [place.shape for place in self._places]

    def _record(self, given: tuple[Tensor, ...]) -> None:
        device = given[0].device
        self._places = [torch.empty(one.shape, dtype=one.dtype, device=device) for one in given]
        if device not in _STREAMS:
            _STREAMS[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream = _STREAMS[device]
        stream.wait_stream(torch.cuda.current_stream(device))
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    self._results = [self._run(*self._places)]
                finally:
                    graph.capture_end()
        except RuntimeError as error:  # slower, and no less right, without
            self._places, self._results = [], []
            warnings.warn(f"CUDA graph not recorded: {error}", stacklevel=2)
            return
        torch.cuda.current_stream(device).wait_stream(stream)
        self._graph = graph
