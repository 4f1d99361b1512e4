"""The CUDA backend held against the reference, op by op: the first op that differs has a name.

Both executors take the same ids in the same passes. Whatever enters or leaves a product in a pass
of the CUDA backend is kept (``taps.py``) and compared with what the reference has there. The
reference then goes on with the value of the CUDA backend, so that each of its ops works on the very
input that the other one had: an error stays with the op that made it, and an error in carried state
shows in the op that reads that state. With ``apart=False`` each goes on with its own value, and
errors add up as they do in a model. Neither executor has a hook for this.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

import torch

from bytebound.comparison import TAIL, check_rows, positions_needed
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.state import KvCache
from bytebound.cuda.taps import tapping
from bytebound.errors import InvalidSettingError
from bytebound.reference.executor import ReferenceExecutor
from bytebound.reference.rows import Rows
from bytebound.reference.taps import AtProducts, Multiply, weight_at
from bytebound.taps import EMBEDDING, FUSED, PARTS, Place, Product

# bfloat16 keeps 8 bits: one rounding is up to 2^-9 of a value, and an op makes a few of them.
APART_BOUND = 2e-2
# Ten such ops a layer, each on what the ones before it have made of their roundings.
TOGETHER_BOUND = 1e-1
# A norm ends the op, and enlarges the rounding of a row whose recurrent output is next to nothing.
GATED_DELTA_BOUND = 1e-1
FLOAT8_BOUND = 1e-1  # of attention to a cache whose values keep 4 bits: 2^-5 on average, up to 2^-4


@dataclass(frozen=True, slots=True)
class Difference:
    """One op of one pass."""

    run: str  # which pass
    place: Place
    error: float  # relative root-mean-square error over all rows
    worst_error: float  # the same of the row where it is largest; infinite where it is not finite
    worst_position: int  # of that row in the sequence
    apart: bool
    bound: float

    @property
    def measure(self) -> float:
        """What the bound is held against.

        The worst row where the inputs are the same. Where they are not, a row whose terms cancel
        may differ by any factor, so it is the error over all rows.
        """
        return self.worst_error if self.apart else self.error

    @property
    def within(self) -> bool:
        """Whether it is no more than rounding."""
        return self.measure <= self.bound


@dataclass(slots=True)
class DiffReport:
    """What a comparison found, in the order of the ops."""

    apart: bool
    differences: list[Difference] = field(default_factory=list)
    unseen: list[Place] = field(default_factory=list)
    """Products that the CUDA backend does not show; the op behind them stands for them too."""

    @property
    def first(self) -> Difference | None:
        """The first op beyond its bound."""
        return next((one for one in self.differences if not one.within), None)


def run_diff(
    reference: ReferenceExecutor,
    executor: CudaExecutor,
    ids: Sequence[int],
    *,
    rows: int = 1,
    apart: bool = True,
    bound: float | None = None,
) -> DiffReport:
    """Compare a prompt, ``rows`` passes of ``rows`` rows, and a prompt that goes on behind them.

    The passes go on with the ids of the prompt, over again, and commit 1, 2, ... ``rows`` of their
    rows, so that every number of accepted rows is replayed. ``bound`` is what a row of an op may
    differ by, or with ``apart=False`` all rows of it: ``|got - expected| / |expected|``, Euclidean.
    Both executors must be built from the same weights; they are reset before and after.

    Raises:
        InvalidSettingError: ``rows`` is not 1 to 8, or the context of one is too short.
    """
    check_rows(rows)
    needed = positions_needed(len(ids), rows)
    for one in (reference, executor):
        if one.max_len < needed:
            raise InvalidSettingError(
                f"max_len={one.max_len}: a prompt of {len(ids)} ids and what is compared behind it "
                f"take {needed} positions; give fewer ids"
            )
    if bound is None:
        bound = APART_BOUND if apart else TOGETHER_BOUND
    report = DiffReport(apart)
    pair = _Pair(reference, executor, report, bound)
    more = cycle(ids)
    pair.reset()
    try:
        pair.prompt(list(ids))
        for keep in range(1, rows + 1):
            pair.step(list(islice(more, rows)), keep)
        pair.prompt(list(islice(more, TAIL)))
    finally:
        pair.reset()
    return report


class _Pair:
    """Takes both executors through the same passes."""

    def __init__(
        self,
        reference: ReferenceExecutor,
        executor: CudaExecutor,
        report: DiffReport,
        bound: float,
    ) -> None:
        self.reference = reference
        self.executor = executor
        self.report = report
        self.bound = bound
        self.float8 = any(
            isinstance(layer, KvCache) and layer.k_scale is not None
            for layer in executor.state.layers
        )

    def reset(self) -> None:
        self.reference.reset()
        self.executor.reset()

    def prompt(self, ids: list[int]) -> None:
        """Commit ids, in chunks that either of the two takes as one pass."""
        size = min(self.reference.prefill_chunk, self.executor.prefill_chunk)
        for start in range(0, len(ids), size):
            chunk = ids[start : start + size]
            rows = Rows(self.reference.position, len(chunk), wide=True)
            self._compare(chunk, rows, self.executor.prefill, self.reference.prefill)

    def step(self, ids: list[int], keep: int) -> None:
        """A pass of a few rows, of which the first ``keep`` are committed."""
        rows = Rows(self.reference.position, len(ids), wide=False)
        self._compare(ids, rows, self.executor.verify, self.reference.verify)
        self.executor.commit(keep)
        self.reference.commit(keep)

    def _compare(
        self,
        ids: list[int],
        rows: Rows,
        run_cuda: Callable[[list[int]], object],
        run_reference: Callable[[list[int]], object],
    ) -> None:
        kept: dict[Place, Product] = {}

        def keep(one: Product) -> None:
            kept[one.place] = Product(one.place, one.x.clone(), one.residual, one.out.clone())

        with tapping(self.executor, keep):
            run_cuda(ids)
        comparison = _Comparison(self, kept, rows)
        with AtProducts(self.reference.weights, comparison.at_product):
            run_reference(ids)


class _Comparison:
    """One pass: what was kept of it, against what the reference has in the same places."""

    def __init__(self, pair: _Pair, kept: dict[Place, Product], rows: Rows) -> None:
        self._pair = pair
        self._kept = kept
        self._rows = rows
        self._name = f"{'prompt' if rows.wide else 'step'} at {rows.start}, {rows.count} rows"
        self._seen: set[Place] = set()
        self._residual: torch.Tensor | None = None  # as the next product must find it

    def at_product(self, place: Place, x: torch.Tensor, multiply: Multiply) -> torch.Tensor:
        """Compare the product's input, unless that was done, and its output."""
        if place == EMBEDDING:
            return self._at_embedding(multiply(x))
        product = self._kept.get(Place(place.layer, FUSED[place.op]))
        if product is None:
            if place not in self._pair.report.unseen:
                self._pair.report.unseen.append(place)
            return multiply(x)
        if product.residual is not None:
            if self._residual is not None:
                self._check(Place(place.layer, "residual"), self._residual, product.residual)
            self._residual = product.out
        self._check(place.feed(), x, product.x)
        own = multiply(self._followed(x, product.x))
        if place.op in PARTS["gate_up"]:
            return own  # the kernels give what becomes of both, and down_proj takes that
        theirs = product.out if product.residual is None else product.out - product.residual
        theirs = self._part(place, theirs)
        self._check(place, own, theirs)
        return self._followed(own, theirs)

    def _at_embedding(self, own: torch.Tensor) -> torch.Tensor:
        for op in ("o_proj", "out_proj"):
            first = self._kept.get(Place(0, op))
            if first is not None and first.residual is not None:
                self._check(EMBEDDING, own, first.residual)
                return self._followed(own, first.residual)
        self._pair.report.unseen.append(EMBEDDING)
        return own

    def _part(self, place: Place, fused: torch.Tensor) -> torch.Tensor:
        """The columns of a fused product that belong to one of its matrices."""
        start = 0
        for part in PARTS[FUSED[place.op]]:
            weight = weight_at(self._pair.reference.weights, Place(place.layer, part))
            width = 0 if weight is None else weight.shape[0]
            if part == place.op:
                return fused[:, start : start + width]
            start += width
        raise ValueError(f"{place} is no part of a product")

    def _followed(self, own: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        """What the reference goes on with; rows that only it has stay its own."""
        if not self._pair.report.apart:
            return own
        theirs = theirs.to(own)
        if len(theirs) == len(own):
            return theirs
        placed = own.clone()
        placed[self._rows.slots] = theirs
        return placed

    def _check(self, place: Place, own: torch.Tensor, theirs: torch.Tensor) -> None:
        """Add a difference, once for each op; ``own`` may hold slots that are no rows."""
        if place in self._seen:
            return
        self._seen.add(place)
        live = own if len(own) == len(theirs) else own[self._rows.slots]
        error, by_row = _relative_errors(live, theirs)
        worst = max(range(len(by_row)), key=by_row.__getitem__)
        # A prompt has logits for its last row only.
        position = self._rows.start + self._rows.count - len(by_row) + worst
        self._pair.report.differences.append(
            Difference(
                self._name,
                place,
                error,
                by_row[worst],
                position,
                self._pair.report.apart,
                self._bound(place),
            )
        )

    def _bound(self, place: Place) -> float:
        bound = self._pair.bound
        if place.op == "gated_delta_net":
            return max(bound, GATED_DELTA_BOUND)
        rounded = self._pair.float8 and place.op == "attention"
        return max(bound, FLOAT8_BOUND) if rounded else bound


def _relative_errors(expected: torch.Tensor, got: torch.Tensor) -> tuple[float, list[float]]:
    """Root-mean-square error relative to ``expected`` [T, N]: over all, and of each row."""
    wanted, found = expected.double(), got.to(expected.device).double()
    wrong, size = (found - wanted).square().sum(-1), wanted.square().sum(-1)
    rows = torch.where(wrong == 0, 0.0, (wrong / size).sqrt()).nan_to_num(nan=torch.inf)
    error = (wrong.sum() / size.sum()).sqrt().nan_to_num(nan=torch.inf)
    return float(error) if float(wrong.sum()) != 0 else 0.0, rows.tolist()
