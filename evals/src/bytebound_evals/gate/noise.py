"""Is a change of a median more than noise? The bootstrap of a ratio of medians."""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 4000
CONFIDENCE = 0.95


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


def change(base: Sequence[float], head: Sequence[float], *, seed: int = 0) -> Change:
    """Ratio of the medians with its bootstrap 95 % interval; the same input gives the same answer.

    Both sides are drawn again with replacement. One sample has no spread: with one on each side the
    interval is the ratio itself.

    Raises:
        ZeroDivisionError: the median of ``base`` is 0.
    """
    ratio = statistics.median(head) / statistics.median(base)
    if len(set(base)) == 1 and len(set(head)) == 1:
        return Change(ratio, ratio, ratio)
    draw = random.Random(seed)
    ratios = []
    for _ in range(RESAMPLES):
        below = statistics.median(draw.choices(base, k=len(base)))
        above = statistics.median(draw.choices(head, k=len(head)))
        if below:
            ratios.append(above / below)
    ratios.sort()
    tail = (1 - CONFIDENCE) / 2
    last = len(ratios) - 1
    return Change(ratio, ratios[round(tail * last)], ratios[round((1 - tail) * last)])
