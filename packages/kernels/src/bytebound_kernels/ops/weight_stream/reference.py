"""The definition of the weight stream that the kernel is tested against: op after op."""

from collections.abc import Sequence
from typing import Any

from bytebound_kernels.ops.attention_decode import attention_decode_reference
from bytebound_kernels.ops.embedding_gather import embedding_gather_reference
from bytebound_kernels.ops.gdn_step import (
    GdnRows,
    GdnState,
    gdn_replay_reference,
    gdn_step_reference,
    gdn_updates_reference,
)
from bytebound_kernels.ops.rms_norm import rms_norm_reference
from bytebound_kernels.ops.w4_matvec import w4_matvec_reference
from bytebound_kernels.ops.weight_stream.records import (
    StreamAttention,
    StreamEmbedding,
    StreamGatedDelta,
    StreamGates,
    StreamNorm,
    StreamOp,
    StreamProduct,
    StreamReplay,
)

__all__ = ["weight_stream_reference"]


def weight_stream_reference(ops: Sequence[StreamOp], *, rows: int) -> None:
    """Run the ops on the first ``rows`` rows, each through the reference of its single op.

    Args:
        ops: records of PyTorch tensors, on any device; out, caches and the recurrent states are
            written, so that later ops read what earlier ones wrote.
        rows: R.

    Numerics: a norm in float32; products, gates, attention and the delta rule in float64;
    each result is rounded to the dtype of its tensor, and the rows that a norm leaves to float16.
    """
    import torch

    normed: Any = None
    for op in ops:
        if isinstance(op, StreamNorm):
            normed = rms_norm_reference(op.x[:rows], op.weight, eps=op.eps).to(torch.float16)
            if op.out is not None:
                op.out[:rows] = normed
        elif isinstance(op, StreamGates):
            op.out[:rows] = (normed.double() @ op.weight.double().T).to(op.out.dtype)
        elif isinstance(op, StreamProduct):
            x = normed if op.x is None else op.x[:rows]
            residual = None if op.residual is None else op.residual[:rows]
            product = w4_matvec_reference(x, op.weight, residual=residual, scale=op.scale)
            op.out[:rows] = product.to(op.out.dtype)
        elif isinstance(op, StreamEmbedding):
            op.out[:rows] = embedding_gather_reference(op.ids[:rows], op.table, dtype=op.out.dtype)
        elif isinstance(op, StreamAttention):
            normed = None
            _attend(op, rows)
        elif isinstance(op, StreamReplay):
            _replay(op.delta)
        else:
            _step(op, rows)


def _attend(op: StreamAttention, rows: int) -> None:
    position = int(op.position)
    if not 0 <= position <= op.k_cache.shape[1] - rows:
        op.out[:rows] = float("nan")
        return
    attended = attention_decode_reference(
        op.q_gate[:rows],
        op.k[:rows],
        op.v[:rows],
        op.q_norm,
        op.k_norm,
        op.inv_freq,
        position,
        op.k_cache,
        op.v_cache,
        k_scale=op.k_scale,
        v_scale=op.v_scale,
        eps=op.eps,
        scale=op.scale,
    )
    op.out[:rows] = attended.to(op.out.dtype)


def _num_accepted(op: StreamGatedDelta) -> int:
    return min(max(int(op.num_accepted), 0), len(op.pending.qkv))


def _replay(op: StreamGatedDelta) -> None:
    count = _num_accepted(op)
    if count == 0:
        return
    before = GdnState(op.state.conv_window, op.state.recurrent.double())
    op.state.recurrent.copy_(gdn_replay_reference(op.pending, count, before).recurrent)


def _step(op: StreamGatedDelta, rows: int) -> None:
    """The state has taken in the accepted pending rows, the window has not."""
    import torch

    count = _num_accepted(op)
    inputs = torch.cat((op.state.conv_window, op.pending.qkv[:count].T), dim=1)
    state = GdnState(inputs[:, -3:], op.state.recurrent.double())
    current = GdnRows(*(tensor[:rows] for tensor in op.rows))
    out, _ = gdn_step_reference(current, op.z[:rows], op.weights, state, eps=op.eps)
    op.out[:rows] = out.to(op.out.dtype)
    updates = gdn_updates_reference(current, op.weights, state).updates
    hv = op.state.recurrent.shape[0]
    used = updates.shape[1] - -hv % 4  # the kernel leaves what fills a row up
    op.updates[:rows, :used] = updates[:, :used]
