"""The product with a 16-bit matrix on the emulated card."""

import pytest

torch = pytest.importorskip("torch")

from . import test_dense_matvec_gpu as gpu  # noqa: E402
from .emulated import emulated, seed  # noqa: E402, F401

pytestmark = pytest.mark.usefixtures("seed")
workspace, run = gpu.workspace, gpu.run

dtypes = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


@pytest.mark.parametrize(("rows", "n", "k"), [(1, 1, 256), (5, 77, 640), (9, 300, 1280)])
@dtypes
def test_matches_the_reference(run, rows, n, k, dtype, assert_close) -> None:
    gpu.test_exact_on_small_integers(run, rows, n, k, dtype)
    gpu.test_matches_the_reference(run, n, k, dtype, True, assert_close)
    gpu.test_swiglu_of_two_matrices(run, rows, n, k, dtype, assert_close)


@dtypes
def test_epilogues_and_what_is_not_finite(run, workspace, dtype, assert_close) -> None:
    gpu.test_residual(run, workspace, 77, 640, dtype, True, assert_close)
    gpu.test_what_is_not_finite_stays_where_it_is(run, 77, 640, dtype)


@dtypes
def test_a_row_and_the_number_of_blocks(run, dtype) -> None:
    gpu.test_a_row_has_the_same_bits_alone_and_among_others(run, 77, 640, dtype, "plain", 1.0)
    x, weight = gpu.integers((3, 640), dtype), gpu.integers((77, 640), dtype, seed=1)
    expected = gpu.dense_matvec_reference(x, weight)
    for num_blocks in (1, 2, 7, 8):
        out = run(x, weight, "float32", num_blocks=num_blocks)
        assert torch.equal(out.double(), expected), f"{num_blocks} blocks"
