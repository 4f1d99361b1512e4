"""GPTQ: round column by column, and let the columns to come make up for each rounding error.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", 2022. With H the Hessian of the inputs and U upper, ``U^T U = (H + damping)^-1``:

    for column j:   q_j = round(w_j);   e = (w_j - q_j) / U_jj;   w_k -= e U_jk  for k > j

Rows of the matrix are independent. Knows one matrix and one Hessian; no file, no model.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bytebound_quant.errors import (
    CalibrationError,
    ScaleRangeError,
    SchemeError,
    UnsupportedShapeError,
)
from bytebound_quant.grid import (
    QuantizedMatrix,
    Scheme,
    check_weight,
    find_grid,
    grid_search,
    round_to_codes,
)
from bytebound_quant.hessian import Hessian
from bytebound_quant.refine import refined
from bytebound_quant.replay import Replayed
from bytebound_quant.rtn import rtn

GROWTH = 10.0  # of the damping, after a failed attempt
LEAST_DAMPING = 0.001  # tried after a failed attempt with none
CAUTION = 4.0  # how much faster than the Hessian's diagonal the step to W* shrinks
MOST_DAMPING = 10.0  # of the mean diagonal; behind it GPTQ is plain rounding anyway
RUN = {"cpu": 1 << 25, "cuda": 1 << 27}  # weights worked on at a time, by device type


@dataclass(frozen=True, slots=True)
class GptqNotes:
    """What happened to one matrix, for the report. Errors are those of the calibration outputs.

    An error is ``sum |(W* - Q) X^T|^2 / sum |W* X^T|^2``, 0 where the outputs are all zero; W* is W
    itself unless the Hessian knows of the 16-bit model's inputs.
    """

    damping: float  # used, as a part of the mean diagonal of the Hessian; 0 if all rows are rounded
    shrinkage: float  # used, as a part of each diagonal entry; 0 if all rows are rounded
    attempts: int  # factorisations tried, each with GROWTH times the damping of the one before
    dead_columns: int  # inputs that were zero in every calibration row: their weights are rounded
    rows: int  # calibration rows
    size: float  # the squared outputs themselves, 2/n of their sum over rows
    correction: float  # |W* - W| / |W|: how far the target was moved to make up for earlier errors
    error: float  # of the result
    rtn_error: float  # of plain rounding
    rounded_rows: int  # rows of the matrix that plain rounding served better: they kept it
    precision: str  # of the factorisation: float32, float64, or none if every attempt failed


class _Options(NamedTuple):
    scheme: Scheme
    mse: bool
    block: int
    rounds: int
    step: float  # of the way to W*


class _Factor(NamedTuple):
    """A factorised Hessian: what the column loop and the refinement need of it."""

    damped: Tensor  # [K, K] float32
    inverse: Tensor  # U [K, K] float32, in the order of the columns
    order: Tensor | None  # [K] int64: which column comes when; None for the order of storage
    precision: str


class _Part(NamedTuple):
    """Some rows of the result, and each row's squared output error and output."""

    matrix: QuantizedMatrix
    moved: Tensor  # [n] float32: |w* - w|^2
    errors: Tensor  # [n] float32
    plain_errors: Tensor  # [n] float32
    size: Tensor  # [n] float32
    rounded: int


@torch.no_grad()
def gptq(
    weight: Tensor,
    hessian: Hessian,
    scheme: Scheme,
    *,
    mse: bool = True,
    act_order: bool = False,
    damping: float = 0.01,
    block: int = 128,
    refine: int = 2,
    shrinkage: float = 1.0,
    lack: Tensor | None = None,
) -> tuple[QuantizedMatrix, GptqNotes]:
    """Quantize ``weight`` [N, K] so that its outputs on the calibration inputs change least.

    With ``hessian.drift`` D, and ``lack`` A [N, K] (the rows of ``hessian.lack`` that belong to
    these rows of the weight), the outputs to keep are those of the 16-bit model. The best matrix
    for them before rounding, by damped least squares that leans towards W, takes W's place:

        W* = W + step (W D + A) (H + damping)^-1,    step = 1 / (1 + 4 shrinkage sqrt(K / rows))

    With step 1 and no damping ``|W X'^T + R^T - Q X^T|^2 = |(W* - Q) X^T|^2 + a part without Q``,
    R being the rows that A sums. The term with D is GPTAQ's objective (Li et al., arXiv
    2504.02692), solved in closed form. The step is short where rows are few: there W* fits noise.

    ``mse`` searches each group's range, every column weighted by what its error costs, 1 / U_jj^2.
    ``act_order`` takes the columns from the largest diagonal down; groups stay those of the
    column's place, so nothing more is stored. Otherwise a group's grid is found when its first
    column is reached, from the weights as corrected by then. ``damping``, a part of the mean
    diagonal, is added to the diagonal and grows until the factorisation holds. ``block`` columns
    are corrected at once (speed, and rounding only). ``refine`` rounds of ``refined`` follow.

    ``shrinkage`` times sqrt(K / rows), times each diagonal entry, is added too: products of two
    columns are known the less the fewer the rows, and trusting them fits noise. It cut the error on
    other inputs of the shipped model's matrices (K 256 to 768) by half at 128 rows and by 6 % at
    4,096, and goes to zero with more. ``refine`` and ``shrinkage`` of 0 are GPTQ as published.
    A row that plain rounding serves better keeps plain rounding.

    Any float dtype, computed in float32 on the weight's device; the same input gives the same bits.
    Memory beside arguments and result: about six times the Hessian (twelve where float32 fails to
    factorise it) and eight times ``RUN`` float32 weights.

    Raises CalibrationError (no rows, not finite), SchemeError for an option, UnsupportedShapeError
    for a Hessian of another width, and what ``find_grid`` raises.
    """
    check_weight(weight, scheme)
    _check(weight, hessian, damping, shrinkage, block, refine)
    _check_beside(weight, hessian, lack)
    shrunk = shrinkage * (hessian.features / hessian.rows) ** 0.5
    options = _Options(scheme, mse, block, refine, 1 / (1 + CAUTION * shrunk))
    moment = hessian.matrix.to(weight.device)
    drift = None if hessian.drift is None else hessian.drift.to(weight.device)
    parts: list[_Part] | None = None
    used, attempts, precision = damping, 0, "none"
    for used in _dampings(damping):
        attempts += 1
        factor = _factorise(moment, used, shrunk, act_order)
        if factor is None:
            continue
        parts = _all_rows(weight, moment, factor, options, drift, lack)
        if parts is not None:
            precision = factor.precision
            break
    if parts is None:
        parts = [_choose(run, run, None, moment, scheme) for _, run in _runs(weight)]
    rounded = sum(part.rounded for part in parts)
    size = _total([part.size for part in parts])
    moved = _total([part.moved for part in parts])
    weighs = sum(float(run.square().sum(dtype=torch.float64)) for _, run in _runs(weight))
    return _join([part.matrix for part in parts]), GptqNotes(
        damping=used if rounded < weight.shape[0] else 0.0,
        shrinkage=shrunk if rounded < weight.shape[0] else 0.0,
        attempts=attempts,
        dead_columns=int((moment.diagonal() == 0).sum()),
        rows=hessian.rows,
        size=size,
        correction=(moved / weighs) ** 0.5 if weighs > 0 else 0.0,
        error=_total([part.errors for part in parts]) / (size or 1.0),
        rtn_error=_total([part.plain_errors for part in parts]) / (size or 1.0),
        rounded_rows=rounded,
        precision=precision,
    )


def output_errors(weight: Tensor, matrix: QuantizedMatrix, moment: Tensor) -> Tensor:
    """Squared output error of each row, float32 [N]: ``d H d^T`` with ``d = w - q``.

    ``weight`` [N, K], ``moment`` the Hessian [K, K], float32.
    """
    off = weight.float() - matrix.dequantize()
    return ((off @ moment) * off).sum(1).clamp_(min=0)


def _dampings(first: float) -> Iterator[float]:
    """``first`` and what follows it, up to MOST_DAMPING."""
    damping = first
    while damping <= MOST_DAMPING:
        yield damping
        damping = damping * GROWTH or LEAST_DAMPING


def _runs(weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The rows of ``weight``, float32, about RUN weights at a time, and which they are."""
    rows = max(1, RUN.get(weight.device.type, RUN["cpu"]) // weight.shape[1])
    for start in range(0, weight.shape[0], rows):
        yield slice(start, start + rows), weight[start : start + rows].float()


def _all_rows(
    weight: Tensor,
    moment: Tensor,
    factor: _Factor,
    options: _Options,
    drift: Tensor | None,
    lack: Tensor | None,
) -> list[_Part] | None:
    """The result with this factor; None if it leaves what float32 or the scale can hold."""
    parts = []
    for span, run in _runs(weight):
        pull = None if drift is None else run @ drift
        if lack is not None:
            missing = lack[span].to(run)
            pull = missing if pull is None else pull + missing
        target = run if pull is None else run + options.step * _times_inverse(pull, factor)
        found = _solve(target, factor, options)
        if found is None:
            return None
        found = refined(target, found, factor.damped, rounds=options.rounds)
        parts.append(_choose(run, target, found, moment, options.scheme))
    return parts


def _times_inverse(rows: Tensor, factor: _Factor) -> Tensor:
    """``rows (H + damping)^-1``, [n, K], by U."""
    if factor.order is None:
        return rows @ factor.inverse.T @ factor.inverse
    ordered = rows[:, factor.order] @ factor.inverse.T @ factor.inverse
    return torch.empty_like(ordered).index_copy_(1, factor.order, ordered)


def _choose(
    weight: Tensor,
    target: Tensor,
    found: QuantizedMatrix | None,
    moment: Tensor,
    scheme: Scheme,
) -> _Part:
    """Of every row, the better of ``found`` and plain rounding of ``weight``."""
    plain = rtn(weight, scheme)
    moved = (target - weight).square().sum(1)
    plain_errors = output_errors(target, plain, moment)
    size = ((target @ moment) * target).sum(1).clamp_(min=0)
    if found is None:
        return _Part(plain, moved, plain_errors, plain_errors, size, weight.shape[0])
    errors = output_errors(target, found, moment)
    better = errors <= plain_errors  # false for NaN
    errors = torch.where(better, errors, plain_errors)
    rounded = int((~better).sum())
    return _Part(_merge(better, found, plain), moved, errors, plain_errors, size, rounded)


def _total(parts: list[Tensor]) -> float:
    return sum(float(part.double().sum()) for part in parts)


def _check(
    weight: Tensor, hessian: Hessian, damping: float, shrinkage: float, block: int, refine: int
) -> None:
    if hessian.features != weight.shape[1]:
        raise UnsupportedShapeError(
            f"the matrix has {weight.shape[1]} input features, the calibration {hessian.features}"
        )
    if not hessian.rows:
        raise CalibrationError("no calibration rows were added for this matrix")
    if not torch.isfinite(hessian.matrix).all():
        raise CalibrationError(
            f"the calibration inputs of this matrix ({hessian.rows} rows) hold values that are not "
            "finite, or whose squares are not: the layers before it produce them"
        )
    if not 0 <= damping <= MOST_DAMPING:
        raise SchemeError(f"damping: got {damping!r}, expected 0 to {MOST_DAMPING:g}")
    if not 0 <= shrinkage < float("inf"):
        raise SchemeError(f"shrinkage: got {shrinkage!r}, expected a number from 0 on")
    for name, value, least in (("block", block, 1), ("refine", refine, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise SchemeError(f"{name}: got {value!r}, expected a whole number from {least} on")


def _check_beside(weight: Tensor, hessian: Hessian, lack: Tensor | None) -> None:
    if lack is not None and lack.shape != weight.shape:
        raise UnsupportedShapeError(
            f"lack: got {list(lack.shape)}, the matrix is {list(weight.shape)}"
        )
    for moment in (hessian.drift, lack):
        if moment is not None and not torch.isfinite(moment).all():
            raise CalibrationError(
                f"the 16-bit model's calibration inputs of this matrix ({hessian.rows} rows) hold "
                "values that are not finite, or whose squares are not"
            )


def _factorise(moment: Tensor, damping: float, shrunk: float, act_order: bool) -> _Factor | None:
    """Damp and factorise the Hessian; None where neither float32 nor float64 can.

    Read backwards, the Cholesky factor of H is upper: ``H = R R^T``, so ``U = R^-1``. The inverse
    of H is never formed, which costs less and keeps half of the digits that it would lose.
    """
    diagonal = moment.diagonal()
    damped = _damped(moment, damping, shrunk)
    order = None
    backwards = damped
    if act_order:
        order = torch.argsort(diagonal, descending=True, stable=True)
        backwards = damped[order][:, order]
    backwards = backwards.flip(0, 1)
    for dtype in (torch.float32, torch.float64):
        lower, failed = torch.linalg.cholesky_ex(backwards.to(dtype))
        if int(failed):
            continue
        identity = torch.eye(lower.shape[0], dtype=dtype, device=lower.device)
        inverse = torch.linalg.solve_triangular(lower.flip(0, 1), identity, upper=True).float()
        if torch.isfinite(inverse).all() and (inverse.diagonal() > 0).all():
            return _Factor(damped, inverse, order, str(dtype).removeprefix("torch."))
    return None


def _damped(moment: Tensor, damping: float, shrunk: float) -> Tensor:
    """``H + damping * mean(diag H) + shrunk * diag H``.

    A dead column gets the mean itself and touches no other.
    """
    diagonal = moment.diagonal()
    dead = diagonal == 0
    mean = diagonal.sum() / (~dead).sum().clamp(min=1)
    mean = torch.where(mean > 0, mean, 1.0)
    damped = moment.clone()
    damped.diagonal().copy_(torch.where(dead, mean, diagonal * (1 + shrunk) + damping * mean))
    return damped


def _solve(weight: Tensor, factor: _Factor, options: _Options) -> QuantizedMatrix | None:
    """The column loop over float32 ``weight`` [n, K].

    None if a corrected weight is not finite or leaves float16's range.
    """
    order, inverse = factor.order, factor.inverse
    columns, size = weight.shape[1], options.scheme.group_size
    work = weight.T.clone() if order is None else weight.T[order]  # [K, n]: columns contiguous
    codes = torch.empty_like(work, dtype=torch.int8)  # [K, n], in the order of the columns
    grids = _Grids(weight.shape, weight.device, options, _costs(factor) if options.mse else None)
    if order is not None and not grids.find(0, weight):
        return None
    round_block = Replayed(_round_block, changed=3)
    for start, end in _blocks(columns, options.block, size if order is None else columns):
        if order is None and start % size == 0:
            group = work[start : start + size].T
            if not grids.find(start, group):
                return None
        part = work[start:end]
        errors = torch.empty_like(part)
        corner = inverse[start:end, start:end]
        grid = grids.of(slice(start, end) if order is None else order[start:end])
        round_block(part, codes[start:end], errors, corner, *grid)
        work[end:].addmm_(inverse[start:end, end:].T, errors, alpha=-1)
    if not torch.isfinite(work).all():
        return None
    if order is not None:
        codes = torch.empty_like(codes).index_copy_(0, order, codes)
    return grids.matrix(codes.T.contiguous())


def _round_block(
    part: Tensor,
    codes: Tensor,
    errors: Tensor,
    corner: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
) -> None:
    """The columns of one block, [m, n], one after the other; changes the first three arguments.

    ``corner`` [m, m] is the block's part of U, ``scale`` and ``zero`` are [m, n].
    """
    for j in range(part.shape[0]):
        shift = None if zero is None else zero[j]
        code = round_to_codes(part[j], scale[j], shift)
        codes[j] = code
        rounded = code * scale[j] if shift is None else (code - shift) * scale[j]
        errors[j] = (part[j] - rounded) / corner[j, j]
        part[j + 1 :].addr_(corner[j, j + 1 :], errors[j], alpha=-1)


def _costs(factor: _Factor) -> Tensor:
    """What a squared error of each column costs when it is rounded: 1 / U_jj^2, [K]."""
    costs = factor.inverse.diagonal().square().reciprocal()
    if factor.order is None:
        return costs
    return torch.empty_like(costs).index_copy_(0, factor.order, costs)


def _blocks(columns: int, block: int, span: int) -> Iterator[tuple[int, int]]:
    """Ranges of at most ``block`` columns, none across a multiple of ``span``.

    So all corrections have reached a group's columns when its grid is found.
    """
    for edge in range(0, columns, span):
        for start in range(edge, edge + span, block):
            yield start, min(start + block, edge + span)


class _Grids:
    """Scale and zero point of the groups found so far, float32 [K/G, n]: a group's contiguous."""

    def __init__(
        self, shape: torch.Size, device: torch.device, options: _Options, costs: Tensor | None
    ) -> None:
        self.scheme, self.mse, self.costs = options.scheme, options.mse, costs
        self._search = Replayed(grid_search(self.scheme, mse=self.mse))
        groups = (self.scheme.groups(shape[1]), shape[0])
        self.scale = torch.ones(groups, device=device)
        self.zero = None if self.scheme.symmetric else torch.zeros_like(self.scale)

    def find(self, start: int, weight: Tensor) -> bool:
        """Find the grids of ``weight`` [n, m], columns from ``start`` on; false if none fits."""
        if not torch.isfinite(weight).all():
            return False
        costs = None if self.costs is None else self.costs[start : start + weight.shape[1]]
        try:
            scale, zero = find_grid(
                weight, self.scheme, mse=self.mse, importance=costs, search=self._search
            )
        except ScaleRangeError:
            return False
        first = start // self.scheme.group_size
        self.scale[first : first + scale.shape[1]] = scale.T
        if self.zero is not None and zero is not None:
            self.zero[first : first + zero.shape[1]] = zero.T
        return True

    def of(self, columns: slice | Tensor) -> tuple[Tensor, ...]:
        """Scale and, where there is one, zero point of each of ``columns``, [m, n] float32.

        A slice lies within one group.
        """
        size = self.scheme.group_size
        kept = (self.scale,) if self.zero is None else (self.scale, self.zero)
        if isinstance(columns, slice):
            count = columns.stop - columns.start
            return tuple(one[columns.start // size].expand(count, -1) for one in kept)
        return tuple(one[columns // size] for one in kept)

    def matrix(self, codes: Tensor) -> QuantizedMatrix:
        """The result for ``codes`` [n, K]."""
        scale = self.scale.T.to(torch.float16).contiguous()
        zero = None if self.zero is None else self.zero.T.to(torch.int8).contiguous()
        return QuantizedMatrix(codes, scale, zero, self.scheme)


def _merge(first: Tensor, one: QuantizedMatrix, other: QuantizedMatrix) -> QuantizedMatrix:
    """The rows of ``one`` where ``first`` [n] holds, else those of ``other``."""
    pick = first.unsqueeze(1)
    zero = None
    if one.zero_point is not None and other.zero_point is not None:
        zero = torch.where(pick, one.zero_point, other.zero_point)
    codes = torch.where(pick, one.codes, other.codes)
    return QuantizedMatrix(codes, torch.where(pick, one.scale, other.scale), zero, one.scheme)


def _join(parts: list[QuantizedMatrix]) -> QuantizedMatrix:
    """The rows of all parts, in their order."""
    zeros = [part.zero_point for part in parts if part.zero_point is not None]
    return QuantizedMatrix(
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scale for part in parts]),
        torch.cat(zeros) if zeros else None,
        parts[0].scheme,
    )
