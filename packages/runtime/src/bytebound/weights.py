"""The weights of one model as plain records of tensors, with the names the checkpoint uses.

A matrix is kept as Hugging Face stores it, ``[out, in]``, in the dtype asked for at load;
``dt_bias`` and ``A_log`` are float32 always. Norm weights keep the checkpoint's ``1 + w``
convention (the gated norm inside a Gated DeltaNet layer is a plain ``w``): nothing here adds,
shifts or guesses. These records know no arithmetic and no file.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Gated full attention of one layer."""

    q_proj: torch.Tensor  # [NH * 2 * DH, D], per head DH rows of query, then DH rows of gate
    k_proj: torch.Tensor  # [NKV * DH, D]
    v_proj: torch.Tensor  # [NKV * DH, D]
    o_proj: torch.Tensor  # [D, NH * DH]
    q_norm: torch.Tensor  # [DH], 1 + w
    k_norm: torch.Tensor  # [DH], 1 + w


@dataclass(frozen=True, slots=True)
class GatedDeltaWeights:
    """Gated DeltaNet of one layer."""

    in_proj_qkv: torch.Tensor  # [C, D]; rows: q (H * K), k (H * K), v (HV * V)
    in_proj_z: torch.Tensor  # [HV * V, D]
    in_proj_b: torch.Tensor  # [HV, D]
    in_proj_a: torch.Tensor  # [HV, D]
    conv1d: torch.Tensor  # [C, kernel], the last column meets the newest input
    dt_bias: torch.Tensor  # [HV] float32
    A_log: torch.Tensor  # [HV] float32
    norm: torch.Tensor  # [V], plain w
    out_proj: torch.Tensor  # [D, HV * V]


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """SwiGLU feed-forward block of one layer."""

    gate_proj: torch.Tensor  # [F, D]
    up_proj: torch.Tensor  # [F, D]
    down_proj: torch.Tensor  # [D, F]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; the type of ``mixer`` says which kind it is."""

    input_layernorm: torch.Tensor  # [D], 1 + w
    mixer: AttentionWeights | GatedDeltaWeights
    post_attention_layernorm: torch.Tensor  # [D], 1 + w
    mlp: MlpWeights


@dataclass(frozen=True, slots=True)
class MtpWeights:
    """The multi-token-prediction head; embedding and lm_head are the model's."""

    pre_fc_norm_embedding: torch.Tensor  # [D], 1 + w
    pre_fc_norm_hidden: torch.Tensor  # [D], 1 + w
    fc: torch.Tensor  # [D, 2 * D], the embedding half comes first
    layers: tuple[LayerWeights, ...]  # full attention
    norm: torch.Tensor  # [D], 1 + w


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights of a text model; with a tied head, ``lm_head`` is ``embed_tokens`` itself."""

    embed_tokens: torch.Tensor  # [vocab, D]
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor  # [D], 1 + w
    lm_head: torch.Tensor  # [vocab, D]
    mtp: MtpWeights | None


def iter_tensors(weights: Any, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor of a record with its dotted path (``layers.3.mixer.q_proj``), in order."""
    if isinstance(weights, torch.Tensor):
        yield prefix, weights
    elif isinstance(weights, tuple):
        for index, item in enumerate(weights):
            yield from iter_tensors(item, f"{prefix}.{index}" if prefix else str(index))
    elif is_dataclass(weights):
        for field in fields(weights):
            path = f"{prefix}.{field.name}" if prefix else field.name
            yield from iter_tensors(getattr(weights, field.name), path)
