"""The product with a 16-bit matrix on the emulated card."""

import pytest
from bytebound_kernels import _device

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


@pytest.mark.parametrize("num_blocks", [34, 35, 36, 67, 68, 80])
def test_more_blocks_than_lanes_share_rows(emulated, monkeypatch, num_blocks) -> None:  # noqa: F811
    """Alone, and as the second of two: the block at its end adds up what all others send."""
    monkeypatch.setenv("BYTEBOUND_EMULATION_SMS", "40")
    answer = _device._judge(emulated.probe(), emulated.compiled_archs)
    monkeypatch.setattr(_device, "_availability", lambda: answer)
    scratch = torch.full((gpu.matvec_workspace_bytes(0),), 255, dtype=torch.uint8)
    for n, groups in ((16, 8 * num_blocks), (16, 8 * num_blocks + 3), (20, 8 * num_blocks - 5)):
        x = gpu.integers((2, 64 * groups), "float16")
        weight = gpu.integers((n, 64 * groups), "float16", seed=1)
        out = torch.full((2, n), float("nan"))
        gpu.dense_matvec(x, weight, out=out, workspace=scratch, num_blocks=num_blocks)
        assert torch.equal(out.double(), gpu.dense_matvec_reference(x, weight)), (n, groups)
        assert (scratch == 255).all(), (n, groups)
