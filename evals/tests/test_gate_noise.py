"""How the gate behaves where the truth is known: noise alone passes, a real slowdown does not.

Made-up runs of 120 metrics with fixed seeds. "noise" is a standard deviation, as a share.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from bytebound_evals.gate.compare import compare
from bytebound_evals.gate.noise import (
    ERROR_RATE,
    Pair,
    certain_change,
    changes,
    moderated,
    t_quantile,
)
from numpy.typing import NDArray

from .speed_results import metric, result

METRICS = 120
TOLERANCE = 0.03
README = Path(__file__).parents[1] / "README.md"

Array = NDArray[np.float64]
NOISES: dict[str, Callable[[np.random.Generator], Array]] = {
    "1 %": lambda draw: np.full(METRICS, 0.01),
    "3 %": lambda draw: np.full(METRICS, 0.03),
    "20 %": lambda draw: np.full(METRICS, 0.2),
    "up to 3 %": lambda draw: draw.uniform(0, 0.03, METRICS),
    "up to 20 %": lambda draw: draw.uniform(0, 0.2, METRICS),
    "0.1 % and 3 %": lambda draw: np.repeat([0.001, 0.03], METRICS // 2),
    "1 %, one 20 %": lambda draw: np.append(np.full(METRICS - 1, 0.01), 0.2),
}


def noise_of(draw: np.random.Generator, shape: tuple[int, int], *, outliers: bool) -> Array:
    """Normal noise of size 1; with outliers every tenth sample is five times as far off."""
    drawn = draw.standard_normal(shape)
    return np.where(draw.random(shape) < 0.1, 5 * drawn, drawn) if outliers else drawn


def two_runs(
    seed: int,
    noise: Callable[[np.random.Generator], Array],
    *,
    samples: int = 5,
    slower: float = 0.0,
    outliers: bool = False,
) -> tuple[list[Pair], int]:
    """The same 120 metrics twice, around 100; the first with 1 % noise or less may be slowed."""
    draw = np.random.default_rng(seed)
    sizes = noise(draw)
    base, head = (
        100 * (1 + sizes[:, None] * noise_of(draw, (METRICS, samples), outliers=outliers))
        for _ in range(2)
    )
    slowed = int(np.argmin(np.abs(sizes - 0.01)))
    if slower:
        drawn = noise_of(draw, (2, samples), outliers=outliers)
        base[slowed], head[slowed] = 100 * (1 + 0.01 * drawn)
        head[slowed] *= 1 - slower
    pairs = [Pair(b, h, TOLERANCE) for b, h in zip(base.tolist(), head.tolist(), strict=True)]
    return pairs, slowed


def failing(pairs: Sequence[Pair]) -> list[int]:
    """Metrics that the rule calls slower: the gate's own, without its tables."""
    found = enumerate(changes(pairs))
    return [i for i, one in found if one.ratio < 1 - TOLERANCE and one.is_significant]


def share_of(gates: int, outcome: Callable[[int], bool]) -> float:
    return sum(map(outcome, range(gates))) / gates


@pytest.mark.parametrize("outliers", [False, True], ids=["normal", "outliers"])
@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_noise_alone_passes(noise: Callable[[np.random.Generator], Array], outliers: bool) -> None:
    passed = share_of(100, lambda seed: not failing(two_runs(seed, noise, outliers=outliers)[0]))
    assert passed >= 0.99


def test_noise_alone_passes_the_whole_gate() -> None:
    """As above through ``compare``, where a failing row is what fails a run."""
    for seed in range(20):
        pairs, _ = two_runs(1000 + seed, NOISES["up to 20 %"])
        base, head = (
            result({f"m{i}.tok_s": metric(*side, tol_pct=3.0) for i, side in enumerate(sides)})
            for sides in ([pair.base for pair in pairs], [pair.head for pair in pairs])
        )
        assert not compare(base, head).failed


@pytest.mark.parametrize(
    ("samples", "noise", "least"),
    [
        (5, "1 %", 0.99),
        (5, "1 %, one 20 %", 0.95),
        (5, "up to 3 %", 0.75),
        (5, "20 %", 0.45),  # nothing is learnt from such neighbours
        (10, "1 %", 1.0),
        (10, "up to 3 %", 1.0),
        (10, "20 %", 1.0),
    ],
)
def test_a_slowdown_of_5_percent_at_1_percent_noise_fails(
    samples: int, noise: str, least: float
) -> None:
    def is_seen(seed: int) -> bool:
        pairs, slowed = two_runs(seed, NOISES[noise], samples=samples, slower=0.05)
        return slowed in failing(pairs)

    assert share_of(100, is_seen) >= least


def test_what_the_readme_says_is_seen() -> None:
    """The table: by noise and samples, the slowdown that 95 % of gates see."""
    rows = re.findall(r"^\| ([\d.]+) %((?: \| [\d.]+ %)+) \|$", README.read_text(), re.MULTILINE)
    assert len(rows) == 5
    for word, cells in rows:
        noise = float(word) / 100
        said = [float(cell) / 100 for cell in re.findall(r"[\d.]+", cells)]
        cases = [(5, 1), (5, 10), (10, 1), (10, 10)]
        for (samples, louder), slower in zip(cases, said, strict=True):
            seen = [_is_seen(seed, noise, louder, samples, slower) for seed in range(20)]
            assert sum(seen) >= 0.9 * len(seen), (word, samples, louder)
            less = max(TOLERANCE, 0.75 * slower)
            seen = [_is_seen(seed, noise, louder, samples, less) for seed in range(20)]
            assert sum(seen) <= 0.9 * len(seen), (word, samples, louder)


def _is_seen(seed: int, noise: float, louder: float, samples: int, slower: float) -> bool:
    draw = np.random.default_rng(seed)
    sizes = np.append(noise, np.full(METRICS - 1, noise * louder))[:, None]
    base, head = (1 + sizes * draw.standard_normal((METRICS, samples)) for _ in range(2))
    head[0] *= 1 - slower
    pairs = [Pair(b, h, TOLERANCE) for b, h in zip(base.tolist(), head.tolist(), strict=True)]
    return 0 in failing(pairs)


def test_one_metric_is_students_t_test() -> None:
    base, head = [9.0, 10.0, 11.0, 10.0, 10.0], [8.0, 9.0, 10.0, 9.0, 9.0]
    (one,) = changes([Pair(base, head, TOLERANCE)])
    # Pooled: the squares of both sides come to 4, over 8 degrees of freedom, in medians of 10.
    noise = t_quantile(ERROR_RATE / 2, 8) * math.sqrt(4 / 8) / 10 * math.sqrt(1 / 5 + 1 / 5)
    assert (one.ratio, one.low, one.high) == pytest.approx((0.9, 0.9 - noise, 0.9 + noise))


@pytest.mark.parametrize(
    ("tail", "freedom", "expected"),
    [
        (0.25, 1, 1.0),  # Cauchy: tan(pi / 4)
        (0.025, 2, 4.30265),
        (0.005, 8, 3.35539),
        (0.0005, 18, 3.92165),
        (0.001, 1e4, 3.09105),
    ],
)
def test_students_quantiles(tail: float, freedom: float, expected: float) -> None:
    assert t_quantile(tail, freedom) == pytest.approx(expected, rel=2e-4)


def test_deviations_are_drawn_together_as_far_as_they_agree() -> None:
    draw = np.random.default_rng(0)
    freedom = np.full(100, 8.0)
    alike = np.sqrt(draw.chisquare(8, 100) / 8)
    drawn, degrees = moderated(alike, freedom)
    assert np.ptp(drawn) < 0.1 * np.ptp(alike)
    assert drawn == pytest.approx(np.ones(100), rel=0.1)
    assert degrees.min() > 100
    apart = alike * np.geomspace(0.01, 100, 100)
    drawn, degrees = moderated(apart, freedom)
    assert np.abs(np.log(drawn / apart)).max() < 0.4  # of 9.2 from one end to the other
    assert degrees.max() < 10
    drawn, degrees = moderated(alike[:1], freedom[:1])
    assert (drawn[0], degrees[0]) == pytest.approx((alike[0], 8))  # nobody to learn from


def test_without_a_spread_the_tolerance_decides() -> None:
    pairs = [Pair([2.0], [3.0], TOLERANCE), Pair([0.1] * 5, [0.2] * 5, TOLERANCE)]
    noisy = Pair([90.0, 100, 110, 95, 105], [80.0, 90, 100, 85, 95], TOLERANCE)
    single, equal, other = changes([*pairs, noisy])
    assert (single.ratio, single.low, single.high) == (1.5, 1.5, 1.5)
    assert single.is_significant and equal.is_significant and not other.is_significant
    assert changes([noisy]) == [other]  # those without a spread are not counted
    assert changes([]) == []
    assert not certain_change([2.0], [2.0]).is_significant


def test_means_and_medians_must_say_the_same() -> None:
    """An outlier that makes the mean faster does not make a slower median significant."""
    base = [100.0, 100.1, 99.9, 100.0, 100.0]
    (one,) = changes([Pair(base, [94.0, 95.0, 96.0, 1e4, 1e4 + 1], TOLERANCE)])
    assert one.ratio == pytest.approx(0.96)
    assert not one.is_significant


def test_numbers_of_any_size_are_compared() -> None:
    pairs = [
        Pair([1e-300, 2e-300, 3e-300], [1e300, 2e300, 3e300], TOLERANCE),
        Pair([1.7e308, -1.7e308, 1e308], [1.0, 2.0, 3.0], TOLERANCE),
        Pair([5e-324, 5e-324, 1e308], [1.0, 2.0, 3.0], TOLERANCE),
    ]
    for one in changes(pairs):
        assert all(map(math.isfinite, (one.ratio, one.low, one.high)))
        json.dumps([one.low, one.high], allow_nan=False)
