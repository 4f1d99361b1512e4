"""The checked front of sampled acceptance (csrc/speculative_sample.h)."""

from typing import Any, TypeVar

from bytebound_kernels import _native
from bytebound_kernels._check import (
    check_integer,
    common_device,
    no_overlap,
    packed_view,
    workspace_view,
)
from bytebound_kernels._device import require_cuda
from bytebound_kernels._stream import stream_handle
from bytebound_kernels.errors import InvalidArgumentError, UnsupportedShapeError
from bytebound_kernels.ops.speculative_accept.op import cycle_views

__all__ = ["speculative_sample", "speculative_sample_workspace_bytes"]

_OP = "speculative_sample"
_MAX_N = 2**22
_SLICE = 2048  # ids of one block

TensorT = TypeVar("TensorT")


def speculative_sample_workspace_bytes(n: int) -> int:
    """Return the bytes of workspace for a vocabulary of N ids.

    Raises:
        InvalidArgumentError: n is no integer of 0 or more.
    """
    n = check_integer("speculative_sample_workspace_bytes", "n", n, 0)
    return 16 + -(-n // _SLICE) * 8


def speculative_sample(
    weights: Any,
    totals: Any,
    drafts: Any,
    *,
    seed: Any,
    cycle: TensorT,
    workspace: Any,
    draft_weights: Any = None,
    draft_totals: Any = None,
    output: Any = None,
    stream: Any = None,
) -> TensorT:
    """Accept guesses so that every token is distributed as the target says, and commit the cycle.

    Formula, with position = cycle[CYCLE_POSITION] before the call:
        p_i = weights[i] / totals[i]
        q_i = draft_weights[i] / draft_totals[i], or 1 at drafts[i] and 0 elsewhere
        draft i stands if all before it do and
            philox(seed, position + i, ACCEPT) < p_i[drafts[i]] / q_i[drafts[i]]
        j = the number of drafts that stand
        next = a draw from max(0, p_j - q_j) with philox(seed, position + j, RESIDUAL) if j < R - 1
        next = a draw from p_j with philox(seed, position + j, TARGET)                  if j = R - 1

    What the cycle and the output then hold is what speculative_accept says, with next in the place
    of ids[j]. The weights are those of sample(): with a temperature of 0 this is the greedy rule.

    Args:
        weights: float64 [R, N], contiguous, on a CUDA device; R from 1 to 32.
        totals: float64 [R].
        drafts: int32 [R - 1]; None at R = 1. A draft outside 0 .. N-1 is refused.
        seed: int64 [1], the bits of the request's seed.
        cycle: int32 [CYCLE_HEADER + R].
        workspace: uint8, speculative_sample_workspace_bytes(N) or more, aligned to 16 bytes. Fill
            it with zeros once.
        draft_weights: float64 [R - 1, N], what each draft was drawn from; None: drafts that were
            not drawn, such as those of a lookup.
        draft_totals: float64 [R - 1], with draft_weights.
        output: int32 [capacity], a ring of the emitted ids with capacity >= R; None: none is kept.
        stream: a stream handle as an integer, or a PyTorch or CuPy stream. None: the stream that is
            current in the framework of cycle.

    Returns:
        cycle. The kernel is enqueued, not awaited.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        UnsupportedTensorError: an argument is no tensor.
        UnsupportedDtypeError: a dtype has no kernel.
        UnsupportedShapeError: a shape does not fit, or the workspace is too small.
        UnsupportedLayoutError: a tensor is not contiguous or not aligned, or a result overlaps
            another tensor.
        UnsupportedDeviceError: host memory, or more than one device.
        InvalidArgumentError: draft_weights without draft_totals or the reverse; stream.
        CudaError: the launch failed.

    Numerics: float64; running sums by blocks of 2048 ids, so a draw can differ from one that adds
    id after id where the limit is within about 1e-16 of a running sum. The token is -1 where the
    distribution has no finite sum above 0, as after a row with NaN.

    Source: csrc/speculative_sample.cu.
    """
    w = packed_view(_OP, "weights", weights, "float64", (None, None))
    rows, n = w.shape
    if not 1 <= n <= _MAX_N:
        raise UnsupportedShapeError(
            f"{_OP}: weights has shape {w.shape}; expected [R, N] with N from 1 to {_MAX_N}"
        )
    written = cycle_views(_OP, cycle, output, rows)
    written.append(
        workspace_view(_OP, workspace, speculative_sample_workspace_bytes(n)),
    )
    if (draft_weights is None) != (draft_totals is None):
        raise InvalidArgumentError(
            f"{_OP}: got one of draft_weights and draft_totals; expected both or neither"
        )
    read = {
        "weights": w,
        "totals": packed_view(_OP, "totals", totals, "float64", (rows,)),
        "seed": packed_view(_OP, "seed", seed, "int64", (1,)),
    }
    if drafts is not None or rows > 1:
        read["drafts"] = packed_view(_OP, "drafts", drafts, "int32", (rows - 1,))
    if draft_weights is not None:
        read["draft_weights"] = packed_view(
            _OP, "draft_weights", draft_weights, "float64", (rows - 1, n)
        )
        read["draft_totals"] = packed_view(
            _OP, "draft_totals", draft_totals, "float64", (rows - 1,)
        )
    for i, result in enumerate(written):
        for tensor in (*read.values(), *written[:i]):
            no_overlap(_OP, result, tensor)

    require_cuda(_OP)
    device = common_device(_OP, *read.values(), *written)
    require_cuda(_OP, device)

    def pointer(name: str) -> int:
        return read[name].pointer if name in read else 0

    _native.speculative_sample(
        pointer("weights"),
        pointer("totals"),
        pointer("drafts"),
        pointer("draft_weights"),
        pointer("draft_totals"),
        pointer("seed"),
        written[0].pointer,
        0 if output is None else written[1].pointer,
        written[-1].pointer,
        rows=rows,
        n=n,
        capacity=0 if output is None else written[1].shape[0],
        device=device,
        stream=stream_handle(_OP, stream, cycle, device),
    )
    return cycle
