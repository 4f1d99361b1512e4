"""What becomes of every tensor: 4 bits, or 16 bits and the reason why.

A plan follows from config, headers and options alone; no weight is read. It is cut into units, one
per output file and in the order of the model: embedding, each layer, final norm and head, MTP head,
vision. Nothing is dropped: what is not quantized is copied unchanged.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from bytebound import tensor_names as names
from bytebound.shards import StoredTensor

from bytebound_quant.errors import SettingError
from bytebound_quant.grid import Scheme
from bytebound_quant.source import Source

# Tails of the matrices that are quantized, in the order in which a layer uses them.
LAYER_MATRICES = (
    *(names.ATTENTION[field] for field in ("q_proj", "k_proj", "v_proj", "o_proj")),
    *(names.GATED_DELTA[field] for field in ("in_proj_qkv", "in_proj_z", "out_proj")),
    *names.MLP.values(),
)
MTP_MATRIX = names.MTP_PREFIX + names.MTP["fc"]
HEAD_MODULE = names.HEAD.removesuffix(".weight")
SMALL_PROJECTIONS = (names.GATED_DELTA["in_proj_a"], names.GATED_DELTA["in_proj_b"])

SMALL_REASON = "small projection: few bytes, and the decay is exponential in it"
EMBEDDING_REASON = "embedding: one row is read per token"
CONV_REASON = "convolution: a few taps per channel"
GATE_REASON = "decay parameter: the state is exponential in it"
NORM_REASON = "norm: one vector"
TIED_REASON = "head tied to the embedding, which stays 16 bit"
KEEP_HEAD_REASON = "kept by option: --keep-head"
KEEP_MTP_REASON = "kept by option: --mtp-bits 16"
VISION_REASON = "vision: copied unchanged"


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor of the source and what it becomes."""

    stored: StoredTensor
    quantized: bool
    reason: str = ""
    """Why it stays 16 bit; empty for a quantized one."""

    @property
    def name(self) -> str:
        """The name in the source."""
        return self.stored.name

    @property
    def module(self) -> str:
        """The module that owns it, as an ignore list spells it."""
        return self.name.removesuffix(".weight")


@dataclass(frozen=True, slots=True)
class Unit:
    """What is written as one file."""

    name: str  # "embedding", "layer 3", "head", "mtp", "vision"
    tensors: tuple[PlannedTensor, ...]
    layer: int | None = None

    @property
    def source_bytes(self) -> int:
        """Bytes that the source stores for it."""
        return sum(one.stored.num_bytes for one in self.tensors)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The choices that decide what is quantized, and how large it becomes."""

    scheme: Scheme = field(default_factory=Scheme)
    keep_head: bool = False
    mtp_bits: int = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """All units, in the order in which they are made."""

    units: tuple[Unit, ...]
    options: PlanOptions
    tied: bool = False

    def tensors(self) -> Iterator[PlannedTensor]:
        """Every tensor, unit by unit."""
        for unit in self.units:
            yield from unit.tensors

    def ignore(self) -> list[str]:
        """Modules of matrices that stay 16 bit: what a loader must not expect packed."""
        kept = [
            one.module
            for one in self.tensors()
            if not one.quantized and len(one.stored.shape) == 2 and one.name.endswith(".weight")
        ]
        return kept if not self.tied or HEAD_MODULE in kept else [*kept, HEAD_MODULE]

    def exceptions(self) -> list[dict[str, str]]:
        """Every tensor that stays 16 bit, with the reason."""
        kept = {one.name: one.reason for one in self.tensors() if not one.quantized}
        if self.tied:
            kept[names.HEAD] = TIED_REASON
        return [{"name": name, "reason": reason} for name, reason in kept.items()]

    def output_bytes(self) -> int:
        """About what the output's weights take."""
        return sum(
            packed_bytes(one.stored.shape, self.options) if one.quantized else one.stored.num_bytes
            for one in self.tensors()
        )


def make_plan(source: Source, options: PlanOptions) -> Plan:
    """Decide for every tensor of the source.

    Raises:
        SettingError: an option is out of range, or nothing would be quantized.
    """
    if options.mtp_bits not in (4, 16):
        raise SettingError(f"--mtp-bits {options.mtp_bits}: expected 4 or 16")
    tied = source.config.tie_word_embeddings
    planned = {
        name: _decide(stored, options, tied=tied, vision=name in source.stored.skipped)
        for name, stored in source.tensors.items()
    }
    plan = Plan(tuple(_units(source, planned)), options, tied)
    if not any(one.quantized for one in plan.tensors()):
        widths = sorted({s.shape[1] for s in source.tensors.values() if len(s.shape) == 2})
        raise SettingError(
            f"--group-size {options.scheme.group_size}: no matrix of this model has a multiple of "
            f"it as its number of inputs (they are {', '.join(map(str, widths))}); choose a divisor"
        )
    return plan


def packed_bytes(shape: tuple[int, ...], options: PlanOptions) -> int:
    """Bytes of codes, scales, zero points and shape of one matrix."""
    rows, columns = shape
    return round(options.scheme.bits_per_weight(rows, columns) * rows * columns) // 8 + 16


def _decide(
    stored: StoredTensor, options: PlanOptions, *, tied: bool, vision: bool
) -> PlannedTensor:
    reason = VISION_REASON if vision else _reason(stored, options, tied=tied)
    return PlannedTensor(stored, quantized=not reason, reason=reason)


def _reason(stored: StoredTensor, options: PlanOptions, *, tied: bool) -> str:
    """Why this tensor stays 16 bit; empty if it does not."""
    name = stored.name
    if name.startswith(names.MTP_PREFIX) and options.mtp_bits == 16:
        return KEEP_MTP_REASON
    if name.endswith(SMALL_PROJECTIONS):
        return SMALL_REASON
    if name.endswith(names.FLOAT32_TAILS):
        return GATE_REASON
    if name.endswith(names.GATED_DELTA["conv1d"]):
        return CONV_REASON
    if name.endswith(names.EMBEDDING):
        return EMBEDDING_REASON
    if name == names.HEAD:
        if tied:
            return TIED_REASON
        if options.keep_head:
            return KEEP_HEAD_REASON
    elif not (name.endswith(LAYER_MATRICES) or name == MTP_MATRIX):
        return NORM_REASON
    inputs, group = stored.shape[1], options.scheme.group_size
    if inputs % group:
        return f"{inputs} inputs are no multiple of the group size {group}"
    return ""


def _units(source: Source, planned: dict[str, PlannedTensor]) -> Iterator[Unit]:
    prefix = source.stored.prefix

    def take(*starts: str) -> tuple[PlannedTensor, ...]:
        return tuple(planned.pop(name) for name in list(planned) if name.startswith(starts))

    vision = tuple(planned.pop(name) for name in source.stored.skipped)
    mtp = take(names.MTP_PREFIX)
    yield Unit("embedding", take(prefix + names.EMBEDDING))
    for index in range(source.config.num_hidden_layers):
        yield Unit(f"layer {index}", take(f"{prefix}layers.{index}."), layer=index)
    yield Unit("head", tuple(planned.values()))
    if mtp:
        yield Unit("mtp", mtp)
    if vision:
        yield Unit("vision", vision)
