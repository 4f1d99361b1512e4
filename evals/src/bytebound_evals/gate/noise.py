"""Is a change of a median more than noise? A bootstrap interval, or medians many spreads apart."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 20_000
ERROR_RATE = 0.05
"""How often noise alone may look like a change, over all metrics of a comparison together."""
LEAST_SPREADS = 3.0
"""Medians must differ by more than this many spreads, however many samples there are."""
MAD_TO_SIGMA = 1.4826
"""The median absolute deviation of normal noise times this is its standard deviation."""
_SIMULATED = 200_000
_ENOUGH_SAMPLES = 20  # from here on noise does not reach LEAST_SPREADS


@dataclass(frozen=True, slots=True)
class Change:
    """A median on both sides, and what its noise leaves of the difference."""

    ratio: float
    """``1 + (median(head) - median(base)) / |median(base)|``: above 1 is more, whatever the sign;
    between positive medians it is their quotient."""
    low: float
    high: float
    spreads: float
    """Distance of the medians in spreads of both sides added."""
    noise_spreads: float
    """What noise alone stays below."""

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes 1, or the medians lie further apart than noise puts them.

        The second is for outliers: one sample of five widens the interval to its own value, but
        hardly moves a median or a median deviation.
        """
        return not self.low <= 1 <= self.high or self.spreads > self.noise_spreads


def change(
    base: Sequence[float], head: Sequence[float], *, comparisons: int = 1, seed: int = 0
) -> Change:
    """Change of the median with what noise makes of it; the same input gives the same answer.

    **Interval**: both sides are drawn again with replacement. It leaves out ``0.05 / comparisons``
    of the ratios, half at either end, so that a comparison of many metrics finds no more by chance
    than one of a single metric. With five samples a side and many metrics that comes to ranges that
    do not overlap, which chance brings about once in 126 times, and no fewer. Equal samples, and a
    single one, have no spread.

    **Spreads**: the distance of the medians over the sum of both sides' spreads, each 1.4826 times
    the median absolute deviation. Noise stays below 3, or below what normal noise of as many
    samples exceeds ``0.05 / comparisons`` of the time where that is more.

    Raises:
        ZeroDivisionError: the median of ``base`` is 0.
    """
    middle = abs(statistics.median(base))
    difference = statistics.median(head) - statistics.median(base)
    draw = np.random.default_rng(seed)
    below, above = (
        np.median(draw.choice(np.asarray(side), size=(RESAMPLES, len(side))), axis=1)
        for side in (base, head)
    )
    ratios = np.sort(1 + (above - below) / np.where(below != 0, np.abs(below), middle))
    tail = ERROR_RATE / comparisons / 2
    last = len(ratios) - 1
    sides = [np.asarray([side], dtype=np.float64) for side in (base, head)]
    return Change(
        ratio=1 + difference / middle,
        low=float(ratios[int(tail * last)]),
        high=float(ratios[last - int(tail * last)]),
        spreads=float(_spreads_apart(*sides)[0]),
        noise_spreads=noise_spreads(len(base), len(head), comparisons),
    )


@lru_cache(maxsize=256)
def noise_spreads(base: int, head: int, comparisons: int) -> float:
    """How many spreads apart noise puts the medians of ``base`` and ``head`` samples, at most.

    Five samples sometimes lie close together by chance, which makes their spread small, so fewer
    samples and more comparisons need more than ``LEAST_SPREADS``. Infinite where there is no spread
    to judge by: a single sample on either side.
    """
    draw = np.random.default_rng(0)
    sides = (
        draw.standard_normal((_SIMULATED, min(count, _ENOUGH_SAMPLES))) for count in (base, head)
    )
    apart = np.sort(_spreads_apart(*sides))
    return max(LEAST_SPREADS, float(apart[-1 - int(ERROR_RATE / comparisons * _SIMULATED)]))


def _spreads_apart(
    base: NDArray[np.float64], head: NDArray[np.float64]
) -> NDArray[np.floating[Any]]:
    """Row by row: distance of the medians over the sum of the spreads; 0 for no distance."""
    middles = [np.median(side, axis=1) for side in (base, head)]
    spread = sum(
        MAD_TO_SIGMA * np.median(np.abs(side - middle[:, None]), axis=1)
        for side, middle in zip((base, head), middles, strict=True)
    )
    distance = np.abs(middles[1] - middles[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(distance == 0, 0.0, distance / spread)
