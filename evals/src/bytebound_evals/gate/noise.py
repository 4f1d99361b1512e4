"""Is a change of a metric more than noise? Judged for all metrics of a comparison together.

A run has few samples of each metric, and many metrics. Five samples tell a metric's noise only
roughly, and among a hundred metrics some always look quieter than they are: those are what a naive
test flags. So a metric's noise is estimated in two ways, each of which may speak:

- **own**: from its own samples alone, by a t test that knows how rough that is;
- **common**: its own variance drawn towards that of the other metrics, as far as theirs agree with
  one another (Smyth's moderated t). Where all are alike this is as good as knowing the noise; where
  they differ it comes to its own.

Both are held to ``ERROR_RATE`` over the whole comparison by Bonferroni's bound.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

ERROR_RATE = 0.005
"""How often noise alone may fail a gate, over all of its metrics."""
MOST_SPREADS = 20.0
"""Medians further apart than so many robust spreads differ, whatever outliers say.

Normal noise of five samples does that once in a million times.
"""
ENOUGH_FOR_SPREADS = 5
"""Of fewer samples a median deviation says nothing."""
QUIET = 0.05
"""Noise below this share of a metric's tolerance decides nothing and is no model for others."""
MAD_TO_SIGMA = 1.4826
"""The median absolute deviation of normal noise times this is its standard deviation."""
_PRIOR_FREEDOM = np.geomspace(0.1, 1e4, 26)
_PRIOR_STEPS = 41
_AT_ONCE = 256  # metrics
_BEYOND = 1e12  # times the median: nothing that is compared differs so much

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pair:
    """Samples of one metric on both sides; the median of ``base`` is not 0."""

    base: Sequence[float]
    head: Sequence[float]
    tolerance: float
    """As a share of the median, above 0."""


@dataclass(frozen=True, slots=True)
class Change:
    """A metric on both sides, in medians of ``base``: 1.02 is 2 % more."""

    ratio: float
    """``1 + (median(head) - median(base)) / |median(base)|``: above 1 is more, whatever the sign;
    between positive medians it is their quotient."""
    low: float
    high: float
    """``1 + (mean(head) - mean(base)) / |median(base)|``, less and more what noise may add."""
    spreads: float
    """Distance of the medians in robust spreads of both sides added; 0 where they are unknown."""

    @property
    def is_significant(self) -> bool:
        """Whether noise does not explain the change.

        The spreads are for outliers: one sample of five widens the interval to its own value, but
        hardly moves a median or a median deviation.
        """
        beyond = self.low > 1 if self.ratio > 1 else self.high < 1
        return beyond or self.spreads > MOST_SPREADS


def certain_change(base: Sequence[float], head: Sequence[float]) -> Change:
    """A change without noise; the median of ``base`` is not 0."""
    middle, other = (_median(side) for side in _relative(base, head))
    ratio = 1 + (other - middle)
    return Change(ratio, ratio, ratio, 0.0)


def changes(pairs: Sequence[Pair]) -> list[Change]:
    """The change of each metric, with what noise makes of it over all of them together.

    For a metric of ``a`` and ``b`` samples with the pooled standard deviation s, noise may add
    ``t * s * sqrt(1/a + 1/b)`` to a difference of means, where t is exceeded with the probability
    ``ERROR_RATE / 2 / metrics`` in Student's distribution: with a + b - 2 degrees of freedom for
    its own s, with more for the common one. The smaller of the two counts. Metrics whose samples
    are all equal on either side, or single, have no noise, and are not counted.
    """
    sides = [_relative(pair.base, pair.head) for pair in pairs]
    own = np.array([_deviation(*both) for both in sides])
    own_freedom = np.array([len(pair.base) + len(pair.head) - 2.0 for pair in pairs])
    loud = own > QUIET * np.array([pair.tolerance for pair in pairs])
    common, common_freedom = own.copy(), own_freedom.copy()
    if loud.any():
        common[loud], common_freedom[loud] = moderated(own[loud], own_freedom[loud])
    tail = ERROR_RATE / 2 / max(1, int(np.count_nonzero(own)))
    found = []
    for i, pair in enumerate(pairs):
        if own[i] == 0:
            found.append(certain_change(pair.base, pair.head))
            continue
        noise = min(
            t_quantile(tail, float(own_freedom[i])) * float(own[i]),
            t_quantile(tail, float(common_freedom[i])) * float(common[i]),
        )
        found.append(_change(*sides[i], noise))
    return found


def moderated(deviation: Array, freedom: Array) -> tuple[Array, Array]:
    """Deviations drawn towards their common size, and the degrees of freedom they then have.

    ``v = (d0 * v0 + d * s**2) / (d0 + d)`` with the metric's own s and d, and ``d0 + d`` degrees.
    Variances are taken to vary between metrics as ``d0 * v0 / chi2(d0)``; d0 and v0 are the
    likeliest for these. No more degrees are claimed than all metrics have together.
    """
    own = deviation**2
    prior_freedom, prior = _likeliest_prior(own, freedom)
    total = prior_freedom + freedom
    common = (prior_freedom * prior + freedom * own) / total
    return np.sqrt(common), np.minimum(total, freedom.sum())


def _likeliest_prior(variance: Array, freedom: Array) -> tuple[float, float]:
    """d0 and v0 by the likelihood of an F distribution, the best of a grid."""
    sizes = np.geomspace(float(variance.min()), float(variance.max()), _PRIOR_STEPS)
    d0, v0 = _PRIOR_FREEDOM[:, None], sizes[None, :]
    likelihood = len(variance) * d0 / 2 * np.log(d0 * v0)
    for d in np.unique(freedom):
        some = variance[freedom == d]
        likelihood += len(some) * _gamma_ratios(float(d))[:, None]
        for start in range(0, len(some), _AT_ONCE):
            part = some[start : start + _AT_ONCE]
            logs = np.log(d0[..., None] * v0[..., None] + d * part)
            likelihood -= (d + d0) / 2 * logs.sum(axis=-1)
    best = np.unravel_index(np.argmax(likelihood), likelihood.shape)
    return float(_PRIOR_FREEDOM[best[0]]), float(sizes[best[1]])


@lru_cache(maxsize=64)
def _gamma_ratios(freedom: float) -> Array:
    """``log(gamma((d + d0) / 2) / gamma(d0 / 2))`` for every d0 of the grid."""
    return np.array([math.lgamma((freedom + x) / 2) - math.lgamma(x / 2) for x in _PRIOR_FREEDOM])


@lru_cache(maxsize=4096)
def t_quantile(tail: float, freedom: float) -> float:
    """What Student's t with ``freedom`` >= 1 degrees exceeds with the probability ``tail`` < 0.5.

    t is ``sqrt(freedom) * tan(u)`` where u has the density ``cos(u) ** (freedom - 1)``.
    """
    angles = np.linspace(np.pi / 2, 0, 100_001)  # from the tail on, where small sums stay exact
    density = np.cos(angles) ** (freedom - 1)
    above = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    angle = float(np.interp(2 * tail * above[-1], above, angles))
    return math.sqrt(freedom) * math.tan(angle)


def _relative(base: Sequence[float], head: Sequence[float]) -> tuple[Array, Array]:
    """Both sides in medians of ``base``, bounded so that no square overflows."""
    middle = abs(statistics.median(base))
    with np.errstate(over="ignore"):
        both = [np.asarray(side, dtype=np.float64) / middle for side in (base, head)]
    return np.clip(both[0], -_BEYOND, _BEYOND), np.clip(both[1], -_BEYOND, _BEYOND)


def _deviation(base: Array, head: Array) -> float:
    """Pooled standard deviation of both sides; 0 where neither has a spread."""
    # Equal samples have none, though they need not have their exact mean.
    squares = [float(((x - x.mean()) ** 2).sum()) if np.ptp(x) else 0.0 for x in (base, head)]
    return math.sqrt(sum(squares) / max(1, len(base) + len(head) - 2))


def _change(base: Array, head: Array, noise: float) -> Change:
    noise *= math.sqrt(1 / len(base) + 1 / len(head))
    shift = 1 + float(head.mean() - base.mean())
    distance = _median(head) - _median(base)
    spreads = 0.0
    if distance and min(len(base), len(head)) >= ENOUGH_FOR_SPREADS:
        spread = MAD_TO_SIGMA * sum(map(_median_deviation, (base, head)))
        spreads = abs(distance) / spread if spread else math.inf
    return Change(1 + distance, shift - noise, shift + noise, spreads)


def _median_deviation(samples: Array) -> float:
    return _median(np.abs(samples - _median(samples)))


def _median(samples: Array) -> float:
    """Of few samples, for which numpy's own takes many times as long."""
    middle: float = statistics.median(samples.tolist())
    return middle
