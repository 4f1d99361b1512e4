"""The stream that an op runs on, as the integer that the native side takes."""

import sys
from numbers import Integral
from typing import Any

from bytebound_kernels.errors import InvalidArgumentError

__all__ = ["stream_handle"]


def stream_handle(op: str, stream: Any, tensor: Any, device: int) -> int:
    """Turn a stream argument into a cudaStream_t.

    Args:
        op: for messages.
        stream: an integer handle, an object with cuda_stream (PyTorch), ptr (CuPy) or
            __cuda_stream__; None: the stream that the tensor's framework has current on the device,
            and the default stream for a tensor of no known framework.
        tensor: the tensor whose framework is asked.
        device: ordinal of the device.

    Raises:
        InvalidArgumentError: stream is none of these.
    """
    if stream is None:
        return _current_stream(tensor, device)
    if isinstance(stream, Integral) and not isinstance(stream, bool) and int(stream) >= 0:
        return int(stream)
    for attribute in ("cuda_stream", "ptr"):
        handle = getattr(stream, attribute, None)
        if isinstance(handle, int):
            return handle
    if hasattr(stream, "__cuda_stream__"):
        # The protocol returns (version, handle).
        return int(stream.__cuda_stream__()[1])
    raise InvalidArgumentError(
        f"{op}: stream is {stream!r}; expected None, a stream handle as an integer, or a stream "
        f"object of PyTorch or CuPy"
    )


def _current_stream(tensor: Any, device: int) -> int:
    # A tensor's framework is imported already, so looking it up imports nothing.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        # The handle itself, as Triton asks for it: an object for every launch takes its time.
        handle_of = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        if handle_of is not None:
            return int(handle_of(device))
        return int(torch.cuda.current_stream(device).cuda_stream)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(tensor, cupy.ndarray):
        return int(cupy.cuda.get_current_stream(device).ptr)
    return 0
