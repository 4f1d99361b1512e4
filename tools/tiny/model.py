"""The trainable model: transformers' own Qwen3.5 text model plus the family's MTP head.

Contract: `TinyModel.state_dict()` has the family's names (`model.*`, `lm_head.weight`, `mtp.*`).
`forward` gives the trunk's hidden states after the final norm; `draft` unrolls the MTP head with
the attention pattern that drafting has. Nothing here knows about data, losses or schedules.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from kernels import prepare
from torch import nn

prepare()  # before transformers finds fla

from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig  # noqa: E402
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen  # noqa: E402

MAX_LENGTH = 8192


def tiny_config() -> Qwen3_5TextConfig:
    return Qwen3_5TextConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=8,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=256,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=1,
        linear_num_value_heads=3,
        layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 2,
        max_position_embeddings=MAX_LENGTH,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
        attn_implementation="sdpa",
    )


class MtpHead(nn.Module):
    """fc over [norm(embedding), norm(hidden)], one full-attention decoder layer, a norm."""

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        layer_config = Qwen3_5TextConfig(
            **{**config.to_dict(), "layer_types": ["full_attention"], "num_hidden_layers": 1}
        )
        layer_config._attn_implementation = "sdpa"
        size, eps = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding = qwen.Qwen3_5RMSNorm(size, eps=eps)
        self.pre_fc_norm_hidden = qwen.Qwen3_5RMSNorm(size, eps=eps)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layers = nn.ModuleList([qwen.Qwen3_5DecoderLayer(layer_config, 0)])
        self.norm = qwen.Qwen3_5RMSNorm(size, eps=eps)

    def join(self, embedding: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        joined = torch.cat(
            [self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)], dim=-1
        )
        return self.fc(joined)


class TinyModel(nn.Module):
    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        trunk = Qwen3_5ForCausalLM(config)
        self.config = config
        self.model = trunk.model
        self.lm_head = trunk.lm_head
        self.mtp = MtpHead(config)
        for linear in self.mtp.modules():
            if isinstance(linear, nn.Linear):
                nn.init.normal_(linear.weight, std=config.initializer_range)

    def embed(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return self.model.embed_tokens(ids).to(dtype)

    def forward(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """[B, T] ids -> [B, T, D] hidden states after the final norm."""
        return self.model(inputs_embeds=self.embed(ids, dtype), use_cache=False).last_hidden_state

    def rotary(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(like.shape[1], device=like.device).expand(3, 1, -1)
        return self.model.rotary_emb(like, positions)

    def draft_first(self, embedding: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Depth 1 at every p: embedding of token p+1, the trunk's hidden at p -> [B, T, D]."""
        x = self.mtp.join(embedding, hidden)
        x = self.mtp.layers[0](x, position_embeddings=self.rotary(x))
        return self.mtp.norm(x)

    def draft(
        self, embedding: torch.Tensor, hidden: torch.Tensor, depth: int
    ) -> list[torch.Tensor]:
        """Depths 1..depth with the exact key pattern of drafting, attention written out.

        Index q of depth d is the draft step at position q that was started d-1 positions before:
        its h' is depth d-1's output at q-1 and its keys are depth d's at q, depth d-1's at q-1,
        ..., depth 1's at q-d+1 and before. The first d-1 indices of depth d are not meaningful.
        """
        layer = self.mtp.layers[0]
        attention = layer.self_attn
        cos, sin = self.rotary(embedding)
        batch, length, _ = embedding.shape
        heads, size = self.config.num_attention_heads, self.config.head_dim
        step = torch.arange(length, device=embedding.device)
        outputs: list[torch.Tensor] = []
        keys: list[torch.Tensor] = []  # one per depth, [B, 1, T, DH], after rotary
        values: list[torch.Tensor] = []
        for d in range(1, depth + 1):
            if d > 1:
                hidden = F.pad(outputs[-1], (0, 0, 1, 0))[:, :-1]
            x = self.mtp.join(embedding, hidden)
            normed = layer.input_layernorm(x)
            packed = attention.q_proj(normed).view(batch, length, heads, 2 * size)
            query, gate = packed.chunk(2, dim=-1)
            query = attention.q_norm(query).transpose(1, 2)
            key = attention.k_norm(attention.k_proj(normed)[:, :, None]).transpose(1, 2)
            query, key = qwen.apply_rotary_pos_emb(query, key, cos, sin)
            keys.append(key)
            values.append(attention.v_proj(normed)[:, None])
            if d == 1:
                mixed = F.scaled_dot_product_attention(
                    query, key, values[0], is_causal=True, enable_gqa=True
                )
            else:
                mixed = self._mixed_attention(query, keys, values, step)
            mixed = mixed.transpose(1, 2).reshape(batch, length, heads * size)
            x = x + attention.o_proj(
                mixed * torch.sigmoid(gate.reshape(batch, length, heads * size))
            )
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            outputs.append(self.mtp.norm(x))
        return outputs

    @staticmethod
    def _mixed_attention(
        query: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        step: torch.Tensor,
    ) -> torch.Tensor:
        """Columns 0..T-1 are depth 1's keys, the last len(keys)-1 columns the draft's own."""
        d, length = len(keys), query.shape[2]
        scale = query.shape[-1] ** -0.5
        old = (query @ keys[0].transpose(2, 3)).float() * scale
        old = old.masked_fill(step[None, :] > step[:, None] - (d - 1), float("-inf"))
        # Offset i: the key of depth d-i at position q-i.
        own_keys = [_shift(keys[d - 1 - i], i) for i in range(d - 1)]
        own_values = [_shift(values[d - 1 - i], i) for i in range(d - 1)]
        own = torch.stack([(query * k).float().sum(-1) * scale for k in own_keys], dim=-1)
        weights = torch.cat([old, own], dim=-1).softmax(-1).to(query.dtype)
        mixed = weights[..., :length] @ values[0]
        for i, value in enumerate(own_values):
            mixed = mixed + weights[..., length + i, None] * value
        return mixed


def _shift(x: torch.Tensor, by: int) -> torch.Tensor:
    """x[..., t - by, :] at t, zeros before the start."""
    return F.pad(x, (0, 0, by, 0))[:, :, : x.shape[2]]
