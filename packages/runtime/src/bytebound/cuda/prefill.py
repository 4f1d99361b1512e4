"""A pass of many rows: a chunk of a prompt. It commits all its rows to the state.

The same layers as in ``step.py``, by kernels made for many rows; a row's bits may depend on how the
prompt is cut. Activations come from PyTorch's allocator, so they are bounded by the chunk.
"""

from dataclasses import dataclass

import bytebound_kernels as bk
import torch
from bytebound_kernels import prefill as many

from bytebound.config import ModelConfig
from bytebound.cuda.buffers import split_qkv
from bytebound.cuda.matrices import SWIGLU_SCALE, Workspaces
from bytebound.cuda.state import GatedDeltaState, KvCache, LayerState, SequenceState
from bytebound.cuda.step import delta_rows
from bytebound.cuda.weights import (
    AttentionWeights,
    GatedDeltaWeights,
    LayerWeights,
    MlpWeights,
    ModelWeights,
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """What the layers of a pass share."""

    config: ModelConfig
    workspaces: Workspaces
    inv_freq: torch.Tensor  # float32 [rotary_dim / 2]
    dtype: torch.dtype  # of the activations
    start: int  # position of row 0

    def forward(
        self, ids: torch.Tensor, weights: ModelWeights, state: SequenceState
    ) -> torch.Tensor:
        """Ids int32 [T] to hidden [T, D] after the final norm."""
        x = embed(ids, weights, torch.float32)
        for layer, layer_state in zip(weights.layers, state.layers, strict=True):
            self.layer(x, layer, layer_state)
        return self.norm(x, weights.norm)

    def layer(self, x: torch.Tensor, weights: LayerWeights, state: LayerState) -> None:
        """``x += mixer(norm(x))``, then ``x += mlp(norm(x))``; x float32 [T, D]."""
        y = self.norm(x, weights.input_layernorm)
        match weights.mixer, state:
            case AttentionWeights() as mixer, KvCache() as kv:
                self._attention(x, y, mixer, kv)
            case GatedDeltaWeights() as mixer, GatedDeltaState() as delta:
                self._gated_delta_net(x, y, mixer, delta)
            case mixer, other:
                raise TypeError(f"{type(mixer).__name__} with {type(other).__name__}")
        self._mlp(x, self.norm(x, weights.post_attention_layernorm), weights.mlp)

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """``x * rsqrt(mean(x^2) + eps) * (1 + weight)`` in float32, rounded once."""
        out = torch.empty_like(x, dtype=self.dtype)
        return bk.rms_norm(x, weight, eps=self.config.rms_norm_eps, out=out)

    def _attention(
        self, x: torch.Tensor, y: torch.Tensor, weights: AttentionWeights, kv: KvCache
    ) -> None:
        qkv = y.new_empty(y.shape[0], weights.qkv.n)
        weights.qkv.matmul(y, qkv, self.workspaces)
        out = many.attention_prefill(
            *split_qkv(qkv, self.config),
            weights.q_norm,
            weights.k_norm,
            self.inv_freq,
            self.start,
            kv.k,
            kv.v,
            k_scale=kv.k_scale,
            v_scale=kv.v_scale,
            eps=self.config.rms_norm_eps,
        )
        weights.o_proj.matmul(out, x, self.workspaces, residual=x)

    def _gated_delta_net(
        self, x: torch.Tensor, y: torch.Tensor, weights: GatedDeltaWeights, state: GatedDeltaState
    ) -> None:
        projected = y.new_empty(y.shape[0], weights.in_proj.n)
        gates = y.new_empty(y.shape[0], weights.gates.n)
        weights.in_proj.matmul(y, projected, self.workspaces)
        weights.gates.matmul(y, gates, self.workspaces)
        rows, z = delta_rows(projected, gates, self.config)
        out = many.gdn_prefill(
            rows.qkv,
            z,
            rows.a,
            rows.b,
            *weights.constants,
            *state.settled,
            eps=self.config.rms_norm_eps,
        )
        weights.out_proj.matmul(out, x, self.workspaces, residual=x)

    def _mlp(self, x: torch.Tensor, y: torch.Tensor, weights: MlpWeights) -> None:
        inner, scale = y.new_empty(y.shape[0], weights.gate_up.n), SWIGLU_SCALE[y.dtype]
        weights.gate_up.matmul(y, inner, self.workspaces, scale=scale)
        weights.down_proj.matmul(inner, x, self.workspaces, residual=x, scale=1 / scale)


def embed(ids: torch.Tensor, weights: ModelWeights, dtype: torch.dtype) -> torch.Tensor:
    """Rows of the table: ids int32 [T] to [T, D] in ``dtype``, that of the table or float32."""
    table = weights.embed_tokens
    out = torch.empty(ids.shape[0], table.shape[1], dtype=dtype, device=table.device)
    return bk.embedding_gather(ids, table, out=out)
