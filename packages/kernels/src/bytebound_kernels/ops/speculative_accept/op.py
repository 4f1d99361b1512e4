"""The checked front of greedy acceptance (csrc/speculative_accept.h)."""

from typing import Any, TypeVar

from bytebound_kernels import _native
from bytebound_kernels._check import common_device, no_overlap, packed_view
from bytebound_kernels._device import require_cuda
from bytebound_kernels._stream import stream_handle
from bytebound_kernels._tensor import TensorView
from bytebound_kernels.errors import UnsupportedShapeError

__all__ = [
    "CYCLE_HEADER",
    "CYCLE_NEXT_TOKEN",
    "CYCLE_NUM_ACCEPTED",
    "CYCLE_NUM_EMITTED",
    "CYCLE_POSITION",
    "CYCLE_TOTAL_EMITTED",
    "MAX_CYCLE_ROWS",
    "cycle_views",
    "speculative_accept",
]

_OP = "speculative_accept"
_MAX_CAPACITY = 2**30

# The words of a cycle, as in csrc/cycle.h.
CYCLE_POSITION = 0
CYCLE_NEXT_TOKEN = 1
CYCLE_NUM_ACCEPTED = 2
CYCLE_NUM_EMITTED = 3
CYCLE_TOTAL_EMITTED = 4
CYCLE_HEADER = 8
MAX_CYCLE_ROWS = 32

TensorT = TypeVar("TensorT")


def cycle_views(op: str, cycle: Any, output: Any, rows: int) -> list[TensorView]:
    """Check what a cycle writes; return the views of cycle and, where there is one, output.

    Raises:
        UnsupportedShapeError: rows, or a shape that does not fit them.
    """
    if not 1 <= rows <= MAX_CYCLE_ROWS:
        raise UnsupportedShapeError(f"{op}: got {rows} rows; expected 1 to {MAX_CYCLE_ROWS}")
    views = [packed_view(op, "cycle", cycle, "int32", (CYCLE_HEADER + rows,))]
    if output is not None:
        views.append(packed_view(op, "output", output, "int32", (None,)))
        capacity = views[1].shape[0]
        if not rows <= capacity <= _MAX_CAPACITY:
            raise UnsupportedShapeError(
                f"{op}: output holds {capacity} ids; expected {rows}, one cycle's, to "
                f"{_MAX_CAPACITY}"
            )
        no_overlap(op, *views)
    return views


def speculative_accept(
    ids: Any,
    drafts: Any,
    *,
    cycle: TensorT,
    output: Any = None,
    stream: Any = None,
) -> TensorT:
    """Accept the guesses that are the target's own choices, and commit the cycle, on the GPU.

    Formula:
        j = the number of leading i with drafts[i] == ids[i] >= 0
        emitted = ids[0] .. ids[j]

        cycle[CYCLE_POSITION] += j + 1
        cycle[CYCLE_NEXT_TOKEN] = ids[j]
        cycle[CYCLE_NUM_ACCEPTED] = j
        cycle[CYCLE_NUM_EMITTED] = j + 1
        output[(cycle[CYCLE_TOTAL_EMITTED] + i) % len(output)] = ids[i] for i <= j
        cycle[CYCLE_TOTAL_EMITTED] += j + 1
        cycle[CYCLE_HEADER + i] = ids[i] for i <= j, and -1 for the rows behind

    At R = 1 there is no draft, and the op just commits ids[0]. An id of -1, which argmax gives for
    a row with NaN, is emitted as it is and ends the cycle. What ends an answer, such as an end
    token among the emitted ids, is for the caller to look for.

    Args:
        ids: int32 [R], the target's own choice at each row; R from 1 to 32.
        drafts: int32 [R - 1]; None at R = 1.
        cycle: int32 [CYCLE_HEADER + R]. The caller sets CYCLE_POSITION, the position of the token
            that row 0 chooses, and CYCLE_TOTAL_EMITTED before the first cycle.
        output: int32 [capacity], a ring of the emitted ids with capacity >= R; None: none is kept.
        stream: a stream handle as an integer, or a PyTorch or CuPy stream. None: the stream that is
            current in the framework of cycle.

    Returns:
        cycle. The kernel is enqueued, not awaited.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        UnsupportedTensorError: an argument is no tensor.
        UnsupportedDtypeError: a tensor is not int32.
        UnsupportedShapeError: a shape does not fit.
        UnsupportedLayoutError: a tensor is not contiguous, or a result overlaps another tensor.
        UnsupportedDeviceError: host memory, or more than one device.
        InvalidArgumentError: stream.
        CudaError: the launch failed.

    Numerics: integers only.

    Source: csrc/speculative_accept.cu.
    """
    read = [packed_view(_OP, "ids", ids, "int32", (None,))]
    rows = read[0].shape[0]
    written = cycle_views(_OP, cycle, output, rows)
    if drafts is not None or rows > 1:
        read.append(packed_view(_OP, "drafts", drafts, "int32", (rows - 1,)))
    for result in written:
        for tensor in read:
            no_overlap(_OP, result, tensor)

    require_cuda(_OP)
    device = common_device(_OP, *read, *written)
    require_cuda(_OP, device)
    _native.speculative_accept(
        read[0].pointer,
        read[1].pointer if len(read) > 1 else 0,
        written[0].pointer,
        written[1].pointer if len(written) > 1 else 0,
        rows=rows,
        capacity=written[1].shape[0] if len(written) > 1 else 0,
        device=device,
        stream=stream_handle(_OP, stream, cycle, device),
    )
    return cycle
