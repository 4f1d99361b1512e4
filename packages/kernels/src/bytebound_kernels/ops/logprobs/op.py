"""The checked front of the log-probability kernel (csrc/logprobs.h)."""

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
from bytebound_kernels._tensor import view
from bytebound_kernels.errors import UnsupportedShapeError

__all__ = ["logprobs", "logprobs_workspace_bytes"]

_OP = "logprobs"
_MAX_ROWS = 65535  # one dimension of the grid
_MAX_N = 2**22
_MAX_TOP = 20
_SLICE = 2048  # ids of one block

TensorT = TypeVar("TensorT")


def logprobs_workspace_bytes(rows: int, n: int, num_top: int) -> int:
    """Return the bytes of workspace for R rows of N logits and this many of the likeliest ids.

    Raises:
        InvalidArgumentError: one of them is no integer of 0 or more.
    """
    rows, n, num_top = (
        check_integer("logprobs_workspace_bytes", name, value, 0)
        for name, value in (("rows", rows), ("n", n), ("num_top", num_top))
    )
    return rows * (16 + -(-n // _SLICE) * (16 + 8 * num_top))


def logprobs(
    logits: Any,
    ids: Any,
    *,
    out_values: TensorT,
    out_ids: Any,
    workspace: Any,
    stream: Any = None,
) -> TensorT:
    """Compute log_softmax at one id of each row and at the likeliest ids, on the GPU.

    Formula:
        value(r, i) = logits[r, i] - log(sum_j(exp(logits[r, j])))
        out_values[r, 0] = value(r, ids[r]), out_ids[r, 0] = ids[r]
        out_values[r, k] = value(r, i) and out_ids[r, k] = i, the k-th likeliest, for k from 1 to n

    Args:
        logits: float32 [R, N], on a CUDA device; rows at any one distance.
        ids: int32 [R].
        out_values: float64 [R, 1 + n], n from 0 to 20 and at most N.
        out_ids: int32 [R, 1 + n].
        workspace: uint8, logprobs_workspace_bytes(R, N, n) or more, aligned to 16 bytes. Fill it
            with zeros once, and again before it serves another R, N or n.
        stream: a stream handle as an integer, or a PyTorch or CuPy stream. None: the stream that is
            current in the framework of logits.

    Returns:
        out_values. The kernel is enqueued, not awaited.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        UnsupportedTensorError: an argument is no tensor.
        UnsupportedDtypeError: a dtype has no kernel.
        UnsupportedShapeError: a shape does not fit, or the workspace is too small.
        UnsupportedLayoutError: strides that no row distance describes, a tensor that is not
            contiguous or not aligned, or results that overlap another tensor.
        UnsupportedDeviceError: host memory, or more than one device.
        InvalidArgumentError: stream.
        CudaError: the launch failed.

    Numerics: float64, summed in an order that depends on N alone. Equal logits come in the order of
    their ids. A row with NaN or +infinity, or with nothing but -infinity, gives NaN values and the
    id -1 for each of the likeliest; an id outside 0 .. N-1 has the value NaN.

    Source: csrc/logprobs.cu.
    """
    x = view(_OP, "logits", logits, ("float32",))
    if len(x.shape) != 2 or x.shape[0] > _MAX_ROWS or not 1 <= x.shape[1] <= _MAX_N:
        raise UnsupportedShapeError(
            f"{_OP}: logits has shape {x.shape}; expected [R, N] with R up to {_MAX_ROWS} and N "
            f"from 1 to {_MAX_N}"
        )
    rows, n = x.shape
    distance = row_stride(_OP, x)
    id_view = packed_view(_OP, "ids", ids, "int32", (rows,))
    value_view = packed_view(_OP, "out_values", out_values, "float64", (rows, None))
    num_top = value_view.shape[1] - 1
    most = min(n, _MAX_TOP)
    if not 0 <= num_top <= most:
        raise UnsupportedShapeError(
            f"{_OP}: out_values has shape {value_view.shape}; expected [R, 1 + n] with n from 0 to "
            f"{most}"
        )
    out_id_view = packed_view(_OP, "out_ids", out_ids, "int32", (rows, 1 + num_top))
    state = workspace_view(_OP, workspace, logprobs_workspace_bytes(rows, n, num_top))
    written = [value_view, out_id_view, state]
    for i, result in enumerate(written):
        for tensor in (x, id_view, *written[:i]):
            no_overlap(_OP, result, tensor)

    require_cuda(_OP)
    device = common_device(_OP, x, id_view, *written)
    require_cuda(_OP, device)
    _native.logprobs(
        x.pointer,
        id_view.pointer,
        value_view.pointer,
        out_id_view.pointer,
        state.pointer,
        rows=rows,
        n=n,
        row_stride=distance,
        num_top=num_top,
        device=device,
        stream=stream_handle(_OP, stream, logits, device),
    )
    return out_values
