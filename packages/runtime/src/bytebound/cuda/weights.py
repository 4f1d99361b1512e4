"""The weights of one model on the GPU: the records of ``bytebound.weights``, fused and packed.

Matrices that meet the same input are one matrix, their rows below each other in the order of the
field's comment; gate and up are one gated pair. Vectors are float32 and keep the checkpoint's
``1 + w`` convention. These records know no arithmetic and no file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from bytebound_kernels import GdnWeights

from bytebound import tensor_names as names
from bytebound.config import LayerType, ModelConfig
from bytebound.cuda import fusion
from bytebound.cuda.matrices import Matrix, PackedMatrix

Parts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Gated full attention of one layer."""

    qkv: Matrix  # [NH * 2 * DH + 2 * NKV * DH, D]; rows: q with its gate, k, v
    o_proj: Matrix  # [D, NH * DH]
    q_norm: torch.Tensor  # [DH], 1 + w
    k_norm: torch.Tensor  # [DH], 1 + w


@dataclass(frozen=True, slots=True)
class GatedDeltaWeights:
    """Gated DeltaNet of one layer."""

    in_proj: Matrix  # [C + HV * V, D]; rows: q, k, v, z
    gates: Matrix  # [2 * HV, D]; rows: a, b
    constants: GdnWeights  # conv in the dtype of the activations, the rest float32
    out_proj: Matrix  # [D, HV * V]


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """SwiGLU feed-forward block of one layer."""

    gate_up: Matrix  # two of [F, D]
    down_proj: Matrix  # [D, F]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; the type of ``mixer`` says which kind it is."""

    input_layernorm: torch.Tensor  # [D], 1 + w
    mixer: AttentionWeights | GatedDeltaWeights
    post_attention_layernorm: torch.Tensor  # [D], 1 + w
    mlp: MlpWeights


@dataclass(frozen=True, slots=True)
class MtpWeights:
    """The multi-token-prediction head; embedding and lm_head are the model's.

    With a draft vocabulary of N ids it has N rows of lm_head for itself: row i scores the id
    ``draft_ids[i]``. Both are there, or neither.
    """

    pre_fc_norm_embedding: torch.Tensor  # [D], 1 + w
    pre_fc_norm_hidden: torch.Tensor  # [D], 1 + w
    fc: Matrix  # [D, 2 * D], the embedding half comes first
    layer: LayerWeights  # full attention
    norm: torch.Tensor  # [D], 1 + w
    draft_head: Matrix | None = None  # [N, D]
    draft_ids: torch.Tensor | None = None  # int32 [N], ascending


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights of a text model; with a tied head, ``lm_head`` shares the table's memory."""

    embed_tokens: torch.Tensor  # [vocab, D], in the dtype of the activations
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor  # [D], 1 + w
    lm_head: Matrix  # [vocab, D]
    mtp: MtpWeights | None

    @property
    def device(self) -> torch.device:
        """Where they lie."""
        return self.embed_tokens.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the activations that these weights meet."""
        return self.embed_tokens.dtype


def model_weights(
    config: ModelConfig, parts: Parts, prefix: str, *, with_mtp: bool
) -> ModelWeights:
    """Put the records together.

    ``parts`` holds the matrices of ``fusion.plan`` by their names, and every other tensor by its
    name in the checkpoint.
    """
    mtp = None
    if with_mtp:
        mtp = MtpWeights(
            fc=parts[names.MTP_PREFIX + fusion.FC],
            layer=_layer(parts, f"{names.MTP_PREFIX}layers.0.", "full_attention"),
            draft_head=None,
            **_vectors(parts, names.MTP_PREFIX, names.MTP),
        )
    return ModelWeights(
        embed_tokens=parts[prefix + names.EMBEDDING],
        layers=tuple(
            _layer(parts, f"{prefix}layers.{index}.", kind)
            for index, kind in enumerate(config.layer_types)
        ),
        norm=parts[prefix + names.FINAL_NORM],
        lm_head=parts[fusion.HEAD],
        mtp=mtp,
    )


def iter_matrices(record: Any, *, with_draft_heads: bool = True) -> Iterator[Matrix]:
    """Yield every matrix of a record, in order."""
    if isinstance(record, tuple) and not isinstance(record, GdnWeights):
        for item in record:
            yield from iter_matrices(item, with_draft_heads=with_draft_heads)
    elif hasattr(record, "matvec"):
        yield record
    elif is_dataclass(record):
        for field in fields(record):
            if with_draft_heads or field.name != "draft_head":
                one = getattr(record, field.name)
                yield from iter_matrices(one, with_draft_heads=with_draft_heads)


def largest_packed(record: Any) -> int:
    """Count the elements of the largest packed matrix in a record; 0 where there is none.

    A draft head does not count: only single rows meet it, never those of a prompt.
    """
    matrices = iter_matrices(record, with_draft_heads=False)
    return max((one.elements for one in matrices if isinstance(one, PackedMatrix)), default=0)


def _layer(parts: Parts, prefix: str, kind: LayerType) -> LayerWeights:
    mixer: AttentionWeights | GatedDeltaWeights
    if kind == "full_attention":
        mixer = AttentionWeights(
            qkv=parts[prefix + fusion.QKV],
            o_proj=parts[prefix + fusion.O_PROJ],
            **_vectors(parts, prefix, names.ATTENTION, "q_norm", "k_norm"),
        )
    else:
        fixed = _vectors(parts, prefix, names.GATED_DELTA, "conv1d", "A_log", "dt_bias", "norm")
        mixer = GatedDeltaWeights(
            in_proj=parts[prefix + fusion.IN_PROJ],
            gates=parts[prefix + fusion.GATES],
            # Stored as Conv1d has it, [C, 1, taps].
            constants=GdnWeights(
                fixed["conv1d"].squeeze(1).contiguous(),
                fixed["A_log"],
                fixed["dt_bias"],
                fixed["norm"],
            ),
            out_proj=parts[prefix + fusion.OUT_PROJ],
        )
    return LayerWeights(
        mixer=mixer,
        mlp=MlpWeights(parts[prefix + fusion.GATE_UP], parts[prefix + fusion.DOWN_PROJ]),
        **_vectors(parts, prefix, names.LAYER_NORMS),
    )


def _vectors(
    parts: Parts, prefix: str, table: Mapping[str, str], *wanted: str
) -> dict[str, torch.Tensor]:
    """Collect fields that are no matrix: those named, or all of the table but ``fc``."""
    chosen = wanted or [field for field in table if field != "fc"]
    return {field: parts[prefix + table[field]] for field in chosen}
