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
        (21_760, 256),  # gate and up
        (10_880, 256),  # down
        (8_960, 224),  # qkv
        (155_200, 256),  # lm_head
        (2_048, 256),  # one for each warp
        (2_049, 129),
        (2_047, 256),
        (4_096, 256),
        (4_097, 256),  # three at most
        (6_000, 250),  # three each
        (1_000, 125),  # fewer than warps
        (9, 2),
        (8, 1),
        (1, 1),
    ],
)
def test_on_an_h200(items: int, blocks: int) -> None:
    assert _native.matvec_blocks(items, 2 * 132) == blocks


def test_no_more_than_there_is_room_and_no_longer_share_than_that_gives() -> None:
    draw = random.Random(0)
    cases = [(items, most) for most in (1, 2, 3, 8, 16, 17, 40) for items in range(1, 300)]
    cases += [
        (draw.randint(1, 10 ** draw.randint(1, 9)), draw.randint(1, 400)) for _ in range(2000)
    ]
    for items, most in cases:
        blocks, room = _native.matvec_blocks(items, most), most - 8 if most > 16 else most
        assert 1 <= blocks <= room, (items, most)
        assert longest(items, blocks) == longest(items, room), (items, most)
        if blocks < room:
            equal = items == WARPS * blocks * longest(items, blocks)
            assert equal or longest(items, blocks) <= 2, (items, most)
            assert blocks == 1 or longest(items, blocks - 1) > longest(items, room), (items, most)
