"""Records of ``bytebound.weights`` put together from tensors by name, for the reference model."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from bytebound import tensor_names as names
from bytebound.config import LayerType
from bytebound.weights import (
    AttentionWeights,
    GatedDeltaWeights,
    LayerWeights,
    MlpWeights,
    MtpWeights,
)

Get = Callable[[str], torch.Tensor]
"""Full name in the checkpoint -> tensor."""

MTP_LAYER_PREFIX = f"{names.MTP_PREFIX}layers.0."


def build_layer(get: Get, prefix: str, kind: LayerType) -> LayerWeights:
    """The layer whose names begin with ``prefix``."""

    def take(table: Mapping[str, str]) -> dict[str, Any]:
        return {field: get(prefix + tail) for field, tail in table.items()}

    mixer: AttentionWeights | GatedDeltaWeights
    if kind == "full_attention":
        mixer = AttentionWeights(**take(names.ATTENTION))
    else:
        fields = take(names.GATED_DELTA)
        fields["conv1d"] = fields["conv1d"].squeeze(1)  # stored as Conv1d has it, [C, 1, kernel]
        mixer = GatedDeltaWeights(**fields)
    return LayerWeights(mixer=mixer, mlp=MlpWeights(**take(names.MLP)), **take(names.LAYER_NORMS))


def build_mtp(get: Get) -> MtpWeights:
    """The MTP head."""
    fields: dict[str, Any] = {
        field: get(names.MTP_PREFIX + tail) for field, tail in names.MTP.items()
    }
    return MtpWeights(layers=(build_layer(get, MTP_LAYER_PREFIX, "full_attention"),), **fields)


def field_tails(kind: LayerType) -> dict[str, str]:
    """Field of a layer's matrices -> tail of its name."""
    mixer = names.ATTENTION if kind == "full_attention" else names.GATED_DELTA
    return {**mixer, **names.MLP}


def converted(name: str, tensor: torch.Tensor, dtype: torch.dtype, device: torch.device) -> Any:
    """``tensor`` as a load would convert it: the decay parameters are float32 always."""
    wanted = torch.float32 if name.endswith(names.FLOAT32_TAILS) else dtype
    return tensor.to(device=device, dtype=wanted)
