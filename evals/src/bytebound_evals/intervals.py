"""95 % intervals: a block bootstrap for means over text, Wilson's for shares of right answers."""

import math
from collections.abc import Sequence

import numpy as np

LEVEL = 0.95
RESAMPLES = 2000
SEED = 0
METHOD = f"percentiles of {RESAMPLES} bootstrap resamples of whole windows, seed {SEED}"

Interval = tuple[float, float]
_Z = 1.959963984540054  # of the normal distribution, for LEVEL
_AT_ONCE = 1 << 22  # numbers drawn at a time


def bootstrap_mean(sums: Sequence[float], counts: Sequence[int]) -> Interval | None:
    """Interval of ``sum(sums) / sum(counts)``, where block i adds ``sums[i]`` over ``counts[i]``.

    Blocks, here the windows of a text, are drawn with replacement, because neighbouring tokens are
    not independent. The same numbers give the same interval. None for fewer than two blocks.
    """
    blocks = len(sums)
    if blocks < 2:
        return None
    generator = np.random.Generator(np.random.PCG64(SEED))
    values, sizes = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    means: list[float] = []
    while len(means) < RESAMPLES:
        many = max(1, min(RESAMPLES - len(means), _AT_ONCE // blocks))
        drawn = generator.integers(blocks, size=(many, blocks))
        means += (values[drawn].sum(1) / sizes[drawn].sum(1)).tolist()
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def wilson(right: int, asked: int) -> Interval | None:
    """Interval of the share ``right / asked``; None where nothing was asked."""
    if not asked:
        return None
    share, spread = right / asked, _Z * _Z / asked
    middle = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(share * (1 - share) / asked + spread / asked / 4)
    return max(0.0, middle - half), min(1.0, middle + half)
