"""The reference is the formula, checked against NumPy in float64."""

import pytest
from bytebound_kernels.ops.rms_norm import rms_norm_reference

numpy = pytest.importorskip("numpy")


def formula(x, weight, eps):
    x, weight = x.astype("float64"), weight.astype("float64")
    rows = [row / (sum(v * v for v in row) / len(row) + eps) ** 0.5 for row in x]
    return numpy.array(rows) * (1 + weight)


@pytest.mark.parametrize("eps", [0.0, 1e-6, 0.5], ids=lambda eps: f"eps-{eps}")
@pytest.mark.parametrize("d", [1, 3, 64, 257], ids=lambda d: f"D-{d}")
def test_matches_the_formula_in_float64(d: int, eps: float) -> None:
    random = numpy.random.default_rng(0)
    x = random.standard_normal((3, d)).astype("float32")
    weight = random.standard_normal(d).astype("float32")
    result = rms_norm_reference(x, weight, eps=eps)
    assert result.dtype == x.dtype
    numpy.testing.assert_allclose(result, formula(x, weight, eps), rtol=2e-6, atol=1e-7)


def test_a_zero_weight_means_one() -> None:
    x = numpy.full((1, 4), 2.0, "float32")
    result = rms_norm_reference(x, numpy.zeros(4, "float32"), eps=0.0)
    numpy.testing.assert_array_equal(result, numpy.ones((1, 4)))


def test_casts_once_at_the_end() -> None:
    # 1 + 2^-12 is not a float16: a weight added in float16 would be lost.
    x = numpy.full((1, 8), 2048.0, "float16")
    weight = numpy.full(8, 2.0**-12, "float32")
    result = rms_norm_reference(x, weight, eps=0.0)
    assert result.dtype == numpy.float16
    expected = formula(x, weight, 0.0).astype("float16")
    numpy.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_torch_agrees_with_numpy(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 33, generator=generator).to(getattr(torch, dtype))
    weight = torch.randn(33, generator=generator)
    result = rms_norm_reference(x, weight)
    assert result.dtype == x.dtype and result.shape == x.shape
    expected = formula(x.float().reshape(-1, 33).numpy(), weight.numpy(), 1e-6)
    numpy.testing.assert_allclose(
        result.float().reshape(-1, 33), expected, rtol={"bfloat16": 4e-3}.get(dtype, 1e-3)
    )
