"""Judging a finished folder tensor by tensor: is everything there, and does everything vary.

For every tensor: finite values; for every matrix: no run of rows, in whole or in a block of
columns, that is zero or constant (E31); for every packed one: sound scales; against the source, if
it is given: the relative error |W - Q| / |W|, of the whole and of runs of rows. A draft vocabulary
beside it must be one of this model and its tokenizer (E23). Reads one matrix at a time; a folder
that cannot be read at all is an exception, everything else is a finding.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from bytebound import tensor_names as names
from bytebound.checkpoint import StoredModel, read_headers
from bytebound.config import ModelConfig
from bytebound.errors import CheckpointError
from bytebound.quantized import StoredMatrix, read_matrix
from bytebound.shards import StoredTensor, open_shards, read_tensor

from bytebound_quant.blocks import ROWS_AT_ONCE, constant_blocks, constant_regions, row_runs
from bytebound_quant.draft_vocab import describe_draft_vocab

LEAST_ROWS = 8  # so many rows in a row that carry nothing are a fault
TABLE_PART = 8  # of embedding and head: one row in so many, since unused ids may have equal rows
PLAIN_BLOCK = 128  # columns of a block in a matrix that is not packed
SCALE_SPAN = 1e4  # a scale so many times the matrix's median is a damaged one

# Largest sound |W - Q| / |W|: 4 bit rounds to about 0.1, GPTQ trades weights against outputs.
PACKED_LIMIT = 0.35
PLAIN_LIMIT = 0.005  # one rounding to bfloat16
ROW_FACTOR = 2.0  # rows may be so much worse than the whole


@dataclass(slots=True)
class TensorCheck:
    """One tensor: what it is, its figures, and what is wrong with it."""

    name: str
    stored: str
    shape: tuple[int, ...]
    rms: float | None = None
    largest: float | None = None
    error: float | None = None
    """|W - Q| / |W| against the source."""
    limit: float | None = None
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The figures in JSON's types."""
        return {
            "name": self.name,
            "stored": self.stored,
            "shape": list(self.shape),
            "rms": self.rms,
            "largest": self.largest,
            "error": self.error,
            "limit": self.limit,
            "problems": list(self.problems),
        }


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """All tensors of a folder, and what is wrong with the folder as a whole."""

    folder: str
    source: str | None
    tensors: list[TensorCheck]
    folder_problems: list[str]

    @property
    def problems(self) -> list[str]:
        """Everything that is wrong, one line each, with the tensor's name in front."""
        per_tensor = [f"{one.name}: {what}" for one in self.tensors for what in one.problems]
        return [*self.folder_problems, *per_tensor]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """The report in JSON's types."""
        return {
            "folder": self.folder,
            "source": self.source,
            "ok": self.ok,
            "problems": self.problems,
            "tensors": [one.as_dict() for one in self.tensors],
        }


def verify(folder: Path, source: Path | None = None) -> VerifyReport:
    """Check ``folder``, against ``source`` if that is given.

    Raises:
        CheckpointError: one of the two is no model folder, or its files cannot be read.
    """
    config = ModelConfig.from_folder(folder)
    open_shards(folder)
    tensors: list[TensorCheck] = []
    problems: list[str] = []
    original = None if source is None else _Original(source)
    report = VerifyReport(str(folder), None if source is None else str(source), tensors, problems)
    try:
        stored = read_headers(folder, config)
    except CheckpointError as error:
        problems.append(str(error))
        return report
    draft = describe_draft_vocab(folder, config.vocab_size) or {}
    if "problem" in draft:
        problems.append(draft["problem"])
    if original is not None:
        problems += original.missing_from(stored)
    for name in _names(stored):
        tensors.append(_checked(name, stored, original))
    return report


class _Original:
    """The source folder, read by the names that the other folder has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stored = read_headers(folder, ModelConfig.from_folder(folder))
        self._name_of = {_common(name): name for name in _names(self._stored)}

    def missing_from(self, other: StoredModel) -> list[str]:
        """What the source has and the other folder has not, MTP head first."""
        have = {_common(name) for name in _names(other)}
        lost = [name for common, name in self._name_of.items() if common not in have]
        mtp = [name for name in lost if name.startswith(names.MTP_PREFIX)]
        rest = [name for name in lost if name not in mtp]
        lines = [f"{name}: in the source and not in this folder" for name in rest]
        if mtp:
            lines.insert(
                0, f"the source has an MTP head ({len(mtp)} tensors), this folder has none"
            )
        return lines

    def weight(self, name: str) -> torch.Tensor | None:
        """The source's values of a tensor of the other folder."""
        own = self._name_of.get(_common(name))
        if own is None:
            return None
        packed = self._stored.packed.get(own)
        if packed is not None:
            return read_matrix(packed).dequantize()
        return _plain(self._stored.tensors[own])


def _names(stored: StoredModel) -> Iterator[str]:
    """Every weight once, a packed one by the name of the weight it stands for."""
    parts = {part.name for one in stored.packed.values() for part in one.parts.values()}
    yield from (name for name in stored.tensors if name not in parts)
    yield from stored.packed


def _common(name: str) -> str:
    """The name without the prefix that says whether a vision tower is beside the text model."""
    if name.startswith(names.NESTED_PREFIX):
        return names.TEXT_PREFIX + name.removeprefix(names.NESTED_PREFIX)
    return name


def _checked(name: str, stored: StoredModel, original: _Original | None) -> TensorCheck:
    packed = stored.packed.get(name)
    if packed is not None:
        scheme = packed.scheme
        check = TensorCheck(name, f"4 bit {scheme.layout}", packed.shape, limit=PACKED_LIMIT)
        try:
            matrix = read_matrix(packed)
        except CheckpointError as error:
            check.problems.append(str(error))
            return check
        _judge_scales(check, matrix)
        _judge(check, matrix.dequantize(), scheme.group_size, original)
        return check
    plain = stored.tensors[name]
    check = TensorCheck(name, plain.dtype, plain.shape, limit=PLAIN_LIMIT)
    _judge(check, _plain(plain), PLAIN_BLOCK, original)
    return check


def _judge(
    check: TensorCheck, weight: torch.Tensor, columns: int, original: _Original | None
) -> None:
    """Fill in the figures and problems of one tensor."""
    table = _as_matrix(weight)
    low, high = torch.aminmax(table)
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        bad = ~torch.isfinite(table)
        row = int(torch.nonzero(bad.any(dim=1))[0])
        check.problems.append(f"{int(bad.sum())} values are NaN or infinite, first in row {row}")
        return
    check.largest = max(abs(float(low)), abs(float(high)))
    check.rms = (float(_row_squares(table).sum()) / table.numel()) ** 0.5
    source = None if original is None else original.weight(check.name)
    if source is not None and source.shape != weight.shape:
        check.problems.append(f"shape {list(weight.shape)}, in the source {list(source.shape)}")
        source = None
    source_table = None if source is None else _as_matrix(source)
    if weight.dim() > 1:
        _judge_blocks(check, table, columns, source_table)
    if source_table is not None:
        _judge_error(check, table, source_table)


def _judge_blocks(
    check: TensorCheck, table: torch.Tensor, columns: int, source: torch.Tensor | None
) -> None:
    rows, width = table.shape
    constant = constant_blocks(table, columns)
    if source is not None:
        constant &= ~constant_blocks(source, columns)  # what the model itself has is no fault
    least = min(LEAST_ROWS, rows)
    if check.name.endswith((names.EMBEDDING, names.HEAD)):
        least = max(least, rows // TABLE_PART)
    regions = constant_regions(constant, columns, width, least)
    check.problems += [region.describe(table) for region in regions]
    share = float(constant.double().mean())
    if not regions and share > 1 / TABLE_PART:
        first = int(torch.nonzero(constant.any(dim=1))[0])
        check.problems.append(f"{share:.0%} of its blocks are constant, the first in row {first}")


def _judge_scales(check: TensorCheck, matrix: StoredMatrix) -> None:
    scales = matrix.scales()
    low = int((scales <= 0).sum())
    if low:
        row = int(torch.nonzero((scales <= 0).any(dim=1))[0])
        check.problems.append(f"{low} scales are zero or negative, first in row {row}")
    largest, median = float(scales.max()), float(scales.median())
    if median > 0 and largest > SCALE_SPAN * median:
        row = int(scales.amax(dim=1).argmax())
        check.problems.append(
            f"a scale of row {row} is {largest:g}, the median is {median:g}; it is damaged"
        )


def _judge_error(check: TensorCheck, table: torch.Tensor, source: torch.Tensor) -> None:
    limit = PLAIN_LIMIT if check.limit is None else check.limit
    squares = torch.empty(table.shape[0], dtype=torch.float64)
    for start in range(0, table.shape[0], ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        squares[part] = _row_squares(table[part].float() - source[part].float())
    whole = _row_squares(source)
    total = float(whole.sum())
    check.error = (float(squares.sum()) / total) ** 0.5 if total else float(squares.sum()) ** 0.5
    if check.error > limit:
        check.problems.append(f"error {check.error:.3g} against the source, at most {limit:g}")
    worse = squares > (ROW_FACTOR * limit) ** 2 * whole
    for first, last in row_runs(worse, min(LEAST_ROWS, table.shape[0])):
        part = slice(first, last + 1)
        error = float(squares[part].sum() / whole[part].sum().clamp_min(1e-300)) ** 0.5
        check.problems.append(
            f"rows {first}-{last} of {table.shape[0]} have error {error:.3g} against the source, "
            f"at most {ROW_FACTOR * limit:g}"
        )


def _row_squares(table: torch.Tensor) -> torch.Tensor:
    """Sum of squares of each row in float64, in parts so that no large copy is made."""
    parts = [
        table[start : start + ROWS_AT_ONCE].double().square().sum(dim=1)
        for start in range(0, table.shape[0], ROWS_AT_ONCE)
    ]
    return torch.cat(parts)


def _as_matrix(weight: torch.Tensor) -> torch.Tensor:
    return weight.flatten(1) if weight.dim() > 1 else weight.unsqueeze(0)


def _plain(stored: StoredTensor) -> torch.Tensor:
    try:
        file = stored.file.open("rb", buffering=0)
    except OSError as error:
        raise CheckpointError(f"{stored.file} cannot be read: {error.strerror or error}") from error
    with file:
        return read_tensor(stored, file)
