"""The wiring of the model: embedding, decoder layers, final norm, output head."""

import torch
from torch.nn.functional import linear, silu

from bytebound.config import ModelConfig
from bytebound.reference.attention import gated_attention
from bytebound.reference.gated_delta import gated_delta_net
from bytebound.reference.norm import rms_norm
from bytebound.reference.rotary import rotary_angles
from bytebound.reference.rows import Rows
from bytebound.reference.state import KvCache, LayerState, SequenceState
from bytebound.weights import (
    AttentionWeights,
    GatedDeltaWeights,
    LayerWeights,
    MlpWeights,
    ModelWeights,
)


def forward(
    ids: torch.Tensor,
    weights: ModelWeights,
    config: ModelConfig,
    state: SequenceState,
    rows: Rows,
) -> torch.Tensor:
    """One pass: ids [count] from position ``rows.start`` -> hidden [size, D], normed."""
    x = weights.embed_tokens[rows.place(ids)]
    angles = rotary_angles(rows.positions(x.device), config)
    for layer, layer_state in zip(weights.layers, state.layers, strict=True):
        x = decoder_layer(x, layer, config, layer_state, rows, angles)
    return rms_norm(x, weights.norm, config.rms_norm_eps)


def decoder_layer(
    x: torch.Tensor,
    weights: LayerWeights,
    config: ModelConfig,
    state: LayerState,
    rows: Rows,
    angles: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """``x + mixer(norm(x))``, then ``x + mlp(norm(x))``; x [size, D]."""
    y = rms_norm(x, weights.input_layernorm, config.rms_norm_eps)
    match weights.mixer, state:
        case AttentionWeights() as mixer, KvCache() as kv:
            x = x + gated_attention(y, mixer, config, kv, rows, angles)
        case GatedDeltaWeights() as mixer, recurrent if not isinstance(recurrent, KvCache):
            x = x + gated_delta_net(y, mixer, config, recurrent, rows)
        case mixer, other:
            raise TypeError(f"{type(mixer).__name__} with {type(other).__name__}")
    y = rms_norm(x, weights.post_attention_layernorm, config.rms_norm_eps)
    return x + mlp(y, weights.mlp)


def mlp(x: torch.Tensor, weights: MlpWeights) -> torch.Tensor:
    """SwiGLU: ``down(silu(gate(x)) * up(x))``, [T, D] -> [T, D]."""
    return linear(
        silu(linear(x, weights.gate_proj)) * linear(x, weights.up_proj), weights.down_proj
    )


def logits(hidden: torch.Tensor, weights: ModelWeights) -> torch.Tensor:
    """Output head: hidden [T, D] after the final norm -> fp32 [T, vocab]."""
    return linear(hidden, weights.lm_head).float()
