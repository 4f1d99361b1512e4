"""Which stored matrices become one matrix of the engine. Names only: no file and no tensor.

Matrices that meet the same input are read in one pass over one matrix: fewer launches, and each
long enough to reach the memory's bandwidth.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bytebound import tensor_names as names
from bytebound.config import LayerType, ModelConfig

# Names of the fused matrices, after the prefix of a layer or of the MTP head.
QKV = "qkv"
O_PROJ = "o_proj"
IN_PROJ = "in_proj"
GATES = "gates"
OUT_PROJ = "out_proj"
GATE_UP = "gate_up"
DOWN_PROJ = "down_proj"
FC = "fc"
HEAD = names.HEAD


@dataclass(frozen=True, slots=True)
class Fusion:
    """One matrix of the engine, and the stored ones it is made of."""

    name: str
    members: tuple[str, ...]  # names in the checkpoint, in the order of their rows
    form: Literal["stacked", "gated", "dense"] = "stacked"
    """Rows below each other; gate and up of one product; or stacked and always in 16 bits."""


def plan(config: ModelConfig, prefix: str, *, with_mtp: bool) -> list[Fusion]:
    """Every matrix of the model, the embedding apart; a tied head is the embedding."""
    fusions = [
        fusion
        for index, kind in enumerate(config.layer_types)
        for fusion in _layer(f"{prefix}layers.{index}.", kind)
    ]
    if with_mtp:
        fusions.append(Fusion(names.MTP_PREFIX + FC, (names.MTP_PREFIX + names.MTP["fc"],)))
        fusions += _layer(f"{names.MTP_PREFIX}layers.0.", "full_attention")
    if not config.tie_word_embeddings:
        fusions.append(Fusion(HEAD, (names.HEAD,)))
    return fusions


def _layer(prefix: str, kind: LayerType) -> Iterator[Fusion]:
    def members(table: dict[str, str], *fields: str) -> tuple[str, ...]:
        return tuple(prefix + table[field] for field in fields)

    if kind == "full_attention":
        yield Fusion(prefix + QKV, members(names.ATTENTION, "q_proj", "k_proj", "v_proj"))
        yield Fusion(prefix + O_PROJ, members(names.ATTENTION, "o_proj"))
    else:
        delta = names.GATED_DELTA
        yield Fusion(prefix + IN_PROJ, members(delta, "in_proj_qkv", "in_proj_z"))
        # A few rows that steer an exponential decay: bytes saved here would be paid in quality.
        yield Fusion(prefix + GATES, members(delta, "in_proj_a", "in_proj_b"), "dense")
        yield Fusion(prefix + OUT_PROJ, members(delta, "out_proj"))
    yield Fusion(prefix + GATE_UP, members(names.MLP, "gate_proj", "up_proj"), "gated")
    yield Fusion(prefix + DOWN_PROJ, members(names.MLP, "down_proj"))
