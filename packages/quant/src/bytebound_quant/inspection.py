"""What a folder stores and how: per tensor, per kind, and overall. Reads headers, no weight.

Works on 16-bit folders and on every 4-bit layout that the runtime reads. Bits per weight count
everything stored for a weight: codes, scales, zero points, column order.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from bytebound import tensor_names as names
from bytebound.checkpoint import read_headers
from bytebound.config import ModelConfig, read_json_object
from bytebound.config_fields import CONFIG_FILE
from bytebound.quantized import PackedMatrix
from bytebound.shards import StoredTensor

from bytebound_quant.draft_vocab import describe_draft_vocab

QUANTIZATION_FIELDS = ("quantization_config", "compression_config")
OWN_METADATA = "bytebound"  # our block inside quantization_config
KINDS = ("attention", "gated delta net", "mlp", "embedding", "head", "norms", "mtp", "vision")


@dataclass(frozen=True, slots=True)
class InspectedTensor:
    """How one weight is stored."""

    name: str
    kind: str
    dtype: str
    """As the format spells it, "BF16", or "int4"."""
    layout: str | None
    """Of a packed matrix: pack-quantized, gptq, gptq_v2 or awq."""
    shape: tuple[int, ...]
    group_size: int | None
    symmetric: bool | None
    num_bytes: int
    bits_per_weight: float
    reason: str | None = None
    """Why it is not packed, where the folder's metadata says so."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """A folder's tensors and what its metadata says."""

    folder: str
    layout: str | None
    metadata: dict[str, Any]
    tensors: list[InspectedTensor]
    files: tuple[str, ...]
    mtp: bool
    tied_head: bool
    draft_vocab: dict[str, Any] | None

    def totals(self) -> list[dict[str, Any]]:
        """Weights, bytes and bits per weight of each kind that occurs, then of everything."""
        rows = []
        for kind in (*KINDS, None):
            ours = [one for one in self.tensors if kind is None or one.kind == kind]
            weights = sum(prod(one.shape) for one in ours)
            stored = sum(one.num_bytes for one in ours)
            if weights:
                rows.append(
                    {
                        "kind": "total" if kind is None else kind,
                        "tensors": len(ours),
                        "packed": sum(one.layout is not None for one in ours),
                        "weights": weights,
                        "bytes": stored,
                        "bits_per_weight": 8 * stored / weights,
                    }
                )
        return rows

    def as_dict(self) -> dict[str, Any]:
        """Everything in JSON's types."""
        return {
            "folder": self.folder,
            "layout": self.layout,
            "metadata": self.metadata,
            "files": list(self.files),
            "mtp": self.mtp,
            "tied_head": self.tied_head,
            "draft_vocab": self.draft_vocab,
            "totals": self.totals(),
            "tensors": [{**asdict(one), "shape": list(one.shape)} for one in self.tensors],
        }


def inspect(folder: Path) -> Inspection:
    """Read the headers and the metadata of a folder.

    Raises:
        CheckpointError: it is no model folder, or its files do not fit its config.
    """
    config = ModelConfig.from_folder(folder)
    stored = read_headers(folder, config)
    metadata = _metadata(read_json_object(folder, CONFIG_FILE))
    reasons = _reasons(metadata)
    parts = {part.name for one in stored.packed.values() for part in one.parts.values()}
    tensors = [
        *(_packed(one) for one in stored.packed.values()),
        *(_plain(one, reasons) for name, one in stored.tensors.items() if name not in parts),
        *(_plain(one, reasons) for one in stored.skipped.values()),
    ]
    return Inspection(
        folder=str(folder),
        layout=None if config.quantization is None else config.quantization.layout,
        metadata=metadata,
        tensors=sorted(tensors, key=lambda one: _order(one.name)),
        files=tuple(path.name for path in stored.files),
        mtp=stored.with_mtp,
        tied_head=config.tie_word_embeddings,
        draft_vocab=describe_draft_vocab(folder, config.vocab_size),
    )


def kind_of(name: str) -> str:
    """Which of ``KINDS`` a weight belongs to, by its name."""
    if name.startswith(names.MTP_PREFIX):
        return "mtp"
    if name.startswith(names.VISION_PREFIX):
        return "vision"
    if name == names.HEAD:
        return "head"
    if name.endswith(names.EMBEDDING):
        return "embedding"
    for part, kind in (("linear_attn", KINDS[1]), ("self_attn", KINDS[0]), ("mlp", KINDS[2])):
        if f".{part}." in name:
            return kind
    return "norms"


def _packed(one: PackedMatrix) -> InspectedTensor:
    return InspectedTensor(
        name=one.name,
        kind=kind_of(one.name),
        dtype="int4",
        layout=one.scheme.layout,
        shape=one.shape,
        group_size=one.scheme.group_size,
        symmetric=one.scheme.symmetric,
        num_bytes=one.num_bytes,
        bits_per_weight=one.bits_per_weight,
    )


def _plain(one: StoredTensor, reasons: Mapping[str, str]) -> InspectedTensor:
    count = prod(one.shape)
    return InspectedTensor(
        name=one.name,
        kind=kind_of(one.name),
        dtype=one.dtype,
        layout=None,
        shape=one.shape,
        group_size=None,
        symmetric=None,
        num_bytes=one.num_bytes,
        bits_per_weight=8 * one.num_bytes / count if count else 0.0,
        reason=reasons.get(one.name),
    )


def _metadata(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Our own block of the config; empty where another tool wrote the folder."""
    text = raw.get("text_config")
    for level in (raw, text if isinstance(text, dict) else {}):
        for name in QUANTIZATION_FIELDS:
            block = level.get(name)
            own = block.get(OWN_METADATA) if isinstance(block, dict) else None
            if isinstance(own, dict):
                return dict(own)
    return {}


def _reasons(metadata: Mapping[str, Any]) -> dict[str, str]:
    listed = metadata.get("exceptions")
    entries = listed if isinstance(listed, list) else []
    return {
        str(one["name"]): str(one["reason"])
        for one in entries
        if isinstance(one, dict) and "name" in one and "reason" in one
    }


def _order(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Layers by number, not by spelling; MTP and vision after the decoder."""
    late = {"mtp": 1, "head": 1, "vision": 2}.get(kind_of(name), 0)
    return late, [(int(part) if part.isdigit() else -1, part) for part in name.split(".")]
