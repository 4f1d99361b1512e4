"""Philox4x32-10: random numbers addressed by a counter, so no stream is ever advanced or rewound.

The number for (seed, position, purpose) is the same whether or not anything was drawn before it.
That is what lets drafts be discarded without a trace. Knows nothing of tokens or distributions.
"""

from enum import IntEnum

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_KEY_STEP_0 = 0x9E3779B9
_KEY_STEP_1 = 0xBB67AE85
_ROUNDS = 10

Words4 = tuple[int, int, int, int]


class Purpose(IntEnum):
    """What the number at one position is for; different purposes give independent numbers."""

    TARGET = 0
    """Drawing an id from the target's own distribution."""
    DRAFT = 1
    """Drawing a guess from a draft's distribution."""
    ACCEPT = 2
    """Deciding whether a guess is kept."""
    RESIDUAL = 3
    """Drawing the id that replaces a refused guess."""


def philox4x32(counter: Words4, key: tuple[int, int]) -> Words4:
    """Ten rounds of Philox on four 32-bit counter words under two 32-bit key words.

    Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        c0 = (product_1 >> 32) ^ c1 ^ k0
        c1 = product_1 & _MASK32
        c2 = (product_0 >> 32) ^ c3 ^ k1
        c3 = product_0 & _MASK32
        k0 = (k0 + _KEY_STEP_0) & _MASK32
        k1 = (k1 + _KEY_STEP_1) & _MASK32
    return c0, c1, c2, c3


def uniform(seed: int, position: int, purpose: int) -> float:
    """Return the number in [0, 1), 53 random bits, that belongs to this seed, position and purpose.

    key = seed modulo 2**64, low word first; counter = (position low, position high, purpose, 0).
    """
    seed &= _MASK64
    position &= _MASK64
    counter = (position & _MASK32, position >> 32, int(purpose) & _MASK32, 0)
    high, low, _, _ = philox4x32(counter, (seed & _MASK32, seed >> 32))
    # 27 + 26 bits: all that a double's mantissa holds, so the result can never round up to 1.
    return ((high >> 5) * (1 << 26) + (low >> 6)) / (1 << 53)
