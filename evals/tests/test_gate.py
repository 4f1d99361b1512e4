"""The gate fails a slowed copy, passes an equal one, and passes noise."""

import dataclasses
import random

import pytest
from bytebound_evals.errors import IncomparableError
from bytebound_evals.gate.compare import Comparison, compare, merged, parse_waivers
from bytebound_evals.gate.tables import markdown
from bytebound_evals.results import Metric, Result

from .speed_results import CASE, MACHINE, metric, result, scaled

SPEED = [f"{name}.tok_s" for name in ("plain_1k", "prose.mtp4", "code.mtp4", "prompt_2k")]


def noisy(seed: int, spread: float = 0.01, rounds: int = 5) -> Result:
    """Speeds and times around fixed centres, with one exact and one acceptance metric."""
    draw = random.Random(seed)

    def samples(centre: float) -> list[float]:
        return [centre * draw.gauss(1, spread) for _ in range(rounds)]

    metrics = {name: metric(*samples(100 + 50 * i)) for i, name in enumerate(SPEED)}
    metrics["prose.mtp4.step_ms"] = metric(*samples(8), unit="ms", better="lower", tol_pct=3.0)
    metrics["prose.mtp4.accepted_per_step"] = metric(3.2, unit="tok/step", tol_pct=1.0)
    metrics["prose.mtp4.same_tokens"] = metric(1.0, unit="share", tol_pct=0.0)
    return result(metrics)


def verdicts(comparison: Comparison) -> dict[str, str]:
    return {row.name: row.verdict for row in comparison.rows}


def test_an_equal_copy_passes() -> None:
    comparison = compare(noisy(0), noisy(0))
    assert not comparison.failed
    assert set(verdicts(comparison).values()) == {"ok"}


def test_a_slowed_copy_fails() -> None:
    slowed = scaled(noisy(0), lambda name, i: 0.94 if name.endswith("tok_s") else 1.0)
    comparison = compare(noisy(1), slowed)
    assert comparison.failed
    assert {name for name, verdict in verdicts(comparison).items() if verdict == "SLOWER"} == set(
        SPEED
    )


def test_one_slowed_metric_is_enough_and_time_counts_the_other_way() -> None:
    slowed = scaled(noisy(0), lambda name, i: 1.08 if name.endswith("step_ms") else 1.0)
    assert verdicts(compare(noisy(1), slowed))["prose.mtp4.step_ms"] == "SLOWER"
    assert verdicts(compare(slowed, noisy(1)))["prose.mtp4.step_ms"] == "faster"
    assert not compare(slowed, noisy(1)).failed


STEADY = [100, 101, 99, 100.5, 99.5]
OUTLIERS = {
    "head": (STEADY, [50, 50.5, 49.5, 50, 102]),
    "baseline": ([100, 100.1, 99.9, 100.05, 49], [50, 50.1, 49.9, 50.05, 49.95]),
    "both": ([100, 100.1, 99.9, 100.05, 49], [50, 50.5, 49.5, 50, 102]),
    "two of ten": (
        [*STEADY, 100.2, 99.8, 100.1, 48, 49],
        [50, 50.5, 49.5, 50.2, 49.8, 50.1, 49.9, 50.3, 102, 103],
    ),
}


@pytest.mark.parametrize("metrics", [1, 40, 120])
@pytest.mark.parametrize(("base", "head"), OUTLIERS.values(), ids=OUTLIERS)
def test_an_outlier_does_not_hide_a_slowdown(
    base: list[float], head: list[float], metrics: int
) -> None:
    others = {f"other{i}.tok_s": metric(*STEADY) for i in range(metrics - 1)}
    before = result({"a.tok_s": metric(*base), **others})
    after = result({"a.tok_s": metric(*head), **others})
    assert [row.name for row in compare(before, after).rows if row.fails] == ["a.tok_s"]
    assert verdicts(compare(after, before))["a.tok_s"] == "faster"


def test_a_change_within_the_tolerance_passes_however_sure_it_is() -> None:
    base = result({"a.tok_s": metric(*[100.0] * 5, tol_pct=3.0)})
    for factor, verdict in ((0.97, "ok"), (0.96, "SLOWER"), (1.03, "ok"), (1.05, "faster")):
        head = scaled(base, lambda name, i, factor=factor: factor)
        assert verdicts(compare(base, head)) == {"a.tok_s": verdict}


def test_a_change_beyond_the_tolerance_but_within_noise_is_said_and_passes() -> None:
    base = result({"a.tok_s": metric(70, 90, 100, 110, 130)})
    head = result({"a.tok_s": metric(65, 82, 92, 104, 125)})
    comparison = compare(base, head)
    assert verdicts(comparison) == {"a.tok_s": "noisy"}
    assert "1 changed beyond their tolerance, but within noise" in comparison.sentence()
    assert comparison.sentence() in markdown(comparison, base, head)
    assert not comparison.failed


def test_exactness_knows_no_tolerance_no_noise_and_no_median() -> None:
    base = result({"same": metric(1, 1, 1, 1, 1, unit="share", tol_pct=0.0)})
    head = result({"same": metric(1, 1, 0.999, 1, 1, unit="share", tol_pct=0.0)})
    assert verdicts(compare(base, head)) == {"same": "NOT EXACT"}
    assert compare(base, head, widen=10).failed
    assert verdicts(compare(head, base)) == {"same": "better"}
    bytes_ = result({"bytes": metric(100.0, unit="B", better="lower", tol_pct=0.0)})
    more = scaled(bytes_, lambda name, i: 1.0001)
    assert verdicts(compare(bytes_, more)) == {"bytes": "NOT EXACT"}


def test_acceptance_cannot_hide_a_slower_step() -> None:
    """Guesses stand more often, a step takes longer, tokens per second are the same."""
    base, other = noisy(0), noisy(1)
    hidden = scaled(
        other,
        lambda name, i: 1.1 if name.endswith(("step_ms", "accepted_per_step")) else 1.0,
    )
    comparison = compare(base, hidden)
    assert verdicts(comparison)["prose.mtp4.tok_s"] == "ok"
    assert verdicts(comparison)["prose.mtp4.step_ms"] == "SLOWER"
    assert [row.name for row in comparison.rows if row.is_acceptance] == [
        "prose.mtp4.accepted_per_step"
    ]
    assert "### Acceptance" in markdown(comparison, base, hidden)


def test_less_acceptance_fails_by_itself() -> None:
    less = scaled(noisy(1), lambda name, i: 0.98 if "accepted" in name else 1.0)
    assert verdicts(compare(noisy(0), less))["prose.mtp4.accepted_per_step"] == "WORSE"


def test_a_metric_that_vanished_fails_and_a_new_one_does_not() -> None:
    both = result({"a.tok_s": metric(1.0), "b.tok_s": metric(1.0)})
    one = result({"a.tok_s": metric(1.0)})
    assert verdicts(compare(both, one))["b.tok_s"] == "MISSING"
    assert compare(both, one).failed
    assert verdicts(compare(one, both))["b.tok_s"] == "new"
    assert not compare(one, both).failed


def test_a_baseline_of_zero() -> None:
    zero = result({"errors": metric(0.0, unit="count", better="lower")})
    some = result({"errors": metric(2.0, unit="count", better="lower")})
    assert verdicts(compare(zero, zero)) == {"errors": "ok"}
    assert verdicts(compare(zero, some)) == {"errors": "WORSE"}


def test_rounding_is_no_change() -> None:
    for base, head in ((0.0, 1e-15), (1e-16, 3e-16), (-1e-16, 1e-16)):
        before = result({"kl": metric(base, unit="nat", better="lower")})
        after = result({"kl": metric(head, unit="nat", better="lower")})
        assert verdicts(compare(before, after)) == {"kl": "ok"}
    exact = result({"kl": metric(0.0, unit="nat", better="lower", tol_pct=0.0)})
    off = result({"kl": metric(1e-15, unit="nat", better="lower", tol_pct=0.0)})
    assert verdicts(compare(exact, off)) == {"kl": "NOT EXACT"}


@pytest.mark.parametrize(
    ("base", "head", "better", "verdict"),
    [
        (-2.0, -3.0, "higher", "WORSE"),
        (-2.0, -3.0, "lower", "better"),
        (-2.0, -1.0, "lower", "WORSE"),
        (-2.0, 1.0, "lower", "WORSE"),
        (2.0, -1.0, "higher", "WORSE"),
        (-2.0, -2.01, "higher", "ok"),
    ],
)
def test_negative_medians(base: float, head: float, better: str, verdict: str) -> None:
    before = result({"loss": metric(*[base] * 3, unit="nat", better=better)})
    after = result({"loss": metric(*[head] * 3, unit="nat", better=better)})
    assert verdicts(compare(before, after)) == {"loss": verdict}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpu", "Other GPU"),
        ("driver", "590.2"),
        ("power_limit_w", "500.00"),
        ("gpu", None),
    ],
)
def test_another_machine_is_no_comparison(field: str, value: str | None) -> None:
    machine = {"cpu": "x", **MACHINE, field: value}
    other = result({"a": metric(1.0)}, machine={k: v for k, v in machine.items() if v is not None})
    with pytest.raises(IncomparableError, match="different machines"):
        compare(result({"a": metric(1.0)}), other)


def test_the_same_power_limit_written_otherwise_is_the_same() -> None:
    other = result({"a": metric(1.0)}, machine={**MACHINE, "power_limit_w": 700})
    assert not compare(result({"a": metric(1.0)}), other).failed


def test_another_torch_is_said() -> None:
    other = result({"a": metric(1.0)}, machine={**MACHINE, "torch": "2.12"})
    assert compare(result({"a": metric(1.0)}), other).remarks == (
        "torch: 2.11 in the baseline, 2.12 in head",
    )


def test_another_case_is_no_comparison() -> None:
    other = result({"a": metric(1.0, case={**CASE, "prompt_tokens": 512})})
    with pytest.raises(IncomparableError, match="prompt_tokens 1024 and 512"):
        compare(result({"a": metric(1.0)}), other)


def test_what_is_measured_in_a_case_may_differ() -> None:
    one = result({"a": metric(1.0, case={**CASE, "interval": [0.9, 1.1]})})
    other = result({"a": metric(1.0, case={**CASE, "interval": [0.8, 1.2]})})
    assert not compare(one, other).failed
    with pytest.raises(IncomparableError, match="higher tok/s and lower tok/s"):
        compare(result({"a": metric(1.0)}), result({"a": metric(1.0, better="lower")}))


def test_what_was_not_measured_cannot_pass() -> None:
    nothing = result({}, not_measured="no GPU")
    for pair in ((nothing, result({"a": metric(1.0)})), (result({"a": metric(1.0)}), nothing)):
        with pytest.raises(IncomparableError, match="not measured: no GPU"):
            compare(*pair)


def test_waivers_are_read_applied_and_shown() -> None:
    text = "Fixes #3\n\nperf-waiver: a.tok_s correct before fast\nPerf-Waiver: b.ms  x y\n"
    waivers = parse_waivers(text)
    assert waivers == {"a.tok_s": "correct before fast", "b.ms": "x y"}
    base = result({"a.tok_s": metric(*[100.0] * 5), "b.ms": metric(1.0, unit="ms")})
    head = result({"a.tok_s": metric(*[80.0] * 5), "b.ms": metric(1.0, unit="ms")})
    assert compare(base, head).failed
    comparison = compare(base, head, waivers=waivers)
    assert verdicts(comparison) == {"a.tok_s": "waived", "b.ms": "ok"}
    assert not comparison.failed
    assert "waived: correct before fast" in markdown(comparison, base, head)


def test_a_waiver_that_means_nothing_is_refused() -> None:
    one = result({"a": metric(1.0)})
    with pytest.raises(IncomparableError, match="no metric here"):
        compare(one, one, waivers={"b": "why"})
    with pytest.raises(IncomparableError, match="METRIC REASON"):
        parse_waivers("perf-waiver: a.tok_s")


def test_rounds_of_one_side_are_put_together() -> None:
    first, second = result({"a": metric(1.0, 2.0)}), result({"a": metric(3.0)})
    assert merged([first, second]).metrics["a"].samples == (1.0, 2.0, 3.0)
    for other, words in (
        (dataclasses.replace(second, commit="def"), "commits abc123 and def"),
        (result({"b": metric(3.0)}), "differ in their metrics: a, b"),
        (dataclasses.replace(second, machine={"cpu": "x"}), "different machines"),
    ):
        with pytest.raises(IncomparableError, match=words):
            merged([first, other])


def test_a_wider_tolerance_for_a_stored_baseline() -> None:
    base = result({"a.tok_s": metric(*[100.0] * 5, tol_pct=3.0)})
    head = result({"a.tok_s": metric(*[95.0] * 5, tol_pct=3.0)})
    assert compare(base, head).failed
    assert not compare(base, head, widen=2).failed


def test_the_tables_text_cannot_break_out() -> None:
    name = "a|b <img> @everyone `x`"
    one = result({name: Metric("tok/s", "higher", (1.0,), {})}, commit="`<b>`")
    text = markdown(compare(one, one), one, one)
    row = next(line for line in text.splitlines() if "img" in line)
    assert "a\\|b &lt;img&gt;" in row
    assert "@everyone" not in row
    assert "<b>" not in text
