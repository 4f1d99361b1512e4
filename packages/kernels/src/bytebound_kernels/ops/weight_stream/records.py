"""The ops that a weight stream is made of: records of tensors, in the order in which they run.

Every tensor of rows has MAX_ROWS rows, of which a launch takes the first ``rows``. The elements of
a row are adjacent, and rows lie at any one distance that keeps the alignment that is asked for.
"""

from typing import Any, NamedTuple

from bytebound_kernels.ops.gdn_step import GdnPending, GdnRows, GdnState, GdnWeights

__all__ = [
    "MAX_ROWS",
    "STREAM_MAX_OPS",
    "StreamGatedDelta",
    "StreamGates",
    "StreamNorm",
    "StreamOp",
    "StreamProduct",
    "StreamReplay",
]

# As in csrc/weight_stream.h.
MAX_ROWS = 8
STREAM_MAX_OPS = 36  # of one launch


class StreamNorm(NamedTuple):
    """RMSNorm of a residual: the rows that the ops behind it multiply, until the next norm.

    Formula:
        y[r, i] = x[r, i] * rsqrt(mean_i(x[r, i]^2) + eps) * (1 + weight[i]), rounded to float16

    Attributes:
        x: [8, D] float32, D a multiple of 128 up to 8192; rows aligned to 16 bytes.
        weight: [D] float32, contiguous, aligned to 16 bytes.
        out: [8, D] float16, rows aligned to 8 bytes: y for readers behind the launch. None: only
            the ops behind the norm want it.
        eps: added to the mean square; 0 or more.
    """

    x: Any
    weight: Any
    out: Any = None
    eps: float = 1e-6


class StreamGates(NamedTuple):
    """A small 16-bit matrix times the rows of the norm before, as of ``rms_norm_project``.

    Formula:
        out[r, n] = sum_i y[r, i] * weight[n, i]

    Attributes:
        weight: [N, D] float16, contiguous, aligned to 16 bytes, N from 1 to 4096; D as of the norm.
        out: [8, N] float16.
    """

    weight: Any
    out: Any


class StreamProduct(NamedTuple):
    """A product as of ``w4_matvec``.

    Formula:
        p = x W^T
        scale * p;  residual + scale * p;  or scale * silu(p_gate) * p_up for an interleaved weight

    Attributes:
        weight: PackedW4 [N, K]; all of a launch are symmetric, or all asymmetric.
        out: [8, N] float16 or float32.
        x: [8, K] float16, rows aligned to 16 bytes; None: the rows of the norm before, of D = K.
        residual: [8, N] float32, with a float32 out. It is complete when the op begins: from before
            the launch, or the x of an earlier norm.
        scale: as in ``w4_matvec``.
    """

    weight: Any
    out: Any
    x: Any = None
    residual: Any = None
    scale: float = 1.0


class StreamGatedDelta(NamedTuple):
    """The rows of this pass through a Gated DeltaNet layer, as ``gdn_step`` verifies them.

    State and window stay as they are. The state has taken in the accepted pending rows already, by
    the ``StreamReplay`` of this step, here or in an earlier launch. Not so the window: ``gdn_keep``
    moves it and the pending rows on, behind all the launches of a pass.

    Attributes:
        rows: qkv [8, C], a and b [8, HV] of this pass, float16; qkv's rows aligned to 4 bytes.
        z: [8, HV * 128] float16, rows aligned to 4 bytes.
        weights: GdnWeights, conv float16; conv and norm aligned to 16 bytes.
        state: GdnState, conv_window float16, recurrent aligned to 16 bytes.
        pending: GdnPending of the pass before, 1 to 8 rows, qkv float16.
        num_accepted: int32 of one element, on the device; values beyond 0 and the number of pending
            rows count as the nearest of the two.
        out: [8, HV * 128] float16, rows aligned to 4 bytes.
        updates: [8, W] float32, rows aligned to 16 bytes: the updates of this pass's rows.
        eps: of the norm; 0 or more.
    """

    rows: GdnRows
    z: Any
    weights: GdnWeights
    state: GdnState
    pending: GdnPending
    num_accepted: Any
    out: Any
    updates: Any
    eps: float = 1e-6


class StreamReplay(NamedTuple):
    """Takes the accepted pending rows of a Gated DeltaNet step into its recurrent state.

    It needs nothing of this pass: placed before a norm, it runs while blocks wait for its rows.

    Attributes:
        delta: the step, of which rows, z, out and updates are not touched.
    """

    delta: StreamGatedDelta


StreamOp = StreamNorm | StreamGates | StreamProduct | StreamReplay | StreamGatedDelta
