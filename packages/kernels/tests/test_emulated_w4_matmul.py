"""The four-bit product of many rows and unpacking on the emulated card."""

import pytest

torch = pytest.importorskip("torch")

from . import test_w4_matmul_gpu as gpu  # noqa: E402
from .emulated import emulated, seed  # noqa: E402, F401

pytestmark = pytest.mark.usefixtures("seed")
workspace = gpu.workspace

dtypes = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
schemes = pytest.mark.parametrize("asymmetric", [False, True], ids=["symmetric", "asymmetric"])


# A tile of each width, in part and whole; one group and several blocks along the columns.
@pytest.mark.parametrize(
    ("n", "k", "rows"), [(1, 128, 1), (77, 640, 9), (77, 128, 33), (130, 1280, 65)]
)
@schemes
@dtypes
def test_matches_the_reference(dtype, asymmetric, n, k, rows, workspace, assert_close) -> None:
    weight = gpu.weight_of(n, k, asymmetric=asymmetric)
    x, out = gpu.activations(rows, k, dtype), gpu.poisoned(rows, n, dtype)
    gpu.w4_matmul(x, weight, out=out, workspace=workspace)
    assert_close("out", gpu.w4_matmul_reference(x, weight), out, gpu.TOLERANCE[dtype])


@dtypes
def test_epilogues(dtype, workspace, assert_close) -> None:
    gpu.test_swiglu(dtype, True, 77, workspace, assert_close)
    gpu.test_residual(dtype, 77, 9, "float32", True, workspace, assert_close)


@dtypes
def test_strides_and_what_is_not_finite(dtype, workspace) -> None:
    gpu.test_strides_change_no_bit_and_nothing_else_is_written(3, 17, workspace)
    gpu.test_what_is_not_finite_stays_in_its_row(dtype, 17, float("nan"), workspace)


@schemes
def test_unpacking(asymmetric) -> None:
    gpu.test_unpacking_keeps_what_is_not_finite_in_its_group(asymmetric, float("inf"))
    gpu.test_unpacking_into_a_wider_tensor_writes_nothing_else()
