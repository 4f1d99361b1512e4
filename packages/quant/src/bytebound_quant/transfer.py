"""Windows on their way between host and device, without either waiting for the other.

On a CUDA device a copy goes through a few pinned buffers: the host fills one while the device still
computes on what came before. Elsewhere it is a plain copy. Knows no model.
"""

from collections import deque

import torch
from torch import Tensor

DEPTH = 6  # buffers each way


class _Buffer:
    """Pinned memory that the device may still be at work on."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def view(self, like: Tensor) -> Tensor:
        """The memory as a tensor of that shape; grows if it must."""
        size = like.numel() * like.element_size()
        if self._memory.numel() < size:
            self._memory = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return self._memory[:size].view(like.dtype).view(like.shape)

    def mark(self, device: torch.device) -> None:
        """``wait`` waits for what ``device`` has been given so far."""
        self._done.record(torch.cuda.current_stream(device))

    def wait(self) -> None:
        """Return when the device is done with the memory; at once if it never was at work."""
        self._done.synchronize()


class Transfer:
    """Copies to and from ``device``, in the order of the calls."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._loading: deque[_Buffer] = deque()
        self._free: list[_Buffer] = []
        self._storing: deque[tuple[_Buffer, Tensor, Tensor]] = deque()

    @property
    def pinned(self) -> bool:
        """Whether copies go through pinned buffers."""
        return self._device.type == "cuda"

    def load(self, host: Tensor) -> Tensor:
        """``host`` on the device, as the last ``store`` left it."""
        if not self.pinned:
            return host.to(self._device)
        if any(target.data_ptr() == host.data_ptr() for _, _, target in self._storing):
            self.finish()
        buffer = self._loading.popleft() if len(self._loading) >= DEPTH else _Buffer()
        buffer.wait()
        staged = buffer.view(host).copy_(host)
        result = staged.to(self._device, non_blocking=True)
        buffer.mark(self._device)
        self._loading.append(buffer)
        return result

    def store(self, host: Tensor, value: Tensor) -> None:
        """Copy ``value`` to ``host``; it may arrive as late as at ``finish``."""
        if not self.pinned:
            host.copy_(value)
            return
        if len(self._storing) >= DEPTH:
            self._arrive()
        buffer = self._free.pop() if self._free else _Buffer()
        staged = buffer.view(host).copy_(value, non_blocking=True)
        buffer.mark(self._device)
        self._storing.append((buffer, staged, host))

    def finish(self) -> None:
        """Return when everything has arrived."""
        while self._storing:
            self._arrive()

    def _arrive(self) -> None:
        buffer, staged, host = self._storing.popleft()
        buffer.wait()
        host.copy_(staged)
        self._free.append(buffer)
