"""GPTQ: round column by column, and let the columns to come make up for each rounding error.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", 2022. With H the Hessian of the inputs and U upper, ``U^T U = (H + damping)^-1``:

    for column j:   q_j = round(w_j);   e = (w_j - q_j) / U_jj;   w_k -= e U_jk  for k > j

Rows of the matrix are independent. Knows one matrix and one Hessian; no file, no model.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bytebound_quant.errors import CalibrationError, SchemeError, UnsupportedShapeError
from bytebound_quant.grid import (
    QuantizedMatrix,
    Scheme,
    check_weight,
    decode,
    find_grid,
    round_to_codes,
    row_chunks,
)
from bytebound_quant.hessian import Hessian
from bytebound_quant.rtn import rtn

GROWTH = 10.0  # of the damping, after a failed attempt
MOST_DAMPING = 10.0  # of the mean diagonal; behind it GPTQ is plain rounding anyway


@dataclass(frozen=True, slots=True)
class GptqNotes:
    """What happened to one matrix, for the report. Errors are those of the calibration outputs.

    An error is ``sum |(W - Q) X^T|^2 / sum |W X^T|^2``, 0 where the outputs are all zero.
    """

    damping: float  # used, as a part of the mean diagonal of the Hessian; 0 if all rows are rounded
    attempts: int  # factorisations tried, each with GROWTH times the damping of the one before
    dead_columns: int  # inputs that were zero in every calibration row: their weights are rounded
    rows: int  # calibration rows
    error: float  # of the result
    rtn_error: float  # of plain rounding
    rounded_rows: int  # rows of the matrix that plain rounding served better and that it kept
    precision: str  # of the factorisation: float32, float64, or none if every attempt failed


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
) -> tuple[QuantizedMatrix, GptqNotes]:
    """Quantize ``weight`` [N, K] so that its outputs on the calibration inputs change least.

    ``mse`` searches each group's range, weighted by the diagonal of the Hessian. ``act_order``
    takes the columns from the largest diagonal down; groups stay those of the column's place, so
    nothing more is stored. Otherwise a group's grid is found when its first column is reached,
    from the weights as corrected by then. ``damping``, a part of the mean diagonal, is added to
    the diagonal and grows until the factorisation holds. ``block`` columns are corrected at once
    (speed, and rounding only). A row that plain rounding serves better keeps plain rounding.

    Any float dtype, computed in float32 on the weight's device; the same input gives the same bits.
    Memory beside the arguments: about four times the Hessian and four times the float32 weight.

    Raises CalibrationError (no rows, another width, not finite), SchemeError for an option, and
    what ``find_grid`` raises.
    """
    check_weight(weight, scheme)
    _check(weight, hessian, damping, block)
    weight = weight.float()
    live = hessian.matrix.to(weight.device)
    diagonal = live.diagonal()
    dead = diagonal == 0
    plain = rtn(weight, scheme)
    plain_errors = output_errors(weight, plain, live)

    found, used, attempts, precision = None, damping, 0, "none"
    while found is None and used <= MOST_DAMPING:
        attempts += 1
        moment = _damped(live, dead, used)
        order = None
        if act_order:
            order = torch.argsort(diagonal, descending=True, stable=True)
        factor, precision = _factor(moment, order)
        if factor is not None:
            importance = moment.diagonal() if mse else None
            found = _solve(weight, factor, scheme, mse, importance, order, block)
        if found is None:
            used = max(used, damping or 0.001) * GROWTH if used else 0.001
    if found is None:
        result, errors, rounded = plain, plain_errors, weight.shape[0]
        used, precision = 0.0, "none"
    else:
        errors = output_errors(weight, found, live)
        better = errors <= plain_errors  # false for NaN
        result = _merge(better, found, plain)
        errors = torch.where(better, errors, plain_errors)
        rounded = int((~better).sum())
        if rounded == weight.shape[0]:
            used = 0.0
    size = _size(weight, live)
    return result, GptqNotes(
        damping=used,
        attempts=attempts,
        dead_columns=int(dead.sum()),
        rows=hessian.rows,
        error=_relative(errors, size),
        rtn_error=_relative(plain_errors, size),
        rounded_rows=rounded,
        precision=precision,
    )


def output_errors(weight: Tensor, matrix: QuantizedMatrix, moment: Tensor) -> Tensor:
    """Squared output error of each row, float32 [N]: ``d H d^T`` with ``d = w - q``."""
    errors = weight.new_empty(weight.shape[0], dtype=torch.float32)
    for part in row_chunks(weight):
        zero = None if matrix.zero_point is None else matrix.zero_point[part]
        off = weight[part].float() - decode(
            matrix.codes[part], matrix.scale[part], zero, matrix.scheme
        )
        errors[part] = ((off @ moment) * off).sum(1).clamp_(min=0)
    return errors


def _size(weight: Tensor, moment: Tensor) -> Tensor:
    """Squared output of each row, float32 [N]."""
    size = weight.new_empty(weight.shape[0])
    for part in row_chunks(weight):
        size[part] = ((weight[part] @ moment) * weight[part]).sum(1).clamp_(min=0)
    return size


def _relative(errors: Tensor, size: Tensor) -> float:
    total = float(size.double().sum())
    return float(errors.double().sum()) / total if total > 0 else 0.0


def _check(weight: Tensor, hessian: Hessian, damping: float, block: int) -> None:
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
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise SchemeError(f"block: got {block!r}, expected a whole number of at least 1")


def _damped(moment: Tensor, dead: Tensor, damping: float) -> Tensor:
    """``H + damping * mean(diag H)``; a dead column gets the mean itself and touches no other."""
    diagonal = moment.diagonal()
    mean = diagonal.sum() / (~dead).sum().clamp(min=1)
    mean = torch.where(mean > 0, mean, 1.0)
    damped = moment.clone()
    damped.diagonal().copy_(torch.where(dead, mean, diagonal + damping * mean))
    return damped


def _factor(moment: Tensor, order: Tensor | None) -> tuple[Tensor | None, str]:
    """U, upper, float32, with ``U^T U = moment^-1`` in the given order of columns, or None.

    Read backwards, the Cholesky factor of ``moment`` is upper: ``moment = R R^T``, so ``U = R^-1``.
    The inverse is never formed, which costs less and keeps half of the digits that it would lose.
    """
    backwards = moment if order is None else moment[order][:, order]
    backwards = backwards.flip(0, 1)
    for dtype in (torch.float32, torch.float64):
        lower, failed = torch.linalg.cholesky_ex(backwards.to(dtype))
        if int(failed):
            continue
        upper = lower.flip(0, 1)
        identity = torch.eye(upper.shape[0], dtype=dtype, device=upper.device)
        inverse = torch.linalg.solve_triangular(upper, identity, upper=True).float()
        if torch.isfinite(inverse).all() and (inverse.diagonal() > 0).all():
            return inverse, str(dtype).removeprefix("torch.")
    return None, "none"


def _solve(
    weight: Tensor,
    factor: Tensor,
    scheme: Scheme,
    mse: bool,
    importance: Tensor | None,
    order: Tensor | None,
    block: int,
) -> QuantizedMatrix | None:
    """The column loop; None if a corrected weight is not finite or leaves float16's range."""
    size = scheme.group_size
    columns = weight.shape[1]
    work = weight.T.contiguous() if order is None else weight.T[order]  # [K, N]
    places = list(range(columns)) if order is None else order.tolist()
    codes = torch.empty_like(work, dtype=torch.int8)  # [K, N], in the order of the columns
    grids = _Grids(weight, scheme, mse, importance)
    if order is not None:
        grids.find_all()
    for start, end in _blocks(columns, block, size if order is None else columns):
        if order is None and start % size == 0 and not grids.find(start, work):
            return None
        part = work[start:end]
        errors = torch.empty_like(part)
        corner = factor[start:end, start:end]
        for j in range(end - start):
            scale, zero = grids.of(places[start + j])
            code = round_to_codes(part[j], scale, zero)
            codes[start + j] = code
            rounded = code * scale if zero is None else (code - zero) * scale
            errors[j] = (part[j] - rounded) / corner[j, j]
            part[j + 1 :].addr_(corner[j, j + 1 :], errors[j], alpha=-1)
        work[end:].addmm_(factor[start:end, end:].T, errors, alpha=-1)
    if not torch.isfinite(work).all():
        return None
    if order is not None:
        codes = torch.empty_like(codes).index_copy_(0, order, codes)
    return grids.matrix(codes.T.contiguous())


def _blocks(columns: int, block: int, span: int) -> list[tuple[int, int]]:
    """Ranges of at most ``block`` columns, none across a multiple of ``span``.

    So all corrections have reached a group's columns when its grid is found.
    """
    return [
        (start, min(start + block, edge + span))
        for edge in range(0, columns, span)
        for start in range(edge, edge + span, block)
    ]


class _Grids:
    """Scale and zero point of the groups found so far, [K/G, N]: a group's are contiguous."""

    def __init__(
        self, weight: Tensor, scheme: Scheme, mse: bool, importance: Tensor | None
    ) -> None:
        groups = scheme.groups(weight.shape[1])
        self.weight, self.scheme, self.mse, self.importance = weight, scheme, mse, importance
        self.scale = weight.new_ones((groups, weight.shape[0]))
        self.zero = None if scheme.symmetric else torch.zeros_like(self.scale)

    def find_all(self) -> None:
        """Find every grid, from the weights as given."""
        scale, zero = find_grid(self.weight, self.scheme, mse=self.mse, importance=self.importance)
        self.scale = scale.T.float()
        self.zero = None if zero is None else zero.T.float()

    def find(self, start: int, work: Tensor) -> bool:
        """Find the grid of the group that starts at column ``start`` of ``work`` [K, N]."""
        span = slice(start, start + self.scheme.group_size)
        group = work[span].T
        if not torch.isfinite(group).all():
            return False
        weigh = None if self.importance is None else self.importance[span]
        scale, zero = find_grid(group, self.scheme, mse=self.mse, importance=weigh)
        self.scale[start // self.scheme.group_size] = scale[:, 0]
        if self.zero is not None and zero is not None:
            self.zero[start // self.scheme.group_size] = zero[:, 0]
        return True

    def of(self, column: int) -> tuple[Tensor, Tensor | None]:
        """Scale and zero point, float32 [N], of the group of ``column``."""
        group = column // self.scheme.group_size
        return self.scale[group], None if self.zero is None else self.zero[group]

    def matrix(self, codes: Tensor) -> QuantizedMatrix:
        """The result for ``codes`` [N, K]."""
        scale = self.scale.T.to(torch.float16).contiguous()
        zero = None if self.zero is None else self.zero.T.to(torch.int8).contiguous()
        return QuantizedMatrix(codes, scale, zero, self.scheme)


def _merge(first: Tensor, one: QuantizedMatrix, other: QuantizedMatrix) -> QuantizedMatrix:
    """The rows of ``one`` where ``first`` [N] holds, else those of ``other``."""
    pick = first.unsqueeze(1)
    zero = None
    if one.zero_point is not None and other.zero_point is not None:
        zero = torch.where(pick, one.zero_point, other.zero_point)
    return QuantizedMatrix(
        torch.where(pick, one.codes, other.codes),
        torch.where(pick, one.scale, other.scale),
        zero,
        one.scheme,
    )
