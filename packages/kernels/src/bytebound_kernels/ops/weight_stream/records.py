"""The ops that a weight stream is made of: records of tensors, in the order in which they run.

Every tensor of rows has MAX_ROWS rows, of which a launch takes the first ``rows``. The elements of
a row are adjacent, and rows lie at any one distance that keeps the alignment that is asked for.
"""

from typing import Any, NamedTuple

from bytebound_kernels.ops.gdn_step import GdnPending, GdnRows, GdnState, GdnWeights

__all__ = [
    "MAX_ROWS",
    "STREAM_MAX_OPS",
    "STREAM_OP_BYTES",
    "StreamAttention",
    "StreamEmbedding",
    "StreamGatedDelta",
    "StreamGates",
    "StreamNorm",
    "StreamOp",
    "StreamProduct",
    "StreamReplay",
]

# As in csrc/weight_stream.h.
MAX_ROWS = 8
STREAM_MAX_OPS = 4096  # of one launch
STREAM_OP_BYTES = 512  # of the table of a program, for each op


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


class StreamEmbedding(NamedTuple):
    """Rows of an embedding table by id, as of ``embedding_gather``.

    Formula:
        out[r] = table[ids[r]], NaN for an id outside the table

    Attributes:
        ids: int32 [8], contiguous; from before the launch.
        table: [N, D] float16, contiguous, aligned to 16 bytes, D a multiple of 8.
        out: [8, D] float32, rows aligned to 16 bytes.
    """

    ids: Any
    table: Any
    out: Any


class StreamAttention(NamedTuple):
    """Gated attention to a cache, which the rows of this pass extend, as of ``attention_decode``.

    The rows of the norm before are gone behind it: its place in shared memory is theirs.

    Attributes:
        q_gate: [8, NH * 2 * 256] float16, per head the query and then the gate; rows of the
            three tensors are aligned to 16 bytes.
        k: [8, NKV * 256] float16.
        v: [8, NKV * 256] float16.
        q_norm: [256] float16 or float32, contiguous.
        k_norm: [256], likewise.
        inv_freq: float32 [rotary_dim / 2], a multiple of 8 of them.
        position: int32 of one element, on the device: of row 0. Out of range, the result is NaN and
            nothing is appended.
        k_cache: [NKV, S, 256] float16, bfloat16 or float8_e4m3fn, as in ``attention_decode``.
        v_cache: likewise.
        workspace: uint8, attention_decode_workspace_bytes(8, NH, S), aligned to 256 bytes. Two of
            these ops may have one, if a product of the first one's out and a norm of that product's
            lie between them.
        arrived: int32 of one element, every bit of which is set before each launch: it counts
            leaves.
        out: [8, NH * 256] float16.
        k_scale: float32 [NKV, S] where the cache is float8_e4m3fn.
        v_scale: likewise.
        eps: of the two norms.
        scale: of the scores.
    """

    q_gate: Any
    k: Any
    v: Any
    q_norm: Any
    k_norm: Any
    inv_freq: Any
    position: Any
    k_cache: Any
    v_cache: Any
    workspace: Any
    arrived: Any
    out: Any
    k_scale: Any = None
    v_scale: Any = None
    eps: float = 1e-6
    scale: float = 256**-0.5


StreamOp = (
    StreamEmbedding
    | StreamNorm
    | StreamGates
    | StreamProduct
    | StreamReplay
    | StreamGatedDelta
    | StreamAttention
)
