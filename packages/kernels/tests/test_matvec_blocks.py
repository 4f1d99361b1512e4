"""How many blocks a four-bit product has by default: the native rule, as the emulation holds it."""

import random

import pytest
from bytebound_kernels import _native

from .emulated import emulated  # noqa: F401

WARPS = 8  # of a block


def longest(items: int, blocks: int) -> int:
    """Items of the warp that has most."""
    return -(-items // (WARPS * blocks))


@pytest.mark.parametrize(
    ("items", "blocks"),
    [
        (10_240, 256),  # in_proj of the 27B shape
        (3_840, 240),  # out_proj
        (21_760, 248),  # gate and up
        (10_880, 227),  # down
        (8_960, 224),  # qkv
        (155_200, 263),  # lm_head
        (2_112, 264),  # one for each warp
        (2_113, 133),
        (2_111, 264),
        (1_000, 125),  # fewer than warps
        (9, 2),
        (8, 1),
        (1, 1),
    ],
)
def test_on_an_h200(items: int, blocks: int) -> None:
    assert _native.matvec_blocks(items, 2 * 132) == blocks


def test_fewest_of_the_same_longest_share() -> None:
    draw = random.Random(0)
    cases = [(items, most) for most in (1, 2, 3, 8) for items in range(1, 300)]
    cases += [
        (draw.randint(1, 10 ** draw.randint(1, 9)), draw.randint(1, 400)) for _ in range(2000)
    ]
    for items, most in cases:
        blocks = _native.matvec_blocks(items, most)
        assert 1 <= blocks <= most, (items, most)
        assert longest(items, blocks) == longest(items, most), (items, most)
        assert blocks == 1 or longest(items, blocks - 1) > longest(items, most), (items, most)
