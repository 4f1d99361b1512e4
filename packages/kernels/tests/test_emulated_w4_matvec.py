"""The four-bit product of few rows and its packing on the emulated card."""

import pytest

torch = pytest.importorskip("torch")

from . import test_w4_matvec_gpu as gpu  # noqa: E402
from .emulated import emulated, seed  # noqa: E402, F401

pytestmark = pytest.mark.usefixtures("seed")
workspace = gpu.workspace

# Rows off the 64 of an item, one group and many; sums of one warp, of a block, and of blocks.
SHAPES = [(1, 128), (77, 256), (130, 1280), (500, 640)]

dtypes = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
schemes = pytest.mark.parametrize("asymmetric", [False, True], ids=["symmetric", "asymmetric"])
shapes = pytest.mark.parametrize(("n", "k"), SHAPES, ids=lambda v: str(v))


@pytest.mark.parametrize("rows", [1, 5, 8, 9])
@dtypes
@schemes
@shapes
def test_matches_the_reference(n, k, asymmetric, dtype, rows, workspace, assert_close) -> None:
    gpu.test_matches_the_reference(n, k, dtype, asymmetric, rows, workspace, assert_close)


@pytest.mark.parametrize("rows", range(1, 9))
@dtypes
@schemes
def test_fixed_point(asymmetric, dtype, rows, workspace, assert_close) -> None:
    gpu.test_within_a_group_nothing_is_rounded_but_the_activations(
        dtype, asymmetric, rows, workspace, assert_close
    )
    if dtype == "float16" and not asymmetric and rows == 1:
        for magnitude in (1.0, 65504.0, 2.0**-24):
            gpu.test_the_ends_of_float16(magnitude, workspace, assert_close)


@dtypes
@schemes
def test_a_row(asymmetric, dtype, workspace) -> None:
    gpu.test_a_row_has_the_same_bits_alone_and_among_others(130, 1280, dtype, asymmetric, workspace)


@pytest.mark.parametrize("num_blocks", [1, 3, 7])
@shapes
def test_any_number_of_blocks(n, k, num_blocks, workspace, assert_close) -> None:
    gpu.test_any_number_of_blocks(n, k, num_blocks, workspace, assert_close)


@pytest.mark.parametrize("epilogue", ["store", "residual", "swiglu"])
def test_fewer_blocks_than_the_card_holds(epilogue, workspace) -> None:
    gpu.test_fewer_blocks_than_the_card_holds(False, epilogue, workspace)


@dtypes
@schemes
def test_epilogues(asymmetric, dtype, workspace, assert_close) -> None:
    gpu.test_swiglu(dtype, asymmetric, 100, 5, workspace, assert_close)
    gpu.test_residual(dtype, "float32", True, workspace, assert_close)
    gpu.test_scales_of_both_types(dtype, "bfloat16", workspace, assert_close)


@dtypes
def test_strides_and_what_is_not_finite(dtype, workspace) -> None:
    gpu.test_strides_change_no_bit_and_nothing_else_is_written(workspace)
    gpu.test_what_is_not_finite_stays_in_its_row(dtype, float("nan"), workspace)


@schemes
def test_packing(asymmetric) -> None:
    for n, k in ((1, 128), (63, 384), (200, 256)):
        gpu.test_packing_equals_the_reference(n, k, asymmetric)
    gpu.test_packing_several_matrices_into_one(asymmetric)
    gpu.test_packing_gate_and_up(96, asymmetric)
