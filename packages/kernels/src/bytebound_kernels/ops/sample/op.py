"""The checked front of the sampling kernels (csrc/sample.h)."""

from enum import IntEnum
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
from bytebound_kernels.errors import InvalidArgumentError, UnsupportedShapeError

__all__ = ["Purpose", "sample", "sample_workspace_bytes"]

_OP = "sample"
_MAX_ROWS = 65535  # one dimension of the grid
_MAX_N = 2**22
_SETTINGS = 4
_SLICE = 2048  # ids of one block
_STATE_BYTES = 96  # RowState in csrc/sample.cu
_HISTOGRAM_BYTES = 2048 * (4 + 8 + 8)

TensorT = TypeVar("TensorT")


class Purpose(IntEnum):
    """What the random number at one position is for, as in csrc/cuda/philox.cuh."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


def sample_workspace_bytes(rows: int, n: int) -> int:
    """Return the bytes of workspace for R rows of N logits.

    Raises:
        InvalidArgumentError: one of them is no integer of 0 or more.
    """
    rows, n = (
        check_integer("sample_workspace_bytes", name, value, 0)
        for name, value in (("rows", rows), ("n", n))
    )
    bytes_of_slices = -(-n // _SLICE) * 8
    return rows * -(-(_STATE_BYTES + _HISTOGRAM_BYTES + bytes_of_slices) // 16) * 16


def sample(
    logits: Any,
    settings: Any,
    *,
    seed: Any,
    position: Any,
    out: TensorT,
    workspace: Any,
    weights: Any = None,
    totals: Any = None,
    position_offset: int = 0,
    purpose: int = Purpose.TARGET,
    with_top_k: bool = True,
    with_top_p: bool = True,
    stream: Any = None,
) -> TensorT:
    """Draw one id from each row of logits with the random numbers of its position, on the GPU.

    Formula:
        w(i) = exp((logits[r, i] - max_j(logits[r, j])) / temperature)
        w(i) = 0 unless i is among the top_k highest logits
        w(i) = 0 unless the weights of the ids in front of i add up to less than top_p of them all
        w(i) = 0 unless w(i) >= min_p
        u = philox(seed, position + position_offset + r, purpose)
        out[r] = the lowest id whose running sum of w, in id order, is above u * sum(w)

    Equal logits are in the order of their ids. A temperature of 0 is greedy: the lowest id with the
    highest logit. out[r] is -1, and the weights and the total of the row are NaN, where its highest
    logit is NaN or infinite.

    Args:
        logits: float32 [R, N], on a CUDA device; rows at any one distance.
        settings: float64 [4]: temperature, top_k, top_p, min_p; 0, 1 and 0 switch the last three
            off. They are in device memory, so that one captured graph serves all requests, and are
            not checked.
        seed: int64 [1], the bits of the request's seed.
        position: int32 [1], of the token that row 0 chooses less position_offset.
        out: int32 [R].
        workspace: uint8, sample_workspace_bytes(R, N) or more, aligned to 16 bytes. Fill it with
            zeros once, and again before it serves another N.
        weights: float64 [R, N], receives w; None: they are not kept.
        totals: float64 [R], receives the sum of w of each row, so w / total are probabilities;
            None: they are not kept.
        position_offset: 0 or more.
        purpose: which of the position's numbers.
        with_top_k: False promises that settings ask for no top_k, and saves three launches.
        with_top_p: False promises that settings ask for no top_p, and saves three launches.
        stream: a stream handle as an integer, or a PyTorch or CuPy stream. None: the stream that is
            current in the framework of logits.

    Returns:
        out. The kernels are enqueued, not awaited.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        UnsupportedTensorError: an argument is no tensor.
        UnsupportedDtypeError: a dtype has no kernel.
        UnsupportedShapeError: a shape does not fit, or the workspace is too small.
        UnsupportedLayoutError: strides that no row distance describes, a tensor that is not
            contiguous or not aligned, or a result that overlaps another tensor.
        UnsupportedDeviceError: host memory, or more than one device.
        InvalidArgumentError: position_offset, purpose or stream.
        CudaError: a launch failed.

    Numerics: float64; a row's answer depends on that row alone and is the same in every run. Which
    ids top_p keeps is decided on exact sums of weights rounded to 2^-60; the running sums of the
    draw are added by blocks of 2048 ids. A sampler that adds one id after the other differs where
    its sum rounds to the other side of a limit, about 1e-16 of the total away.

    Source: csrc/sample.cu.
    """
    x = view(_OP, "logits", logits, ("float32",))
    if len(x.shape) != 2 or x.shape[0] > _MAX_ROWS or not 1 <= x.shape[1] <= _MAX_N:
        raise UnsupportedShapeError(
            f"{_OP}: logits has shape {x.shape}; expected [R, N] with R up to {_MAX_ROWS} and N "
            f"from 1 to {_MAX_N}"
        )
    rows, n = x.shape
    distance = row_stride(_OP, x)
    read = [
        x,
        packed_view(_OP, "settings", settings, "float64", (_SETTINGS,)),
        packed_view(_OP, "seed", seed, "int64", (1,)),
        packed_view(_OP, "position", position, "int32", (1,)),
    ]
    position_offset = check_integer(_OP, "position_offset", position_offset)
    if not 0 <= position_offset < 2**31:
        raise InvalidArgumentError(
            f"{_OP}: position_offset is {position_offset}; expected 0 to {2**31 - 1}"
        )
    if purpose not in tuple(Purpose):
        raise InvalidArgumentError(f"{_OP}: purpose is {purpose}; expected 0 to {max(Purpose)}")
    written = [
        packed_view(_OP, "out", out, "int32", (rows,)),
        workspace_view(_OP, workspace, sample_workspace_bytes(rows, n)),
    ]
    weights_pointer = totals_pointer = 0
    if weights is not None:
        written.append(packed_view(_OP, "weights", weights, "float64", (rows, n)))
        weights_pointer = written[-1].pointer
    if totals is not None:
        written.append(packed_view(_OP, "totals", totals, "float64", (rows,)))
        totals_pointer = written[-1].pointer
    for i, result in enumerate(written):
        for tensor in (*read, *written[:i]):
            no_overlap(_OP, result, tensor)

    require_cuda(_OP)
    device = common_device(_OP, *read, *written)
    require_cuda(_OP, device)
    _native.sample(
        x.pointer,
        read[1].pointer,
        read[2].pointer,
        read[3].pointer,
        written[0].pointer,
        weights_pointer,
        totals_pointer,
        written[1].pointer,
        rows=rows,
        n=n,
        row_stride=distance,
        position_offset=position_offset,
        purpose=int(purpose),
        with_top_k=bool(with_top_k),
        with_top_p=bool(with_top_p),
        device=device,
        stream=stream_handle(_OP, stream, logits, device),
    )
    return out
