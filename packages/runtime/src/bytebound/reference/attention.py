"""Gated full attention: qk-norm, partial rotary, causal softmax over the cache, sigmoid gate.

q, gate = q_proj(x)            [T, NH, 2*DH] split per head
out = o_proj(softmax(q k^T / sqrt(DH)) v * sigmoid(gate))
"""

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from bytebound.config import ModelConfig
from bytebound.reference.norm import rms_norm
from bytebound.reference.rotary import rotate
from bytebound.reference.rows import Rows
from bytebound.reference.state import KvCache
from bytebound.weights import AttentionWeights


def gated_attention(
    x: torch.Tensor,
    weights: AttentionWeights,
    config: ModelConfig,
    kv: KvCache,
    rows: Rows,
    angles: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """One attention mixer over the rows of a pass; appends their keys and values to ``kv``.

    ``x`` [size, D] normalised input, returns [size, D]. Dead slots of a decode window come back as
    zeros of the mixer.
    """
    heads, kv_heads, head_dim = (
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
    )
    q, gate = linear(x, weights.q_proj).view(-1, heads, 2 * head_dim).chunk(2, dim=-1)
    k = linear(x, weights.k_proj).view(-1, kv_heads, head_dim)
    v = linear(x, weights.v_proj).view(-1, kv_heads, head_dim)
    q = rotate(rms_norm(q, weights.q_norm, config.rms_norm_eps), angles)
    k = rotate(rms_norm(k, weights.k_norm, config.rms_norm_eps), angles)
    attend = _attend_wide if rows.wide else _attend_window
    out = attend(q, k, v, kv, rows)
    out = out * torch.sigmoid(gate)
    return linear(out.reshape(-1, heads * head_dim), weights.o_proj)


def _attend_wide(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv: KvCache, rows: Rows
) -> torch.Tensor:
    """All rows at once: row t of the pass sees positions ``0 .. start+t``. Returns [T, NH, DH]."""
    stop = rows.start + rows.count
    kv.k[:, rows.start : stop] = k.transpose(0, 1)
    kv.v[:, rows.start : stop] = v.transpose(0, 1)
    visible = torch.ones(rows.count, stop, dtype=torch.bool, device=q.device).tril(rows.start)
    out = scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        kv.k[None, :, :stop],
        kv.v[None, :, :stop],
        attn_mask=visible,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)


def _attend_window(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv: KvCache, rows: Rows
) -> torch.Tensor:
    """Row by row over the live length: each reduction is its own. Returns [WINDOW, NH, DH]."""
    out = torch.zeros_like(q)
    for position, slot in enumerate(rows.slots, start=rows.start):
        kv.k[:, position] = k[slot]
        kv.v[:, position] = v[slot]
        out[slot] = scaled_dot_product_attention(
            q[slot][None, :, None],
            kv.k[None, :, : position + 1],
            kv.v[None, :, : position + 1],
            enable_gqa=True,
        )[0, :, 0]
    return out
