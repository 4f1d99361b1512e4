"""One matrix quantized in blocks of rows, and what the report says about it.

Rows are independent in every method, so a head of a quarter of a million rows needs no more memory
than a layer. Knows no model and no file.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from bytebound_quant.errors import SettingError
from bytebound_quant.gptq import MOST_DAMPING, GptqNotes, gptq
from bytebound_quant.grid import QuantizedMatrix, Scheme
from bytebound_quant.hessian import Hessian
from bytebound_quant.packing import PER_WORD, pack
from bytebound_quant.rtn import rtn

BLOCK_WEIGHTS = 100_000_000  # 400 MB in float32

Packed = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Quantized:
    """The stored tensors of one matrix on the host, by their tails, and its row of the report."""

    packed: Packed
    row: dict[str, Any]


@dataclass(frozen=True, slots=True)
class GptqOptions:
    """Choices of the method."""

    mse: bool = True
    act_order: bool = False
    damping: float = 0.01
    compensate: bool = True
    """A 16-bit run beside the quantized one: matrices make up for the errors of earlier ones."""
    weigh_head: bool = True
    """The output head's calibration rows count by how uncertain the next token is."""

    def __post_init__(self) -> None:
        # Here as well, so that a run does not end at its first matrix.
        if not 0 <= self.damping <= MOST_DAMPING:
            raise SettingError(f"damping {self.damping:g}: expected 0 to {MOST_DAMPING:g}")


@dataclass(slots=True)
class _Sums:
    """Squares summed over the blocks, in float64."""

    weight: float = 0.0
    weight_error: float = 0.0
    output: float = 0.0
    output_error: float = 0.0
    rtn_output_error: float = 0.0
    moved: float = 0.0
    notes: list[GptqNotes] = field(default_factory=list)

    def add_weight(self, weight: torch.Tensor, matrix: QuantizedMatrix) -> None:
        self.weight += float(weight.square().sum(dtype=torch.float64))
        off = matrix.dequantize(torch.float32).sub_(weight)
        self.weight_error += float(off.square_().sum(dtype=torch.float64))

    def add_output(self, weight: torch.Tensor, notes: GptqNotes) -> None:
        self.output += notes.size
        self.output_error += notes.error * notes.size
        self.rtn_output_error += notes.rtn_error * notes.size
        self.moved += notes.correction**2 * float(weight.square().sum(dtype=torch.float64))
        self.notes.append(notes)


def block_rows(columns: int) -> int:
    """Rows of one block: whole words of packed zero points."""
    return max(PER_WORD, BLOCK_WEIGHTS // columns // PER_WORD * PER_WORD)


def round_matrix(
    blocks: Iterable[torch.Tensor], scheme: Scheme, *, mse: bool, device: torch.device
) -> Quantized:
    """Round to nearest, block of rows by block of rows."""

    def solve(weight: torch.Tensor, sums: _Sums) -> QuantizedMatrix:
        return rtn(weight, scheme, mse=mse)

    return _in_blocks(blocks, solve, device)


def fit_matrix(
    blocks: Iterable[torch.Tensor],
    moment: Hessian,
    scheme: Scheme,
    options: GptqOptions,
    device: torch.device,
) -> Quantized:
    """GPTQ, block of rows by block of rows."""
    done = 0

    def solve(weight: torch.Tensor, sums: _Sums) -> QuantizedMatrix:
        nonlocal done
        span = slice(done, done + weight.shape[0])
        done = span.stop
        matrix, notes = gptq(
            weight,
            moment,
            scheme,
            mse=options.mse,
            act_order=options.act_order,
            damping=options.damping,
            lack=None if moment.lack is None else moment.lack[span],
        )
        sums.add_output(weight, notes)
        return matrix

    return _in_blocks(blocks, solve, device)


@torch.inference_mode()
def _in_blocks(
    blocks: Iterable[torch.Tensor],
    solve: Callable[[torch.Tensor, _Sums], QuantizedMatrix],
    device: torch.device,
) -> Quantized:
    sums = _Sums()
    parts: list[Packed] = []
    for block in blocks:
        weight = block.to(device).float()
        matrix = solve(weight, sums)
        sums.add_weight(weight, matrix)
        parts.append({tail: tensor.to("cpu") for tail, tensor in pack(matrix).items()})
    return Quantized(_joined(parts), _row(sums))


def _joined(parts: list[Packed]) -> Packed:
    """The packed form of blocks under each other."""
    if len(parts) == 1:
        return parts[0]
    joined = {tail: torch.cat([part[tail] for part in parts]) for tail in parts[0]}
    shapes = torch.stack([part["weight_shape"] for part in parts])
    joined["weight_shape"] = torch.stack((shapes[:, 0].sum(), shapes[0, 1]))
    return joined


def _row(sums: _Sums) -> dict[str, Any]:
    row: dict[str, Any] = {"weight_error": _ratio(sums.weight_error, sums.weight)}
    if sums.notes:
        first = sums.notes[0]
        row |= {
            "output_error": _ratio(sums.output_error, sums.output),
            "rtn_output_error": _ratio(sums.rtn_output_error, sums.output),
            "correction": _ratio(sums.moved, sums.weight),
            "damping": max(notes.damping for notes in sums.notes),
            "attempts": max(notes.attempts for notes in sums.notes),
            "dead_columns": first.dead_columns,
            "calibration_rows": first.rows,
            "rounded_rows": sum(notes.rounded_rows for notes in sums.notes),
            "precision": first.precision,
        }
    return row


def _ratio(error: float, size: float) -> float:
    """Root of the relative squared error: 0.1 is an error a tenth as large as what it is of."""
    return (error / size) ** 0.5 if size > 0 else 0.0
