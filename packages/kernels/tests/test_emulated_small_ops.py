"""The small ops on the emulated card: the cases of the GPU tests, at small sizes."""

import pytest

torch = pytest.importorskip("torch")

from . import test_argmax_gpu as argmax  # noqa: E402
from . import test_embedding_gather_gpu as embedding  # noqa: E402
from . import test_gdn_keep_gpu as keep  # noqa: E402
from . import test_rms_norm_gpu as norm  # noqa: E402
from . import test_rms_norm_project_gpu as project  # noqa: E402
from .emulated import emulated, seed  # noqa: E402, F401

pytestmark = pytest.mark.usefixtures("seed")

dtypes = pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
half_dtypes = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


@pytest.mark.parametrize(("x_dtype", "w_dtype"), norm.PAIRS)
@pytest.mark.parametrize("d", [1, 255, 1000])
def test_rms_norm(d, x_dtype, w_dtype, assert_close) -> None:
    norm.test_matches_the_reference(3, d, x_dtype, w_dtype, assert_close)


@dtypes
def test_rms_norm_of_a_row_and_in_place(dtype) -> None:
    norm.test_a_row_has_the_same_bits_alone_and_among_others(1000, dtype)
    norm.test_strides_and_alignment_change_no_bit_and_nothing_else_is_written(255, dtype)
    norm.test_a_nan_takes_its_row_and_no_other(dtype)
    norm.test_in_place()


@half_dtypes
@pytest.mark.parametrize(("rows", "n", "d"), [(1, 5, 256), (8, 37, 640), (3, 96, 960)])
def test_rms_norm_project(rows, n, d, dtype, assert_close) -> None:
    project.test_the_norm_bit_for_bit_and_its_product(rows, n, d, dtype, assert_close)
    project.test_exact_on_small_integers(rows, n, d, dtype)


@half_dtypes
def test_rms_norm_project_of_a_row(dtype) -> None:
    project.test_a_row_has_the_same_bits_alone_and_among_others(37, 640, dtype)


@dtypes
@pytest.mark.parametrize(("rows", "n"), [(1, 1), (3, 2049), (8, 9001)])
def test_argmax(rows, n, dtype) -> None:
    argmax.test_matches_the_reference(rows, n, dtype)


@dtypes
def test_argmax_of_ties_and_what_is_not_finite(dtype) -> None:
    argmax.test_infinities_are_values_and_nan_is_minus_one_in_its_row_alone(dtype)
    argmax.test_id_map(dtype)
    argmax.test_strides_and_alignment_change_nothing(dtype)


@pytest.mark.parametrize("out_dtype", ["float16", "float32"])
@pytest.mark.parametrize(("t", "d"), [(1, 1), (5, 1000)])
def test_embedding_gather(t, d, out_dtype) -> None:
    embedding.test_matches_the_reference(t, d, "float16", out_dtype)
    embedding.test_an_id_outside_the_table_is_a_row_of_nan("float16", out_dtype)
    embedding.test_strides_and_alignment_and_nothing_else_is_written("float16", out_dtype)


@half_dtypes
@pytest.mark.parametrize(("rows", "accepted"), [(1, 0), (3, 1), (8, 3), (8, 8)])
def test_gdn_keep(rows, accepted, dtype) -> None:
    dtype = getattr(torch, dtype)
    keep.test_moves_the_bits_that_the_reference_moves(dtype, 2, 514, 12, rows, accepted)
    keep.test_nothing_else_is_written(dtype)
