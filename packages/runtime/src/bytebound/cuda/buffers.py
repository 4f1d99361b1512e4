"""The activations of a pass of few rows: allocated once, since a captured graph keeps addresses."""

from dataclasses import dataclass

import torch

from bytebound.config import ModelConfig
from bytebound.cuda.state import MAX_ROWS


@dataclass(frozen=True, slots=True)
class Buffers:
    """Room for ``MAX_ROWS`` rows; a pass of R rows uses the first R of each."""

    ids: torch.Tensor  # int32 [MAX_ROWS]
    residual: torch.Tensor  # float32 [MAX_ROWS, D]: what the layers add to
    normed: torch.Tensor  # [MAX_ROWS, D]
    qkv: torch.Tensor  # [MAX_ROWS, NH * 2 * DH + 2 * NKV * DH]
    attended: torch.Tensor  # [MAX_ROWS, NH * DH]
    mixed: torch.Tensor  # [MAX_ROWS, HV * V]
    inner: torch.Tensor  # [MAX_ROWS, F]
    hidden: torch.Tensor  # [MAX_ROWS, D] after the final norm
    logits: torch.Tensor  # float32 [MAX_ROWS, vocab]

    @classmethod
    def empty(cls, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> "Buffers":
        """Allocate them."""

        def rows(width: int, own: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros(MAX_ROWS, width, dtype=own, device=device)

        width, queries = config.hidden_size, config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        return cls(
            ids=torch.zeros(MAX_ROWS, dtype=torch.int32, device=device),
            residual=rows(width, torch.float32),
            normed=rows(width),
            qkv=rows(2 * queries + 2 * keys),
            attended=rows(queries),
            mixed=rows(config.value_dim),
            inner=rows(config.intermediate_size),
            hidden=rows(width),
            logits=rows(config.vocab_size, torch.float32),
        )


def split_qkv(
    qkv: torch.Tensor, config: ModelConfig
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The fused projection of attention as q with its gate, k, and v: views [R, ...]."""
    keys = config.num_key_value_heads * config.head_dim
    q_gate, k, v = torch.split(qkv, [qkv.shape[-1] - 2 * keys, keys, keys], dim=-1)
    return q_gate, k, v


def inverse_frequencies(config: ModelConfig, device: torch.device) -> torch.Tensor:
    """``theta^(-2i / rotary_dim)``, float32 [rotary_dim / 2], as the reference computes it."""
    exponents = torch.arange(0, config.rotary_dim, 2) / config.rotary_dim
    return (1.0 / config.rope_theta**exponents).to(device)
