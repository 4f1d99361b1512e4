"""The checked front of w4_unpack (csrc/w4_unpack.h)."""

from typing import Any, TypeVar

from bytebound_kernels import _native
from bytebound_kernels._check import check_kind, common_device, no_overlap, row_stride
from bytebound_kernels._device import require_cuda
from bytebound_kernels._stream import stream_handle
from bytebound_kernels._tensor import DTYPE_CODES, TensorView, view
from bytebound_kernels.errors import UnsupportedLayoutError, UnsupportedShapeError
from bytebound_kernels.ops.w4_matvec.packed import PackedW4

__all__ = ["w4_unpack"]

_OP = "w4_unpack"
_ALIGNMENT = 16  # bytes

TensorT = TypeVar("TensorT")


def w4_unpack(weight: PackedW4, *, out: TensorT, stream: Any = None) -> TensorT:
    """Write a packed four-bit matrix as 16-bit numbers, on the GPU.

    Formula:
        out[n, k] = scale[n, k // 128] * (code[n, k] - zero[n, k // 128])

    Args:
        weight: [N, K] in packed form.
        out: [N, K], float16 or bfloat16; [2 N, K] for an interleaved weight, the rows of gate
            before those of up. Rows at any one distance, aligned to 16 bytes.
        stream: a stream handle as an integer, or a PyTorch or CuPy stream. None: the stream that is
            current in the framework of out.

    Returns:
        out. The kernel is enqueued, not awaited; it may start, and read the weights, while the
        kernel before it in the stream still runs. It must not be the weights that that kernel
        writes.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        UnsupportedTensorError: an argument is no tensor.
        UnsupportedDtypeError: a dtype has no kernel.
        UnsupportedShapeError: a shape does not fit.
        UnsupportedLayoutError: strides, alignment, or tensors that overlap.
        UnsupportedDeviceError: host memory, or more than one device.
        InvalidArgumentError: stream.
        CudaError: the launch failed.

    Numerics: the exact product, rounded once; beyond the range of float16 it becomes infinite.

    Source: csrc/w4_unpack.cu.
    """
    check_kind(_OP, "weight", weight, PackedW4)
    data = weight.check(_OP)
    out_view = _check_out(out, 2 * weight.n if weight.interleaved else weight.n, weight.k)
    no_overlap(_OP, out_view, data)
    require_cuda(_OP)
    device = common_device(_OP, out_view, data)
    require_cuda(_OP, device)
    _native.w4_unpack(
        data.pointer,
        out_view.pointer,
        out_row_stride=row_stride(_OP, out_view),
        n=weight.n,
        k=weight.k,
        out_dtype=DTYPE_CODES[out_view.dtype],
        scale_dtype=DTYPE_CODES[weight.scale_dtype],
        asymmetric=weight.asymmetric,
        interleaved=weight.interleaved,
        device=device,
        stream=stream_handle(_OP, stream, out, device),
    )
    return out


def _check_out(out: Any, rows: int, k: int) -> TensorView:
    out_view = view(_OP, "out", out, ("float16", "bfloat16"))
    if out_view.shape != (rows, k):
        raise UnsupportedShapeError(
            f"{_OP}: out has shape {out_view.shape}; expected ({rows}, {k})"
        )
    distance = row_stride(_OP, out_view)
    if distance < k and rows > 1:
        raise UnsupportedLayoutError(
            f"{_OP}: out has rows of {k} elements at a distance of {distance}, so they overlap; "
            f"expected a distance of {k} or more"
        )
    if out_view.pointer % _ALIGNMENT or (rows > 1 and distance * out_view.itemsize % _ALIGNMENT):
        raise UnsupportedLayoutError(
            f"{_OP}: out starts at {out_view.pointer:#x} with rows at a distance of "
            f"{distance * out_view.itemsize} bytes; expected multiples of {_ALIGNMENT}"
        )
    return out_view
