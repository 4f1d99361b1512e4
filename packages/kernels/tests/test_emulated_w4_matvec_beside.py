"""A small product in the launch of a four-bit one on the emulated card."""

import pytest
from bytebound_kernels import _native

torch = pytest.importorskip("torch")

from . import test_w4_matvec_beside_gpu as gpu  # noqa: E402
from .emulated import emulated, seed  # noqa: E402, F401

pytestmark = pytest.mark.usefixtures("seed")
workspace = gpu.workspace

dtypes = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
# One feature, features off the four of a warp, K off the 256 of a part.
SHAPES = [(1, 1, 128), (77, 3, 640), (130, 37, 1280)]
# And more fours than one block has room for the sums of.
CASES = [(*shape, rows) for shape in SHAPES for rows in range(1, 10)]
CASES += [(65, 700, 384, 1), (65, 700, 384, 3)]


@dtypes
@pytest.mark.parametrize(("n", "m", "k", "rows"), CASES, ids=str)
def test_the_bits_of_the_single_ops(n, m, k, dtype, rows, workspace, assert_close) -> None:
    gpu.test_the_bits_of_the_product_and_of_norm_and_gates(
        n, m, k, dtype, False, rows, workspace, assert_close
    )


def test_with_zero_points(workspace, assert_close) -> None:
    for dtype, rows in (("float16", 5), ("bfloat16", 8)):
        gpu.test_the_bits_of_the_product_and_of_norm_and_gates(
            130, 37, 1280, dtype, True, rows, workspace, assert_close
        )


@pytest.mark.parametrize("fewer", [0, 1, 3])
@dtypes
def test_any_number_of_blocks(dtype, fewer, workspace) -> None:
    gpu.test_any_number_of_free_places_gives_the_same_bits(dtype, fewer, workspace)


@dtypes
def test_a_row_and_a_feature(dtype, workspace) -> None:
    gpu.test_a_row_has_the_same_bits_alone_and_among_others(77, 5, 640, dtype, workspace)
    gpu.test_a_feature_has_the_same_bits_in_any_matrix(dtype, workspace)


@dtypes
def test_epilogues_and_strides_and_what_is_not_finite(dtype, workspace) -> None:
    for epilogue in ("residual", "swiglu"):
        gpu.test_with_any_epilogue(dtype, epilogue, workspace)
    gpu.test_slices_of_larger_tensors_give_the_same_bits(dtype, workspace)
    gpu.test_what_is_not_finite_stays_where_it_is(dtype, float("nan"), workspace)


@pytest.mark.parametrize(
    ("n", "num_blocks", "most_blocks", "blocks"),
    [
        (96, 256, 264, 8),  # in_proj of the 27B shape on an H200
        (96, 224, 264, 24),  # one for every four features
        (96, 264, 264, 1),  # no place is free
        (5, 1, 264, 2),
        (1, 1, 264, 1),
        (4096, 256, 264, 8),
    ],
)
def test_blocks(n, num_blocks, most_blocks, blocks) -> None:
    assert _native.beside_blocks(n, num_blocks, most_blocks) == blocks
