"""The checked front of the embedding gather kernel (csrc/embedding_gather.h)."""

from typing import Any, TypeVar

from bytebound_kernels import _native
from bytebound_kernels._check import common_device, no_overlap, packed_view, row_stride
from bytebound_kernels._device import require_cuda
from bytebound_kernels._stream import stream_handle
from bytebound_kernels._tensor import DTYPE_CODES, view
from bytebound_kernels.errors import (
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
)

__all__ = ["embedding_gather"]

_OP = "embedding_gather"
_MAX_ROWS = 2**31 - 1  # the widest grid, and the largest id
_MAX_D = 2**24
_TABLE_DTYPES = ("float16", "bfloat16")

TensorT = TypeVar("TensorT")


def embedding_gather(ids: Any, table: Any, *, out: TensorT, stream: Any = None) -> TensorT:
    """Copy the rows of a table that the ids name, on the GPU.

    Formula:
        out[t, :] = table[ids[t], :], or NaN where ids[t] is not in 0 .. N-1

    The ids are in device memory, so they cannot be checked here: an id outside the table reads
    nothing and shows as a row of NaN.

    Args:
        ids: int32 [T], contiguous, on a CUDA device.
        table: [N, D], float16 or bfloat16; rows at any one distance.
        out: [T, D], the dtype of the table or float32; rows at any one distance of D or more.
        stream: a stream handle as an integer, or a PyTorch or CuPy stream. None: the stream that is
            current in the framework of out.

    Returns:
        out. The kernel is enqueued, not awaited.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        UnsupportedTensorError: an argument is no tensor.
        UnsupportedDtypeError: a dtype, or the pair of table and out, has no kernel.
        UnsupportedShapeError: a shape does not fit.
        UnsupportedLayoutError: strides that no row distance describes, or out overlaps an input.
        UnsupportedDeviceError: host memory, or more than one device.
        InvalidArgumentError: stream.
        CudaError: the launch failed.

    Numerics: exact.

    Source: csrc/embedding_gather.cu.
    """
    id_view = packed_view(_OP, "ids", ids, "int32", (None,))
    t = view(_OP, "table", table, _TABLE_DTYPES)
    if len(t.shape) != 2 or not (1 <= t.shape[0] <= _MAX_ROWS and 1 <= t.shape[1] <= _MAX_D):
        raise UnsupportedShapeError(
            f"{_OP}: table has shape {t.shape}; expected [N, D] with N from 1 to {_MAX_ROWS} and D "
            f"from 1 to {_MAX_D}"
        )
    o = view(_OP, "out", out)
    if o.dtype not in (t.dtype, "float32"):
        raise UnsupportedDtypeError(
            f"{_OP}: out has dtype {o.dtype} with a table of {t.dtype}; expected {t.dtype} or "
            f"float32"
        )
    rows, d = id_view.shape[0], t.shape[1]
    if o.shape != (rows, d):
        raise UnsupportedShapeError(
            f"{_OP}: out has shape {o.shape}; expected {(rows, d)}, from ids and table"
        )
    table_row_stride, out_row_stride = row_stride(_OP, t), row_stride(_OP, o)
    if out_row_stride < d and rows > 1:
        raise UnsupportedLayoutError(
            f"{_OP}: out has rows of {d} elements at a distance of {out_row_stride}, so they "
            f"overlap; expected a distance of {d} or more"
        )
    no_overlap(_OP, o, id_view)
    no_overlap(_OP, o, t)

    require_cuda(_OP)
    device = common_device(_OP, id_view, t, o)
    require_cuda(_OP, device)
    _native.embedding_gather(
        id_view.pointer,
        t.pointer,
        o.pointer,
        rows=rows,
        n=t.shape[0],
        d=d,
        table_row_stride=table_row_stride,
        out_row_stride=out_row_stride,
        table_dtype=DTYPE_CODES[t.dtype],
        out_dtype=DTYPE_CODES[o.dtype],
        device=device,
        stream=stream_handle(_OP, stream, out, device),
    )
    return out
