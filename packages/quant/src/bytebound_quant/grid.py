"""The 4-bit grid of a matrix: which scale and zero point a group gets, and which code a weight.

Knows one matrix ``[N, K]``, cut along K into groups of G columns; no file, no model, no layer.

    symmetric    code in -8..7     w ~ code * scale             scale = max|w| / 7.5
    asymmetric   code in 0..15     w ~ (code - zero) * scale    scale = (max - min) / 15

A scale is rounded to float16, as it is stored, before any weight is encoded with it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bytebound_quant.errors import (
    NonFiniteWeightError,
    ScaleRangeError,
    SchemeError,
    UnsupportedShapeError,
)

LEVELS = 16
OFFSET = LEVELS // 2  # a symmetric code plus this is the unsigned nibble
SMALLEST_SCALE = 2.0**-24  # the smallest float16 above zero
LARGEST_VALUE = 65504.0  # the largest float16
CHUNK = {"cpu": 1 << 20, "cuda": 1 << 24}  # weights searched at a time, by device type
SHRINK = tuple(1.0 - 0.01 * i for i in range(51))  # parts of the full range that are tried


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a matrix is stored: 4 bits a weight, a float16 scale (and a zero point) per group.

    Raises SchemeError for a value that the format or the kernels do not have.
    """

    symmetric: bool = True
    group_size: int = 128
    bits: int = 4

    def __post_init__(self) -> None:
        if self.bits != 4:
            raise SchemeError(f"bits: got {self.bits!r}, only 4 is supported")
        if not isinstance(self.symmetric, bool):
            raise SchemeError(f"symmetric: got {self.symmetric!r}, expected true or false")
        size = self.group_size
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise SchemeError(f"group_size: got {size!r}, expected a whole number of at least 1")

    @property
    def code_range(self) -> tuple[int, int]:
        """The lowest and the highest code."""
        return (-OFFSET, OFFSET - 1) if self.symmetric else (0, LEVELS - 1)

    @property
    def largest_scale(self) -> float:
        """The scale above which some code would not dequantize to a finite float16."""
        return LARGEST_VALUE / (OFFSET if self.symmetric else LEVELS - 1)

    def describe(self) -> str:
        """One phrase for reports: ``int4 symmetric, group 128``."""
        kind = "symmetric" if self.symmetric else "asymmetric"
        return f"int{self.bits} {kind}, group {self.group_size}"

    def groups(self, columns: int) -> int:
        """Groups of a row of ``columns`` weights.

        Raises UnsupportedShapeError where a group would be cut short: compressed-tensors refuses
        such a matrix, so it could be written but not read.
        """
        if columns < 1 or columns % self.group_size:
            raise UnsupportedShapeError(
                f"{columns} input features are not a multiple of the group size "
                f"{self.group_size}: keep this matrix in 16 bit or choose a group size that divides"
            )
        return columns // self.group_size

    def bits_per_weight(self, rows: int, columns: int) -> float:
        """Stored bits per weight of a ``[rows, columns]`` matrix, padding of the words included.

        4.125 symmetric and 4.15625 asymmetric at group 128 for dimensions that are multiples of 8.
        The 16 bytes of ``weight_shape`` are not counted.
        """
        groups = self.groups(columns)
        bits = 32 * rows * -(-columns // 8) + 16 * rows * groups
        if not self.symmetric:
            bits += 32 * -(-rows // 8) * groups
        return bits / (rows * columns)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedMatrix:
    """A matrix ``[N, K]`` in 4 bits, unpacked: one code per int8."""

    codes: Tensor  # [N, K] int8, -8..7 symmetric, 0..15 asymmetric
    scale: Tensor  # [N, K/G] float16 (bfloat16 where another tool wrote it so)
    zero_point: Tensor | None  # [N, K/G] int8, 0..15; None for a symmetric scheme
    scheme: Scheme

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The matrix it stands for, ``[N, K]``: ``(codes - zero) * scale``.

        The product is exact in float32 and is rounded once, to ``dtype``.
        """
        return decode(self.codes, self.scale, self.zero_point, self.scheme).to(dtype)


def decode(codes: Tensor, scale: Tensor, zero: Tensor | None, scheme: Scheme) -> Tensor:
    """``(codes - zero) * scale`` in float32, exact: ``codes`` [N, K], the others [N, K/G]."""
    groups = _by_group(codes, scheme).float()
    if zero is not None:
        groups = groups - zero.unsqueeze(2).float()
    return (groups * scale.unsqueeze(2).float()).flatten(1)


def encode(weight: Tensor, scale: Tensor, zero: Tensor | None, scheme: Scheme) -> Tensor:
    """The code of every weight, int8 ``[N, K]``: the nearest that exists, halves to the even one.

        round(clamp(w / scale + zero))

    ``weight`` [N, K] of any float dtype, computed in float32; ``scale`` and ``zero`` [N, K/G] as
    ``find_grid`` gives them. The same codes as compressed-tensors', bit for bit.
    """
    groups = _by_group(weight, scheme).float()
    shift = None if zero is None else zero.unsqueeze(2)
    return round_to_codes(groups, scale.unsqueeze(2), shift).to(torch.int8).flatten(1)


def round_to_codes(weight: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """Float32 codes of ``weight``; the arguments broadcast. The formula of ``encode``."""
    code = weight / scale.float()
    if zero is None:
        return code.clamp_(-OFFSET, OFFSET - 1).round_()
    # Around -8, as compressed-tensors rounds: the float32 sum can differ around 0.
    code += zero.float() - OFFSET
    return code.clamp_(-OFFSET, OFFSET - 1).round_().add_(OFFSET)


def find_grid(
    weight: Tensor,
    scheme: Scheme,
    *,
    mse: bool = False,
    importance: Tensor | None = None,
    search: "Search | None" = None,
) -> tuple[Tensor, Tensor | None]:
    """Scale (float16) and zero point (int8, None if symmetric) of every group, each ``[N, K/G]``.

        plain   the group's full range, zero included
        mse     that range times the factor p in 1.0 .. 0.5 that minimises
                sum over the group of importance * (w - dequantized w)^2

    ``weight`` [N, K], any float dtype; ``importance`` [K], at least 0, used by ``mse`` only. A
    group of zeros gets the scale 1. A scale too small for float16 becomes the smallest float16.
    ``search`` takes the place of ``grid_search(scheme, mse)``, to be given for many calls. Memory:
    a few times ``CHUNK`` weights beside the result.

    Raises UnsupportedShapeError (not a float matrix, a group cut short), NonFiniteWeightError and
    ScaleRangeError, naming row and column.
    """
    check_weight(weight, scheme)
    rows, columns = weight.shape
    groups = scheme.groups(columns)
    scale = weight.new_empty((rows, groups), dtype=torch.float16)
    zero = None if scheme.symmetric else torch.empty_like(scale, dtype=torch.int8)
    weigh = None
    if importance is not None:
        weigh = importance.to(weight.device, torch.float32).view(groups, scheme.group_size)
    search = search or grid_search(scheme, mse=mse)
    for part in row_chunks(weight):
        chunk = _by_group(weight[part], scheme).float()
        found, shift = search(chunk) if weigh is None else search(chunk, weigh)
        scale[part] = found
        if zero is not None and shift is not None:
            zero[part] = shift
    _check_range(scale, scheme)
    return scale, zero


Search = Callable[..., tuple[Tensor, Tensor | None]]
"""(weights [n, groups, G], importance [groups, G] or nothing) -> scale and zero, [n, groups]."""


def grid_search(scheme: Scheme, *, mse: bool) -> Search:
    """What ``find_grid`` does to a chunk of weights."""
    return partial(_search, scheme, SHRINK if mse else SHRINK[:1])


def _by_group(matrix: Tensor, scheme: Scheme) -> Tensor:
    """[N, K] as [N, K/G, G]."""
    return matrix.reshape(matrix.shape[0], -1, scheme.group_size)


def row_chunks(weight: Tensor) -> Iterator[slice]:
    """Ranges of rows that hold about ``CHUNK`` weights each."""
    rows = max(1, CHUNK.get(weight.device.type, CHUNK["cpu"]) // max(1, weight.shape[1]))
    for start in range(0, weight.shape[0], rows):
        yield slice(start, start + rows)


def check_weight(weight: Tensor, scheme: Scheme) -> None:
    """Refuse what cannot be quantized: see ``find_grid``'s errors."""
    if weight.dim() != 2 or not weight.is_floating_point() or not weight.shape[0]:
        raise UnsupportedShapeError(
            f"expected a floating point matrix [N, K], got {list(weight.shape)} {weight.dtype}"
        )
    scheme.groups(weight.shape[1])
    for part in row_chunks(weight):
        finite = torch.isfinite(weight[part])
        if not finite.all():
            row, column = (~finite).nonzero()[0].tolist()
            row += part.start
            value = weight[row, column].item()
            raise NonFiniteWeightError(f"weight [{row}, {column}] is {value}")


def _search(
    scheme: Scheme, factors: tuple[float, ...], weight: Tensor, importance: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Scale and zero of ``weight`` [n, groups, G]: the factor with the least error, first on a tie.

    With one factor nothing is compared.
    """
    low = weight.amin(2).clamp_(max=0)
    high = weight.amax(2).clamp_(min=0)
    best = _grid(low, high, scheme)
    if len(factors) == 1:
        return best
    least = _error(weight, *best, importance)
    for factor in factors[1:]:
        scale, zero = _grid(low * factor, high * factor, scheme)
        error = _error(weight, scale, zero, importance)
        better = error < least
        least = torch.where(better, error, least)
        best = (
            torch.where(better, scale, best[0]),
            None if zero is None or best[1] is None else torch.where(better, zero, best[1]),
        )
    return best


def _grid(low: Tensor, high: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor | None]:
    """The grid that spans ``low`` <= 0 <= ``high``, [n, groups] each, its scale as stored."""
    if scheme.symmetric:
        return _stored(torch.maximum(-low, high) / ((LEVELS - 1) / 2)), None
    scale = _stored((high - low) / (LEVELS - 1))
    zero = (-low / scale.float()).round_().clamp_(0, LEVELS - 1)
    return scale, zero.to(torch.int8)


def _stored(scale: Tensor) -> Tensor:
    """``scale`` as float16: never zero, 1 where it was zero, infinite where it overflows."""
    half = scale.to(torch.float16)
    half = torch.where(half == 0, SMALLEST_SCALE, half)
    return torch.where(scale == 0, 1.0, half).to(torch.float16)


def _error(weight: Tensor, scale: Tensor, zero: Tensor | None, importance: Tensor | None) -> Tensor:
    """Squared error of each group, [n, groups]; ``weight`` [n, groups, G]."""
    step = scale.unsqueeze(2).float()
    shift = None if zero is None else zero.unsqueeze(2)
    code = round_to_codes(weight, step, shift)
    if shift is not None:
        code -= shift
    error = code.mul_(step).sub_(weight).square_()
    if importance is not None:
        error *= importance
    return error.sum(2)


def _check_range(scale: Tensor, scheme: Scheme) -> None:
    """Every dequantized weight must be a finite float16: other tools dequantize in that dtype."""
    over = ~(scale.float() <= scheme.largest_scale)
    if over.any():
        row, group = over.nonzero()[0].tolist()
        first = group * scheme.group_size
        raise ScaleRangeError(
            f"row {row}, columns {first} to {first + scheme.group_size - 1}: the weights span more "
            f"than float16 can dequantize (at most {LARGEST_VALUE:g}); keep this matrix in 16 bit"
        )
