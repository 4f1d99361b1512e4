"""The checked front of the RMSNorm kernel (csrc/rms_norm.h)."""

import math
from typing import Any, TypeVar

from bytebound_kernels import _native
from bytebound_kernels._check import check_finite, common_device, no_overlap, row_stride
from bytebound_kernels._device import require_cuda
from bytebound_kernels._stream import stream_handle
from bytebound_kernels._tensor import DTYPE_CODES, TensorView, new_like, view
from bytebound_kernels.errors import (
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
)

__all__ = ["rms_norm"]

_OP = "rms_norm"
_MAX_ROWS = 2**31 - 1  # the widest grid
_MAX_D = 2**30  # the kernel's element indices are 32-bit

TensorT = TypeVar("TensorT")


def rms_norm(
    x: TensorT,
    weight: Any,
    *,
    eps: float = 1e-6,
    out: TensorT | None = None,
    stream: Any = None,
) -> TensorT:
    """Normalise every row of x by its root mean square and scale it by 1 + weight, on the GPU.

    Formula:
        out[t, i] = x[t, i] * rsqrt(mean_i(x[t, i]^2) + eps) * (1 + weight[i])

    Args:
        x: [..., D], float16, bfloat16 or float32, on a CUDA device. The last dimension is
            contiguous; the rows may lie at any one even distance, as in a slice of a wider tensor.
        weight: [D], contiguous, the dtype of x or float32. This is the stored w, and the 1 is added
            here, in float32.
        eps: added to the mean square; 0 or more.
        out: [..., D] like x, with a row distance of its own; it may be x itself. Where x and weight
            are float32, it may also be float16 or bfloat16. None: a new contiguous tensor like x
            from the framework of x.
        stream: a stream handle as an integer, or a PyTorch or CuPy stream. None: the stream that is
            current in the framework of x.

    Returns:
        out. The kernel is enqueued, not awaited; it may start while the kernel before it in the
        stream still runs, and reads weight meanwhile, which that kernel must not write.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        UnsupportedTensorError: an argument is no tensor, or out is needed for such a tensor.
        UnsupportedDtypeError: a dtype, or the pair of x and weight, has no kernel.
        UnsupportedShapeError: a shape does not fit.
        UnsupportedLayoutError: strides that no row distance describes, or out overlaps an input.
        UnsupportedDeviceError: host memory, or more than one device.
        InvalidArgumentError: eps or stream.
        CudaError: the launch failed.

    Numerics: float32 throughout, one cast at the end, to nearest even. The order of summation
    depends on D alone, so a row's bits do not depend on the other rows, on strides or on alignment,
    and are the same in every run. Against the reference in float32 the relative RMS error stays
    below 1e-6 for a float32 result, 5e-4 for float16 and 4e-3 for bfloat16. A NaN in a row makes
    the whole row NaN. A row whose squares overflow float32 becomes 0, and NaN where x is infinite.

    Under stream capture pass out=, or let the framework's own graph allocator provide it: the
    kernel itself allocates nothing. Not differentiable: no gradient flows through it.

    Source: csrc/rms_norm.cu.
    """
    x_view = view(_OP, "x", x)
    weight_view = view(_OP, "weight", weight)
    rows = _check_inputs(x_view, weight_view)
    x_row_stride = row_stride(_OP, x_view)
    check_finite(_OP, "eps", eps, not_negative=True)
    out_view = None if out is None else view(_OP, "out", out)
    if out_view is not None:
        _check_out(out_view, x_view, weight_view, x_row_stride)

    require_cuda(_OP)
    device = common_device(_OP, x_view, weight_view, *([] if out_view is None else [out_view]))
    require_cuda(_OP, device)
    if out is None or out_view is None:
        out = new_like(_OP, x)
        out_view = view(_OP, "out", out)

    _native.rms_norm(
        x_view.pointer,
        weight_view.pointer,
        out_view.pointer,
        rows=rows,
        d=x_view.shape[-1],
        x_row_stride=x_row_stride,
        out_row_stride=row_stride(_OP, out_view),
        x_dtype=DTYPE_CODES[x_view.dtype],
        weight_dtype=DTYPE_CODES[weight_view.dtype],
        out_dtype=DTYPE_CODES[out_view.dtype],
        eps=eps,
        device=device,
        stream=stream_handle(_OP, stream, x, device),
    )
    return out


def _check_inputs(x: TensorView, weight: TensorView) -> int:
    """Check dtypes and shapes; return the number of rows."""
    if weight.dtype not in (x.dtype, "float32"):
        raise UnsupportedDtypeError(
            f"{_OP}: weight has dtype {weight.dtype} with x of {x.dtype}; expected {x.dtype} "
            f"or float32"
        )
    if not x.shape or not 1 <= x.shape[-1] <= _MAX_D:
        raise UnsupportedShapeError(
            f"{_OP}: x has shape {x.shape}; expected [..., D] with D from 1 to {_MAX_D}"
        )
    d = x.shape[-1]
    if weight.shape != (d,):
        raise UnsupportedShapeError(
            f"{_OP}: weight has shape {weight.shape}; expected ({d},), the last dimension of x"
        )
    if weight.strides != (1,) and d > 1:
        raise UnsupportedLayoutError(
            f"{_OP}: weight has stride {weight.strides[0]}; expected 1. Use .contiguous()."
        )
    rows = math.prod(x.shape[:-1])
    if rows > _MAX_ROWS:
        raise UnsupportedShapeError(f"{_OP}: x has {rows} rows; expected at most {_MAX_ROWS}")
    return rows


def _check_out(out: TensorView, x: TensorView, weight: TensorView, x_row_stride: int) -> None:
    all_float = x.dtype == weight.dtype == "float32"
    if out.dtype != x.dtype and not all_float:
        raise UnsupportedDtypeError(
            f"{_OP}: out has dtype {out.dtype}; expected {x.dtype}, the dtype of x (a 16-bit "
            f"result needs x and weight of float32)"
        )
    if out.shape != x.shape:
        raise UnsupportedShapeError(
            f"{_OP}: out has shape {out.shape}; expected {x.shape}, the shape of x"
        )
    out_row_stride = row_stride(_OP, out)
    d = x.shape[-1]
    if out_row_stride < d and math.prod(x.shape[:-1]) > 1:
        raise UnsupportedLayoutError(
            f"{_OP}: out has rows of {d} elements at a distance of {out_row_stride}, so they "
            f"overlap; expected a distance of {d} or more"
        )
    same_stride = out_row_stride == x_row_stride and out.dtype == x.dtype
    if not (same_stride and out.pointer == x.pointer):
        no_overlap(_OP, out, x, common_row_stride=x_row_stride if same_stride else 0)
    no_overlap(_OP, out, weight)
