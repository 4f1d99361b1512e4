"""The checked front of the 16-bit matrix-vector kernel (csrc/dense_matvec.h)."""

from typing import Any, TypeVar

from bytebound_kernels import _native
from bytebound_kernels._check import common_device, no_overlap, row_stride
from bytebound_kernels._device import require_cuda
from bytebound_kernels._matvec import (
    EPILOGUES,
    check_activations,
    check_blocks,
    check_residual,
    check_result,
    check_scale,
    check_workspace,
)
from bytebound_kernels._stream import stream_handle
from bytebound_kernels._tensor import DTYPE_CODES, TensorView, view
from bytebound_kernels.errors import (
    InvalidArgumentError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
)

__all__ = ["dense_matvec"]

_OP = "dense_matvec"
_WEIGHTS = ("float16", "bfloat16")
_COLUMNS = 64  # of the smallest item in csrc/cuda/dense.cuh
_ALIGNMENT = 16  # bytes
_MAX_N = 2**30

TensorT = TypeVar("TensorT")


def dense_matvec(
    x: Any,
    weight: Any,
    *,
    out: TensorT,
    workspace: Any,
    up: Any = None,
    residual: Any = None,
    scale: float = 1.0,
    num_blocks: int | None = None,
    stream: Any = None,
) -> TensorT:
    """Multiply a 16-bit matrix by one to sixteen activation rows, on the GPU.

    Formula:
        y[r, n] = sum_k x[r, k] * weight[n, k]
        out = scale * y;  residual + scale * y;
        or, with up, scale * silu(y) * sum_k x[r, k] * up[n, k]

    Args:
        x: [R, K], R from 1 to 16, float16 or bfloat16; rows at any one distance, aligned to 16
            bytes.
        weight: [N, K], the dtype of x, K a multiple of 64; rows at any one distance, aligned to 16
            bytes, as in a slice of a larger matrix.
        out: [R, N], the dtype of x or float32; it may be residual itself.
        workspace: uint8, matvec_workspace_bytes(); filled with 0xFF once, before its first use.
            Calls that may run at the same time need one each.
        up: [N, K] like weight, with a row distance of its own; weight is then the gate.
        residual: [R, N] of the dtype of out, added to the product.
        scale: the product is multiplied by it in float32, before residual is added and before the
            result is rounded; finite, above 0. A power of two is exact: it keeps a wide float16
            result (SwiGLU's) in range, and the next product takes it off again.
        num_blocks: blocks among which the matrix is shared out; None: as many as the card runs at
            once. The order of summation depends on it; a block without a share is not launched.
        stream: a stream handle as an integer, or a PyTorch or CuPy stream. None: the stream that is
            current in the framework of x.

    Returns:
        out. The kernel is enqueued, not awaited; it may start while the kernel before it in the
        stream still runs, and loads its first weights meanwhile. So weights that the kernel before
        it writes may be read too early.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        UnsupportedTensorError: an argument is no tensor.
        UnsupportedDtypeError: a dtype has no kernel.
        UnsupportedShapeError: a shape does not fit, or the workspace is too small.
        UnsupportedLayoutError: strides, alignment, or tensors that overlap.
        UnsupportedDeviceError: host memory, or more than one device.
        InvalidArgumentError: residual together with up, scale, num_blocks, stream.
        CudaError: the launch failed.

    Numerics: exact products, float32 sums in an order that depends on the matrix and the number of
    blocks alone: a row has the same bits alone and among others. Relative RMS error against float64
    below 1e-3 for float16 and float32 results, 4e-3 for bfloat16. A NaN or an infinity in a row of
    x stays in that row, one in a row of the matrix stays in that column of out.

    Source: csrc/dense_matvec.cu, csrc/cuda/matvec.cuh, csrc/cuda/dense.cuh.
    """
    matrix = _check_matrix("weight", weight)
    n, k = matrix.shape
    x_view = check_activations(_OP, x, k)
    matrices = [matrix]
    if up is not None:
        matrices.append(_check_matrix("up", up))
    for tensor in matrices:
        if tensor.dtype != x_view.dtype:
            raise UnsupportedDtypeError(
                f"{_OP}: {tensor.name} has dtype {tensor.dtype}; expected {x_view.dtype}, the "
                f"dtype of x"
            )
        if tensor.shape != matrix.shape:
            raise UnsupportedShapeError(
                f"{_OP}: {tensor.name} has shape {tensor.shape}; expected {matrix.shape}, the "
                f"shape of weight"
            )
    out_view = check_result(_OP, "out", out, x_view, n)
    epilogue = "store" if up is None else "swiglu"
    residuals: list[TensorView] = []
    if residual is not None:
        if up is not None:
            raise InvalidArgumentError(
                f"{_OP}: residual is given together with up; expected one of the two"
            )
        epilogue = "add_residual"
        residuals.append(check_residual(_OP, residual, out_view, x_view))
        _check_in_place(out_view, residuals[0])
    for tensor in (x_view, *matrices):
        no_overlap(_OP, out_view, tensor)
    factor = check_scale(_OP, scale)

    require_cuda(_OP)
    tensors = [x_view, *matrices, *residuals, out_view]
    device = common_device(_OP, *tensors)
    require_cuda(_OP, device)
    blocks = check_blocks(_OP, num_blocks, device)
    scratch = check_workspace(_OP, workspace, blocks)
    common_device(_OP, *tensors, scratch)
    for tensor in tensors:
        no_overlap(_OP, scratch, tensor)
    _native.dense_matvec(
        matrix.pointer,
        0 if up is None else matrices[1].pointer,
        x_view.pointer,
        out_view.pointer,
        residuals[0].pointer if residuals else 0,
        scratch.pointer,
        weight_row_stride=row_stride(_OP, matrix),
        up_row_stride=0 if up is None else row_stride(_OP, matrices[1]),
        x_row_stride=row_stride(_OP, x_view),
        out_row_stride=row_stride(_OP, out_view),
        residual_row_stride=row_stride(_OP, residuals[0]) if residuals else 0,
        rows=x_view.shape[0],
        n=n,
        k=k,
        num_blocks=blocks,
        x_dtype=DTYPE_CODES[x_view.dtype],
        float_out=out_view.dtype == "float32",
        epilogue=EPILOGUES[epilogue],
        scale=factor,
        device=device,
        stream=stream_handle(_OP, stream, x, device),
    )
    return out


def _check_matrix(name: str, tensor: Any) -> TensorView:
    matrix = view(_OP, name, tensor, _WEIGHTS)
    if len(matrix.shape) != 2 or not 1 <= matrix.shape[0] <= _MAX_N:
        raise UnsupportedShapeError(
            f"{_OP}: {name} has shape {matrix.shape}; expected [N, K] with N from 1 to {_MAX_N}"
        )
    n, k = matrix.shape
    if k < 1 or k % _COLUMNS:
        raise UnsupportedShapeError(
            f"{_OP}: {name} has shape {matrix.shape}; expected K a multiple of {_COLUMNS}"
        )
    distance = row_stride(_OP, matrix) * matrix.itemsize
    if matrix.pointer % _ALIGNMENT or (n > 1 and distance % _ALIGNMENT):
        raise UnsupportedLayoutError(
            f"{_OP}: {name} starts at {matrix.pointer:#x} with rows at a distance of {distance} "
            f"bytes; expected multiples of {_ALIGNMENT}"
        )
    return matrix


def _check_in_place(out: TensorView, residual: TensorView) -> None:
    """Refuse a residual that overlaps out, unless each element lies where its result goes."""
    same = out.pointer == residual.pointer and (
        row_stride(_OP, out) == row_stride(_OP, residual) or out.shape[0] == 1
    )
    if not same:
        no_overlap(_OP, out, residual)
