"""Keeps a range of device memory in the L2 cache, for the kernels of one stream."""

from numbers import Integral
from typing import Any

from bytebound_kernels import _native
from bytebound_kernels._check import check_finite, check_integer, common_device
from bytebound_kernels._device import require_cuda
from bytebound_kernels._stream import stream_handle
from bytebound_kernels._tensor import HOST, view
from bytebound_kernels.errors import (
    InvalidArgumentError,
    UnsupportedDeviceError,
    UnsupportedShapeError,
)

__all__ = ["l2_persist", "l2_persist_reset"]

_OP = "l2_persist"
_DTYPES = (
    "float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8", "float8_e4m3fn"
)  # fmt: skip


def l2_persist(memory: Any, num_bytes: int, *, stream: Any, hit_ratio: float = 1.0) -> int:
    """Ask that a range stay in the L2 between the kernels launched on a stream from now on.

    The device sets a part of its L2 aside for such ranges; this call lets that part grow to
    ``num_bytes * hit_ratio``, as far as the device allows, and gives the stream its one window.
    What other accesses can use of the L2 shrinks by as much. It is a hint about speed: no result
    depends on it.

    Limits:

    - A stream has one window. Another call replaces it. All windows of a device share what is set
      aside, so together they should not ask for more.
    - A range larger than what is set aside pushes itself out. Then pass a ``hit_ratio`` of the
      returned bytes divided by ``num_bytes``: that share of the range stays, and the rest passes
      through.
    - The window counts for launches that follow, and a captured kernel keeps the window that its
      stream has at capture: set it before a capture, never within one, and capture again to change
      it.
    - What is set aside belongs to the process and stays until it ends. With multi-instance GPU
      there is none (the call returns 0 and changes nothing); with the multi-process service its
      size is that service's to choose, and the call raises CudaError if it is too small.

    Args:
        memory: a tensor, of which the first num_bytes are meant, or an address in device memory.
        num_bytes: length of the range, at most the device's largest window.
        stream: a handle, or a stream of PyTorch or CuPy; None: the current stream of the tensor's
            framework, the default stream for an address.
        hit_ratio: the share of the range that is to stay, above 0 and up to 1.

    Returns:
        The bytes of L2 that are now set aside on the device for all such ranges; 0: it has none.

    Raises:
        InvalidArgumentError: num_bytes, hit_ratio or stream is out of range.
        UnsupportedShapeError: num_bytes is beyond the end of the tensor.
        UnsupportedDeviceError: the memory is not on a CUDA device.
        CudaUnavailableError: CUDA is not usable here.
        CudaError: the driver refuses.
    """
    num_bytes = check_integer(_OP, "num_bytes", num_bytes, 1)
    check_finite(_OP, "hit_ratio", hit_ratio)
    if not 0.0 < hit_ratio <= 1.0:
        raise InvalidArgumentError(
            f"{_OP}: hit_ratio is {hit_ratio}; expected more than 0 and at most 1"
        )
    tensor_view = None
    if isinstance(memory, Integral):
        memory = check_integer(_OP, "memory", memory, 1)
    else:
        tensor_view = view(_OP, "memory", memory, _DTYPES)
    if tensor_view is not None and num_bytes > tensor_view.span_bytes:
        raise UnsupportedShapeError(
            f"{_OP}: num_bytes is {num_bytes} and memory spans {tensor_view.span_bytes} bytes; "
            f"expected at most that"
        )
    require_cuda(_OP)
    if tensor_view is not None:
        pointer, device = tensor_view.pointer, common_device(_OP, tensor_view)
    else:
        pointer, device = memory, _native.pointer_device(memory)
        if device <= HOST:
            raise UnsupportedDeviceError(
                f"{_OP}: the address {memory:#x} is not in device memory; expected one that is"
            )
    require_cuda(_OP, device)
    handle = stream_handle(_OP, stream, memory, device)

    set_aside_bytes, window_bytes = _native.l2_persist_limits(device)
    if set_aside_bytes == 0:
        return 0
    if num_bytes > window_bytes:
        raise InvalidArgumentError(
            f"{_OP}: num_bytes is {num_bytes}; expected at most {window_bytes}, the largest window "
            f"of device {device}"
        )
    return _native.l2_persist(
        pointer, num_bytes=num_bytes, hit_ratio=hit_ratio, device=device, stream=handle
    )


def l2_persist_reset(stream: Any) -> None:
    """Take the window off a stream, and let go of what is kept in the L2 of its device.

    The second part concerns every stream of the device: their windows stay and fill again. Graphs
    that were captured keep theirs too. Do not call it during a capture.

    Args:
        stream: a handle, or a stream of PyTorch or CuPy.

    Raises:
        InvalidArgumentError: stream is neither.
        CudaUnavailableError: CUDA is not usable here.
        CudaError: the driver refuses.
    """
    op = "l2_persist_reset"
    if stream is None:
        raise InvalidArgumentError(f"{op}: stream is None; expected the stream given to l2_persist")
    handle = stream_handle(op, stream, None, 0)
    require_cuda(op)
    _native.l2_persist_reset(handle)
