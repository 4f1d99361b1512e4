"""The checked front of the norm with a product (csrc/rms_norm_project.h)."""

from typing import Any, TypeVar

from bytebound_kernels import _native
from bytebound_kernels._check import (
    check_finite,
    common_device,
    no_overlap,
    packed_view,
    row_stride,
)
from bytebound_kernels._device import require_cuda
from bytebound_kernels._stream import stream_handle
from bytebound_kernels._tensor import DTYPE_CODES, TensorView, view
from bytebound_kernels.errors import (
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
)

__all__ = ["rms_norm_project"]

_OP = "rms_norm_project"
_DTYPES = ("float16", "bfloat16")
_ALIGNMENT = 16  # bytes
# As in csrc/rms_norm_project.h.
_MAX_ROWS = 16
_MAX_N = 4096
_MAX_D = 2**30
_COLUMNS = 64

TensorT = TypeVar("TensorT")


def rms_norm_project(
    x: Any,
    weight: Any,
    projection: Any,
    *,
    out: TensorT,
    projected: TensorT,
    eps: float = 1e-6,
    stream: Any = None,
) -> tuple[TensorT, TensorT]:
    """Normalise one to sixteen rows and multiply them by a small matrix, in one launch on the GPU.

    Formula:
        out[r, i] = x[r, i] * rsqrt(mean_i(x[r, i]^2) + eps) * (1 + weight[i])
        projected[r, n] = sum_i out[r, i] * projection[n, i], of the rounded out

    It is for a matrix of few rows, such as the gates of a layer, whose own launch would take longer
    than its product: each row of x is normalised again for every few features. dense_matvec is the
    op for large matrices.

    Args:
        x: float32 [R, D], R from 1 to 16, D a multiple of 64; rows at any one distance, aligned to
            16 bytes, as are the rows of projection and out.
        weight: float32 [D], contiguous. This is the stored w, and the 1 is added here.
        projection: [N, D], N from 1 to 4096, float16 or bfloat16.
        out: [R, D], the dtype of projection. It may not be x.
        projected: [R, N], the dtype of projection; rows at any one distance.
        eps: added to the mean square; 0 or more.
        stream: a stream handle as an integer, or a PyTorch or CuPy stream. None: the stream that is
            current in the framework of x.

    Returns:
        out and projected. The kernel is enqueued, not awaited; it may start while the kernel before
        it in the stream still runs, and reads weight and projection meanwhile, which that kernel
        must not write.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        UnsupportedTensorError: an argument is no tensor.
        UnsupportedDtypeError: a dtype has no kernel.
        UnsupportedShapeError: a shape does not fit.
        UnsupportedLayoutError: strides, alignment, or results that overlap another tensor.
        UnsupportedDeviceError: host memory, or more than one device.
        InvalidArgumentError: eps or stream.
        CudaError: the launch failed.

    Numerics: out has the bits of rms_norm. projected: exact products, float32 sums in an order that
    D alone decides, one cast at the end, so that a row has the same bits alone and among others;
    not the bits of dense_matvec, whose order is another. Relative RMS error of projected against
    float64 over the same out below 1e-3 for float16 and 4e-3 for bfloat16. What is not finite in a
    row of x stays in that row, what is not in a row of projection in that column of projected.

    Source: csrc/rms_norm_project.cu, csrc/cuda/rms.cuh.
    """
    x_view = _check_x(x)
    rows, d = x_view.shape
    weight_view = packed_view(_OP, "weight", weight, "float32", (d,))
    _check_alignment(weight_view)
    projection_view = view(_OP, "projection", projection, _DTYPES)
    n = projection_view.shape[0] if len(projection_view.shape) == 2 else 0
    if projection_view.shape != (n, d) or not 1 <= n <= _MAX_N:
        raise UnsupportedShapeError(
            f"{_OP}: projection has shape {projection_view.shape}; expected [N, {d}] with N from 1 "
            f"to {_MAX_N}"
        )
    _check_alignment(projection_view)
    dtype = projection_view.dtype
    out_view = _check_result("out", out, dtype, (rows, d))
    _check_alignment(out_view)
    projected_view = _check_result("projected", projected, dtype, (rows, n))
    check_finite(_OP, "eps", eps, not_negative=True)
    for result in (out_view, projected_view):
        for tensor in (x_view, weight_view, projection_view):
            no_overlap(_OP, result, tensor)
    no_overlap(_OP, projected_view, out_view)

    require_cuda(_OP)
    tensors = (x_view, weight_view, projection_view, out_view, projected_view)
    device = common_device(_OP, *tensors)
    require_cuda(_OP, device)
    _native.rms_norm_project(
        *(tensor.pointer for tensor in tensors),
        x_row_stride=row_stride(_OP, x_view),
        projection_row_stride=row_stride(_OP, projection_view),
        out_row_stride=row_stride(_OP, out_view),
        projected_row_stride=row_stride(_OP, projected_view),
        rows=rows,
        n=n,
        d=d,
        dtype=DTYPE_CODES[dtype],
        eps=eps,
        device=device,
        stream=stream_handle(_OP, stream, x, device),
    )
    return out, projected


def _check_x(x: Any) -> TensorView:
    x_view = view(_OP, "x", x, ("float32",))
    if len(x_view.shape) != 2 or not 1 <= x_view.shape[0] <= _MAX_ROWS:
        raise UnsupportedShapeError(
            f"{_OP}: x has shape {x_view.shape}; expected [R, D] with R from 1 to {_MAX_ROWS}"
        )
    d = x_view.shape[1]
    if not _COLUMNS <= d <= _MAX_D or d % _COLUMNS:
        raise UnsupportedShapeError(
            f"{_OP}: x has shape {x_view.shape}; expected D a multiple of {_COLUMNS} up to {_MAX_D}"
        )
    _check_alignment(x_view)
    return x_view


def _check_alignment(tensor: TensorView) -> None:
    distance = row_stride(_OP, tensor) * tensor.itemsize
    several = len(tensor.shape) > 1 and tensor.shape[0] > 1
    if tensor.pointer % _ALIGNMENT or (several and distance % _ALIGNMENT):
        raise UnsupportedLayoutError(
            f"{_OP}: {tensor.name} starts at {tensor.pointer:#x} with rows at a distance of "
            f"{distance} bytes; expected multiples of {_ALIGNMENT}"
        )


def _check_result(name: str, tensor: Any, dtype: str, shape: tuple[int, int]) -> TensorView:
    """Check a result: the dtype of projection, rows that do not overlap."""
    result = view(_OP, name, tensor, _DTYPES)
    if result.dtype != dtype:
        raise UnsupportedDtypeError(
            f"{_OP}: {name} has dtype {result.dtype}; expected {dtype}, the dtype of projection"
        )
    if result.shape != shape:
        raise UnsupportedShapeError(f"{_OP}: {name} has shape {result.shape}; expected {shape}")
    if row_stride(_OP, result) < shape[1] and shape[0] > 1:
        raise UnsupportedLayoutError(
            f"{_OP}: {name} has rows of {shape[1]} elements at a distance of "
            f"{row_stride(_OP, result)}, so they overlap; expected a distance of {shape[1]} or more"
        )
    return result
