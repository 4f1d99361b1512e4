"""The checked front of the argmax kernel (csrc/argmax.h)."""

from typing import Any, TypeVar

from bytebound_kernels import _native
from bytebound_kernels._check import (
    check_integer,
    common_device,
    no_overlap,
    packed_view,
    row_stride,
    workspace_view,
)
from bytebound_kernels._device import require_cuda
from bytebound_kernels._stream import stream_handle
from bytebound_kernels._tensor import DTYPE_CODES, view
from bytebound_kernels.errors import UnsupportedShapeError

__all__ = ["argmax", "argmax_workspace_bytes"]

_OP = "argmax"
_MAX_ROWS = 65535  # one dimension of the grid
_MAX_N = 2**30
_ROW_STATE_BYTES = 16  # RowState in csrc/argmax.cu

TensorT = TypeVar("TensorT")


def argmax_workspace_bytes(rows: int) -> int:
    """Return the bytes of workspace that a call with this many rows needs.

    Raises:
        InvalidArgumentError: rows is no integer of 0 or more.
    """
    return check_integer("argmax_workspace_bytes", "rows", rows, 0) * _ROW_STATE_BYTES


def argmax(
    logits: Any,
    *,
    out: TensorT,
    workspace: Any,
    id_map: Any = None,
    stream: Any = None,
) -> TensorT:
    """Find the id of the largest value of each row, on the GPU.

    Formula:
        i = the lowest index with logits[r, i] == max(logits[r, :])
        out[r] = id_map[i], or i without a map; -1 where row r holds a NaN

    Args:
        logits: [R, N], float16, bfloat16 or float32, on a CUDA device; rows at any one distance.
        out: int32 [R].
        workspace: uint8, argmax_workspace_bytes(R) or more, aligned to 16 bytes. Fill it with
            zeros once: every call leaves it zero. Calls that may run at the same time need one
            each.
        id_map: int32 [N], the id of each index, as for a draft with a vocabulary of its own. Ties
            go to the lowest index, which is the lowest id if the map ascends.
        stream: a stream handle as an integer, or a PyTorch or CuPy stream. None: the stream that is
            current in the framework of logits.

    Returns:
        out. The kernel is enqueued, not awaited.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        UnsupportedTensorError: an argument is no tensor.
        UnsupportedDtypeError: a dtype has no kernel.
        UnsupportedShapeError: a shape does not fit, or the workspace is too small.
        UnsupportedLayoutError: strides that no row distance describes, a tensor that is not
            contiguous or not aligned, or results that overlap an input.
        UnsupportedDeviceError: host memory, or more than one device.
        InvalidArgumentError: stream.
        CudaError: the launch failed.

    Numerics: exact. A row's answer depends on that row alone. The two zeros are equal; infinities
    are ordinary values.

    Source: csrc/argmax.cu.
    """
    x = view(_OP, "logits", logits)
    if len(x.shape) != 2 or x.shape[0] > _MAX_ROWS or not 1 <= x.shape[1] <= _MAX_N:
        raise UnsupportedShapeError(
            f"{_OP}: logits has shape {x.shape}; expected [R, N] with R up to {_MAX_ROWS} and N "
            f"from 1 to {_MAX_N}"
        )
    rows, n = x.shape
    distance = row_stride(_OP, x)
    out_view = packed_view(_OP, "out", out, "int32", (rows,))
    state = workspace_view(_OP, workspace, argmax_workspace_bytes(rows))
    read = [x]
    if id_map is not None:
        read.append(packed_view(_OP, "id_map", id_map, "int32", (n,)))
    for tensor in read:
        no_overlap(_OP, out_view, tensor)
        no_overlap(_OP, state, tensor)
    no_overlap(_OP, out_view, state)

    require_cuda(_OP)
    device = common_device(_OP, *read, out_view, state)
    require_cuda(_OP, device)
    _native.argmax(
        x.pointer,
        0 if id_map is None else read[1].pointer,
        out_view.pointer,
        state.pointer,
        rows=rows,
        n=n,
        row_stride=distance,
        dtype=DTYPE_CODES[x.dtype],
        device=device,
        stream=stream_handle(_OP, stream, logits, device),
    )
    return out
