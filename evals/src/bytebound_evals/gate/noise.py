"""Is a change of a median more than noise? The bootstrap of a ratio of medians."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 20_000
ERROR_RATE = 0.05
"""How often noise alone may look like a change, over all metrics of a comparison together."""


@dataclass(frozen=True, slots=True)
class Change:
    """``median(head) / median(base)`` and the interval that its noise leaves."""

    ratio: float
    low: float
    high: float

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes 1, no change at all."""
        return not self.low <= 1 <= self.high


def change(
    base: Sequence[float], head: Sequence[float], *, comparisons: int = 1, seed: int = 0
) -> Change:
    """Ratio of the medians with its bootstrap interval; the same input gives the same answer.

    Both sides are drawn again with replacement. The interval leaves out ``0.05 / comparisons`` of
    the ratios, half at either end, so that a comparison of many metrics finds no more by chance
    than one of a single metric. With five samples a side and many metrics that comes to ranges that
    do not overlap. Equal samples, and a single one, have no spread.

    Raises:
        ZeroDivisionError: the median of ``base`` is 0.
    """
    ratio = statistics.median(head) / statistics.median(base)
    draw = np.random.default_rng(seed)
    below, above = (
        np.median(draw.choice(np.asarray(side), size=(RESAMPLES, len(side))), axis=1)
        for side in (base, head)
    )
    ratios = np.sort(above[below != 0] / below[below != 0])
    tail = ERROR_RATE / comparisons / 2
    last = len(ratios) - 1
    return Change(ratio, float(ratios[int(tail * last)]), float(ratios[last - int(tail * last)]))
