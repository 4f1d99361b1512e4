"""The rule of the gate: worse beyond the tolerance AND beyond noise, or not exact where it must be.

Both sides are result files. Several files of one side are rounds of one measurement, as an A B A B
run makes them: their samples are put together.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bytebound_evals.errors import IncomparableError
from bytebound_evals.gate.noise import Change, Pair, certain_change, changes
from bytebound_evals.results import Metric, Result

CONDITIONS = ("gpu", "cpu", "driver", "power_limit_w", "threads")
"""Fields of a machine that must be equal: with another card or driver there is no comparison."""
REMARKED = ("cuda", "torch", "python")
"""Fields whose difference is allowed and said."""
MEASURED_IN_CASE = frozenset({"interval", "tokens_per_step", "bytes_per_token", "read_gb_s"})
"""Fields of a case that are measured themselves, and so may differ."""
DEFAULT_TOLERANCE_PCT = {"tok/s": 3.0, "GB/s": 3.0, "%": 3.0, "ms": 5.0, "us": 5.0, "s": 5.0}
OTHER_TOLERANCE_PCT = 1.0
LEAST_CHANGE = 1e-12
"""In the metric's own unit: medians closer than this are equal but for rounding."""
ROUNDING = 1e-9
"""Relative: a change of just the tolerance is within it."""
FIRST_ENGINE = "graph"
"""The engine of results that name none: of a CPU, or older than the choice."""
SPEED_UNITS = frozenset(DEFAULT_TOLERANCE_PCT)
ACCEPTANCE_FIELDS = frozenset({"accepted_per_step", "acceptance", "accept_len"})
FAILING = frozenset({"SLOWER", "WORSE", "NOT EXACT", "MISSING"})


@dataclass(frozen=True, slots=True)
class Row:
    """One metric on both sides, and what the gate says of it."""

    name: str
    unit: str
    case: str
    base: Metric | None
    head: Metric | None
    tol_pct: float
    change: Change | None
    percent_of_limit: float | None
    verdict: str
    """ok, faster, better, noisy, SLOWER, WORSE, NOT EXACT, MISSING, new, or waived."""
    reason: str = ""

    @property
    def fails(self) -> bool:
        """Whether this row fails the gate."""
        return self.verdict in FAILING

    @property
    def is_acceptance(self) -> bool:
        """How often guesses stand: in rows of its own, so that it cannot hide in tokens per second.

        Where it changed, ``step_ms`` says what a step costs without it.
        """
        return self.name.rsplit(".", 1)[-1] in ACCEPTANCE_FIELDS

    def as_dict(self) -> dict[str, Any]:
        """The row for JSON."""
        return {
            "metric": self.name,
            "unit": self.unit,
            "base": None if self.base is None else self.base.median,
            "head": None if self.head is None else self.head.median,
            "ratio": None if self.change is None else self.change.ratio,
            "interval": None if self.change is None else [self.change.low, self.change.high],
            "tol_pct": self.tol_pct,
            "verdict": self.verdict,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows, and remarks about conditions that differ and may."""

    rows: tuple[Row, ...]
    remarks: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """Whether any row fails."""
        return any(row.fails for row in self.rows)

    def sentence(self) -> str:
        """The outcome; what noise hid is said, as a gate that cannot see passes everything."""
        count = len(self.rows)
        failed = sum(row.fails for row in self.rows)
        noisy = sum(row.verdict == "noisy" for row in self.rows)
        outcome = f"{failed} of {count} metrics fail" if failed else f"passed: {count} metrics"
        if noisy:
            outcome += f"; {noisy} changed beyond their tolerance, but within noise"
        return outcome


def merged(results: Sequence[Result]) -> Result:
    """Rounds of one measurement as one result.

    Raises:
        IncomparableError: the rounds are not of one machine, engine, commit, set of metrics and
            cases.
    """
    first = results[0]
    for other in results[1:]:
        _same_machine(first, other, "two rounds of one side")
        _same_engine(first, other, "two rounds of one side")
        if other.commit != first.commit:
            raise IncomparableError(
                f"rounds of one side are of commits {first.commit} and {other.commit}"
            )
        if other.metrics.keys() != first.metrics.keys():
            odd = sorted(other.metrics.keys() ^ first.metrics.keys())
            raise IncomparableError(f"rounds of one side differ in their metrics: {', '.join(odd)}")
        for name, metric in first.metrics.items():
            _same_case(name, metric, other.metrics[name])
    metrics = {
        name: replace(
            metric,
            samples=tuple(s for result in results for s in result.metrics[name].samples),
        )
        for name, metric in first.metrics.items()
    }
    return replace(first, metrics=metrics)


def compare(
    base: Result, head: Result, *, waivers: Mapping[str, str] | None = None, widen: float = 1.0
) -> Comparison:
    """Every metric of either side.

    ``waivers``: reasons by metric, for changes that are meant. ``widen`` multiplies tolerances, for
    a comparison with a stored result instead of a run by turns.

    Raises:
        IncomparableError: another card, driver, engine or case; nothing measured on a side; a
            waiver for a metric that is not there.
    """
    for side, result in (("baseline", base), ("head", head)):
        _was_measured(side, result)
    _same_machine(base, head, "baseline and head")
    _same_engine(base, head, "baseline and head")
    waived = dict(waivers or {})
    names = [*base.metrics, *(name for name in head.metrics if name not in base.metrics)]
    unknown = sorted(waived.keys() - set(names))
    if unknown:
        raise IncomparableError(f"a waiver names {unknown[0]}, which is no metric here")
    moved = _changes(base, head, widen)
    rows = tuple(
        _row(name, base.metrics.get(name), head, waived, widen, moved.get(name)) for name in names
    )
    remarks = tuple(
        f"{field}: {base.machine.get(field)} in the baseline, {head.machine.get(field)} in head"
        for field in REMARKED
        if base.machine.get(field) != head.machine.get(field)
    )
    return Comparison(rows, remarks)


def check_repeatable(base: Result, here: Callable[[str], Mapping[str, Any]]) -> None:
    """Refuse a baseline that nothing measured on this machine could be compared with.

    ``here`` is told "cpu" or "cuda" and gives the record of this machine, as
    ``conditions.machine_record`` does.

    Raises:
        IncomparableError: it is of another machine, or was not measured.
    """
    _was_measured("baseline", base)
    gpu = base.machine.get("gpu")
    try:
        machine = here("cpu" if gpu is None else "cuda")
    except (RuntimeError, AssertionError) as error:  # torch's, without a driver or without CUDA
        raise IncomparableError(
            f"the baseline is of the GPU {gpu!r}, and there is none here; measure both on one "
            "machine"
        ) from error
    _same_machine(base, replace(base, machine=dict(machine)), "the baseline and what runs here")


def _changes(base: Result, head: Result, widen: float) -> dict[str, Change]:
    """Of every metric of both sides, but those whose baseline is 0; exact ones have no noise."""
    found, judged = {}, {}
    for name, before in base.metrics.items():
        after = head.metrics.get(name)
        if after is None:
            continue
        _same_case(name, before, after)
        if not before.median:
            continue
        tolerance = tolerance_pct(before) * widen
        if tolerance:
            judged[name] = Pair(before.samples, after.samples, tolerance / 100)
        else:
            found[name] = certain_change(before.samples, after.samples)
    return found | dict(zip(judged, changes(list(judged.values())), strict=True))


def _row(
    name: str,
    base: Metric | None,
    result: Result,
    waivers: Mapping[str, str],
    widen: float,
    moved: Change | None,
) -> Row:
    head = result.metrics.get(name)
    some = base or head
    if some is None:
        raise ValueError(f"{name} is on neither side")
    tolerance = tolerance_pct(some) * widen
    limit = result.metrics.get(f"{name.rpartition('.')[0]}.percent_of_limit")
    if base is None:
        verdict = "new"
    elif head is None:
        verdict = "MISSING"
    else:
        verdict = verdict_of(base, head, moved, tolerance)
    reason = ""
    if verdict in FAILING and name in waivers:
        verdict, reason = "waived", waivers[name]
    return Row(
        name=name,
        unit=some.unit,
        case=_case_text(some.case),
        base=base,
        head=head,
        tol_pct=tolerance,
        change=moved,
        percent_of_limit=None if limit is None or limit is head else limit.median,
        verdict=verdict,
        reason=reason,
    )


def tolerance_pct(metric: Metric) -> float:
    """The metric's own tolerance, else that of its unit."""
    if metric.tol_pct is not None:
        return metric.tol_pct
    return DEFAULT_TOLERANCE_PCT.get(metric.unit, OTHER_TOLERANCE_PCT)


def verdict_of(base: Metric, head: Metric, moved: Change | None, tol_pct: float) -> str:
    """What one metric's change is; ``moved`` None: the baseline's median is 0.

    Negative medians are compared like others: higher is more, and the tolerance is a share of the
    baseline's magnitude.
    """
    if tol_pct == 0:  # exactness: the worst sample counts, and noise is no excuse
        worst = min if base.better == "higher" else max
        gain = worst(head.samples) - worst(base.samples)
        gain = gain if base.better == "higher" else -gain
        return "NOT EXACT" if gain < 0 else "better" if gain > 0 else "ok"
    if abs(head.median - base.median) <= LEAST_CHANGE:
        return "ok"
    if moved is None:
        return "better" if (head.median > 0) == (base.better == "higher") else "WORSE"
    speed = base.unit in SPEED_UNITS
    gain_pct = 100 * (moved.ratio - 1) * (1 if base.better == "higher" else -1)
    if abs(gain_pct) <= tol_pct * (1 + ROUNDING):
        return "ok"
    if not moved.is_significant:
        return "noisy"
    if gain_pct > 0:
        return "faster" if speed else "better"
    return "SLOWER" if speed else "WORSE"


def spread_pct(metric: Metric) -> float:
    """Highest minus lowest sample, in percent of the median."""
    middle = statistics.median(metric.samples)
    return 100 * (max(metric.samples) - min(metric.samples)) / abs(middle) if middle else 0.0


def parse_waivers(text: str) -> dict[str, str]:
    """Lines ``perf-waiver: METRIC REASON`` of a pull request's text.

    Raises:
        IncomparableError: a line without a metric or without a reason.
    """
    waivers = {}
    for line in text.splitlines():
        head, sign, rest = line.strip().partition(":")
        if not sign or head.lower() != "perf-waiver":
            continue
        metric, _, reason = rest.strip().partition(" ")
        if not metric or not reason.strip():
            raise IncomparableError(
                f"waiver {line.strip()!r}: expected 'perf-waiver: METRIC REASON'"
            )
        waivers[metric] = reason.strip()
    return waivers


def _was_measured(side: str, result: Result) -> None:
    if result.not_measured is not None:
        raise IncomparableError(f"the {side} was not measured: {result.not_measured}")


def _same_machine(one: Result, other: Result, what: str) -> None:
    for field in CONDITIONS:
        mine, theirs = one.machine.get(field), other.machine.get(field)
        if _plain(mine) != _plain(theirs):
            raise IncomparableError(
                f"{what} are of different machines: {field} is {mine!r} and {theirs!r}; measure "
                "both on one"
            )


def _same_engine(one: Result, other: Result, what: str) -> None:
    mine, theirs = (result.machine.get("engine", FIRST_ENGINE) for result in (one, other))
    if mine != theirs:
        raise IncomparableError(
            f"{what} are of different engines, {mine!r} and {theirs!r}; measure both with one "
            "--engine"
        )


def _same_case(name: str, one: Metric, other: Metric) -> None:
    odd = [
        f"{key} {one.case.get(key)!r} and {other.case.get(key)!r}"
        for key in {**one.case, **other.case}
        if key not in MEASURED_IN_CASE and one.case.get(key) != other.case.get(key)
    ]
    if (one.unit, one.better) != (other.unit, other.better):
        odd.append(f"{one.better} {one.unit} and {other.better} {other.unit}")
    if not odd:
        return
    raise IncomparableError(f"{name}: measured under different conditions: {'; '.join(odd)}")


def _plain(value: Any) -> Any:
    """700, "700" and "700.00" are one power limit."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return value


def _case_text(case: Mapping[str, Any]) -> str:
    shown: Iterable[str] = (f"{key} {value}" for key, value in case.items())
    return ", ".join(shown)
