"""Loading a checkpoint: every tensor that the config calls for, nothing else, or an error.

The set of names and shapes follows from the config and is compared with the file headers before any
weight is read, so a wrong folder costs no memory. Vision tensors are left in the file and reported.
Values are converted to the dtype asked for and never otherwise changed; NaN or infinity is refused.
A matrix stored in 4 bits (``quantized.py``) becomes weights of that dtype as it is read, one matrix
at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from bytebound import tensor_names as names
from bytebound.config import LayerType, ModelConfig
from bytebound.errors import CheckpointError, InvalidSettingError
from bytebound.quantized import PackedMatrix, find_packed
from bytebound.reading import Progress, dequantized, read_weights
from bytebound.shards import FLOATS, StoredTensor, open_shards, some
from bytebound.tensor_names import Shape
from bytebound.weights import (
    AttentionWeights,
    GatedDeltaWeights,
    LayerWeights,
    MlpWeights,
    ModelWeights,
    MtpWeights,
)

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The loaded weights, and what the load did."""

    weights: ModelWeights
    skipped: tuple[str, ...]  # vision tensors that were left in the files, by name
    files: tuple[Path, ...]
    bytes_read: int
    packed: tuple[str, ...]  # weights that were stored in 4 bits, by name
    bits_per_weight: float  # as stored, over everything that was loaded


@dataclass(frozen=True, slots=True)
class StoredModel:
    """What the files of a folder hold, by their headers; no weight was read."""

    tensors: Mapping[str, StoredTensor]  # what a load reads, parts of packed matrices one by one
    packed: Mapping[str, PackedMatrix]  # by the name of the weight that each stands for
    skipped: Mapping[str, StoredTensor]  # vision tensors
    files: tuple[Path, ...]
    prefix: str  # of the text model's names
    with_mtp: bool

    @property
    def num_bytes(self) -> int:
        """Bytes that a load reads."""
        return sum(one.num_bytes for one in self.tensors.values())

    @property
    def parameters(self) -> int:
        """Weights of the model, however they are stored."""
        parts = {part.name for one in self.packed.values() for part in one.parts.values()}
        plain = sum(prod(one.shape) for name, one in self.tensors.items() if name not in parts)
        return plain + sum(prod(one.shape) for one in self.packed.values())

    @property
    def bits_per_weight(self) -> float:
        """Stored bits per weight over everything that a load reads."""
        return 8 * self.num_bytes / self.parameters

    @property
    def packed_bits_per_weight(self) -> float | None:
        """The same over the packed matrices alone; None where there is none."""
        if not self.packed:
            return None
        size = sum(one.num_bytes for one in self.packed.values())
        return 8 * size / sum(prod(one.shape) for one in self.packed.values())


def load_checkpoint(
    folder: Path,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    on_progress: Progress | None = None,
) -> Checkpoint:
    """Read the folder's weights into ``dtype`` on ``device``.

    ``dt_bias`` and ``A_log`` become float32 whatever ``dtype`` is. ``on_progress(done, total)`` is
    told about bytes as they are read.

    Raises:
        CheckpointError: files, index, names, shapes, dtypes or values are not what they must be.
    """
    if dtype not in FLOATS.values():
        raise InvalidSettingError(f"dtype is {dtype}; supported are bfloat16, float16 and float32")
    stored = read_headers(folder, config)
    tensors = _read_all(stored, dtype, device, on_progress)
    head = output_head(folder, config, tensors, stored.prefix)
    return Checkpoint(
        weights=_model(config, tensors, stored.prefix, head, stored.with_mtp),
        skipped=tuple(stored.skipped),
        files=stored.files,
        bytes_read=stored.num_bytes,
        packed=tuple(stored.packed),
        bits_per_weight=stored.bits_per_weight,
    )


def read_headers(folder: Path, config: ModelConfig) -> StoredModel:
    """Check the files' headers against the config: everything a load checks but the values.

    Raises:
        CheckpointError: files, index, names, shapes or dtypes are not what they must be.
    """
    stored = open_shards(folder)
    prefix = names.TEXT_PREFIX
    if any(name.startswith(names.NESTED_PREFIX) for name in stored):
        prefix = names.NESTED_PREFIX
    with_mtp = _has_mtp(folder, config, stored)
    skipped = {
        name: stored[name] for name in sorted(stored) if name.startswith(names.VISION_PREFIX)
    }
    wanted = {name: one for name, one in stored.items() if name not in skipped}
    expected = expected_shapes(config, prefix, with_mtp)
    possible = {**expected, **names.head_shape(config)}
    packed = find_packed(folder, wanted, config.quantization, possible)
    _check_names_and_shapes(folder, wanted, packed, expected)
    files = tuple(sorted({one.file for one in stored.values()}))
    return StoredModel(wanted, packed, skipped, files, prefix, with_mtp)


def expected_shapes(config: ModelConfig, prefix: str, with_mtp: bool) -> dict[str, Shape]:
    """Every name that must be stored, with its shape; a tied model's head is not among them."""
    shapes = names.model_shapes(config, prefix=prefix)
    if not config.tie_word_embeddings:
        shapes.update(names.head_shape(config))
    if with_mtp:
        shapes.update(names.mtp_shapes(config))
    return shapes


def _has_mtp(folder: Path, config: ModelConfig, stored: Mapping[str, StoredTensor]) -> bool:
    found = [name for name in stored if name.startswith(names.MTP_PREFIX)]
    if config.mtp_num_hidden_layers is None:
        return bool(found)
    if config.mtp_num_hidden_layers == 0 and found:
        raise CheckpointError(
            f"{folder}: the config says mtp_num_hidden_layers 0, yet the files hold "
            f"{some(found)}; set it to 1 to use the head, or remove these tensors"
        )
    if config.mtp_num_hidden_layers > 0 and not found:
        first = min(names.mtp_shapes(config))
        raise CheckpointError(
            f"{folder}: the config says mtp_num_hidden_layers {config.mtp_num_hidden_layers}, yet "
            f"the files hold no MTP tensor ({first} is the first one missing); a conversion may "
            "have dropped them. Fetch the original, or set it to 0 to run without that head"
        )
    return config.mtp_num_hidden_layers > 0


def _check_names_and_shapes(
    folder: Path,
    stored: Mapping[str, StoredTensor],
    packed: Mapping[str, PackedMatrix],
    expected: Mapping[str, Shape],
) -> None:
    missing = [name for name in expected if name not in stored and name not in packed]
    if missing:
        hint = ""
        if missing == [names.HEAD]:
            hint = "; set tie_word_embeddings to true only if the model was trained that way"
        raise CheckpointError(f"{folder}: {some(missing)} missing from the files{hint}")
    parts = {part.name for one in packed.values() for part in one.parts.values()}
    plain = {name: one for name, one in stored.items() if name not in parts}
    # A tied model may still store its head; whether the copy is one is seen once both are read.
    unknown = [name for name in plain if name not in expected and name != names.HEAD]
    if unknown:
        raise CheckpointError(
            f"{folder}: the files hold {some(unknown)}, which this config has no place for; "
            "config and weights are not of one model"
        )
    # In the order of the layers, so that the first mistake named is the first one met.
    for name in [*expected, *(plain.keys() - expected.keys())]:
        if name in packed:
            continue  # its parts were held against the same shape
        tensor = plain[name]
        shape = expected.get(name, tensor.shape)
        if tensor.shape != shape:
            raise CheckpointError(
                f"{tensor.file}: {name} has shape {list(tensor.shape)}, the config asks for "
                f"{list(shape)}"
            )
        if tensor.dtype not in FLOATS:
            raise CheckpointError(
                f"{tensor.file}: {name} is stored as {tensor.dtype}, supported are "
                f"{', '.join(FLOATS)}; a quantized folder must say so in its config"
            )


def _read_all(
    stored: StoredModel,
    dtype: torch.dtype,
    device: torch.device,
    on_progress: Progress | None,
) -> dict[str, torch.Tensor]:
    def dtype_of(one: StoredTensor) -> torch.dtype:
        return torch.float32 if one.name.endswith(names.FLOAT32_TAILS) else dtype

    weights = read_weights(
        stored.tensors, stored.packed, dtype_of=dtype_of, device=device, on_progress=on_progress
    )
    return {
        name: weight if isinstance(weight, torch.Tensor) else dequantized(weight, dtype)
        for name, weight in weights
    }


def output_head(folder: Path, config: ModelConfig, tensors: Tensors, prefix: str) -> torch.Tensor:
    """Return the head's matrix: the stored one, or the embedding, of which a tied one is a copy."""
    if not config.tie_word_embeddings:
        return tensors[names.HEAD]
    embedding = tensors[prefix + names.EMBEDDING]
    stored = tensors.get(names.HEAD)
    if stored is not None and not torch.equal(stored, embedding):
        raise CheckpointError(
            f"{folder}: the config says tie_word_embeddings true, yet {names.HEAD} differs from "
            f"{prefix}{names.EMBEDDING}; set it to false to use the stored head"
        )
    return embedding


def _model(
    config: ModelConfig, tensors: Tensors, prefix: str, head: torch.Tensor, with_mtp: bool
) -> ModelWeights:
    return ModelWeights(
        embed_tokens=tensors[prefix + names.EMBEDDING],
        layers=tuple(
            _layer(tensors, f"{prefix}layers.{index}.", kind)
            for index, kind in enumerate(config.layer_types)
        ),
        norm=tensors[prefix + names.FINAL_NORM],
        lm_head=head,
        mtp=_mtp(tensors) if with_mtp else None,
    )


def _layer(tensors: Tensors, prefix: str, kind: LayerType) -> LayerWeights:
    mixer: AttentionWeights | GatedDeltaWeights
    if kind == "full_attention":
        mixer = AttentionWeights(**_fields(tensors, prefix, names.ATTENTION))
    else:
        fields = _fields(tensors, prefix, names.GATED_DELTA)
        fields["conv1d"] = fields["conv1d"].squeeze(1)  # stored as Conv1d has it, [C, 1, kernel]
        mixer = GatedDeltaWeights(**fields)
    return LayerWeights(
        mixer=mixer,
        mlp=MlpWeights(**_fields(tensors, prefix, names.MLP)),
        **_fields(tensors, prefix, names.LAYER_NORMS),
    )


def _mtp(tensors: Tensors) -> MtpWeights:
    layer = _layer(tensors, f"{names.MTP_PREFIX}layers.0.", "full_attention")
    return MtpWeights(layers=(layer,), **_fields(tensors, names.MTP_PREFIX, names.MTP))


def _fields(tensors: Tensors, prefix: str, table: Mapping[str, str]) -> dict[str, torch.Tensor]:
    return {field: tensors[prefix + tail] for field, tail in table.items()}
