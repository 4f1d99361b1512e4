"""Attention on the emulated card: leaves of all sizes, in 16 bits and in 8."""

import pytest

torch = pytest.importorskip("torch")

from . import test_attention_decode_gpu as gpu  # noqa: E402
from .emulated import emulated, seed  # noqa: E402, F401

pytestmark = pytest.mark.usefixtures("seed")

CACHES = ["float16", "bfloat16", "float8_e4m3fn"]
HEADS = [(2, 1), (6, 2)]

caches = pytest.mark.parametrize("cache", CACHES)
heads_of = pytest.mark.parametrize("heads", HEADS, ids=str)


# One row and many; nothing cached, within a leaf, at the borders of leaves, several of them.
@pytest.mark.parametrize(("count", "position"), [(1, 0), (3, 63), (8, 60), (5, 190), (2, 299)])
@heads_of
@caches
def test_matches_the_reference(cache, heads, count, position, assert_close) -> None:
    dtype = "float16" if cache == "float8_e4m3fn" else cache
    layer = gpu.Layer(heads, 320, dtype)
    state = gpu.State.filled(cache, heads[1], 320, position)
    rows = layer.rows(count, seed=count)
    tolerance = gpu.TOLERANCE[dtype, cache]
    gpu.check(layer, rows, position, state, tolerance, assert_close)


@caches
def test_a_row(cache) -> None:
    dtype = "float16" if cache == "float8_e4m3fn" else cache
    layer = gpu.Layer((2, 1), 320, dtype)
    together = gpu.State.filled(cache, 1, 320, 300)
    apart, rows = together.clone(), layer.rows(4)
    out = layer.run(rows, 125, together)
    for r in range(4):
        alone = layer.run(gpu.pick(rows, slice(r, r + 1)), 125 + r, apart)
        assert gpu.same_bits(alone, out[r : r + 1]), f"row {r}"
    assert together.same(apart)


@pytest.mark.parametrize("cache", ["bfloat16", "float8_e4m3fn"])
def test_leaves_beyond_the_smallest(cache, assert_close) -> None:
    layer = gpu.Layer((2, 1), 2400, "bfloat16")
    state = gpu.State.filled(cache, 1, 2400, 2300)
    gpu.check(layer, layer.rows(3), 2300, state, gpu.TOLERANCE["bfloat16", cache], assert_close)


@pytest.mark.parametrize("cache", ["float16", "float8_e4m3fn"])
def test_the_size_of_the_cache_changes_no_bit(cache) -> None:
    found = []
    for positions in (8448, 8452):
        layer = gpu.Layer((6, 2), positions, "float16")
        state = gpu.State.filled(cache, 2, positions, 300)
        out = layer.run(layer.rows(3), 300, state)
        found.append((out, *(part[:, :303] for part in state.tensors())))
    assert all(map(gpu.same_bits, *found))


@pytest.mark.parametrize("cache", ["float16", "float8_e4m3fn"])
def test_a_long_cache(cache, assert_close) -> None:
    # More stages and another number of blocks than the short caches above.
    layer = gpu.Layer((6, 2), 8452, "float16")
    for count, position in ((1, 0), (8, 60)):
        state = gpu.State.filled(cache, 2, 8452, position)
        rows = layer.rows(count, seed=count)
        gpu.check(layer, rows, position, state, gpu.TOLERANCE["float16", cache], assert_close)


@gpu.rooms
@pytest.mark.parametrize("cache", ["float16", "float8_e4m3fn"])
def test_strides_and_alignment(room, cache) -> None:
    gpu.test_strides_and_alignment_change_no_bit_and_nothing_else_is_written(room, cache)


@gpu.rooms
def test_constants_are_used(room, assert_close) -> None:
    gpu.test_constants_are_used(room, assert_close)


def test_a_position_out_of_range_changes_nothing() -> None:
    gpu.test_a_position_out_of_range_changes_nothing()
