"""The reference is the formula, checked against NumPy in float64."""

import pytest
from bytebound_kernels.ops.rms_norm import rms_norm_reference
from bytebound_kernels.ops.rms_norm_project import rms_norm_project_reference

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("eps", [1e-6, 0.5], ids=lambda eps: f"eps-{eps}")
@pytest.mark.parametrize(("n", "d"), [(1, 64), (5, 192), (96, 256)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_matches_the_formula_in_float64(dtype: str, n: int, d: int, eps: float) -> None:
    x, weight = random(3, d), random(d, seed=1)
    projection = (random(n, d, seed=2) * d**-0.5).to(getattr(torch, dtype))
    y, g = rms_norm_project_reference(x, weight, projection, eps=eps)
    assert y.dtype == g.dtype == projection.dtype
    wide = x.double().numpy()
    factor = 1 / numpy.sqrt((wide**2).mean(-1, keepdims=True) + eps)
    expected = wide * factor * (1 + weight.double().numpy())
    ulp = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    numpy.testing.assert_allclose(y.double(), expected, rtol=ulp, atol=1e-7)
    # Of the rounded rows: what rounding them changes is far more than what the sum may lose.
    product = y.double().numpy() @ projection.double().numpy().T
    numpy.testing.assert_allclose(g.double(), product, rtol=ulp, atol=ulp * 1e-3)


def test_the_rows_are_those_of_the_norm_alone() -> None:
    x, weight, projection = random(2, 128), random(128, seed=1), random(3, 128, seed=2).half()
    y, _ = rms_norm_project_reference(x, weight, projection)
    assert torch.equal(y, rms_norm_reference(x, weight).half())


def test_the_product_is_that_of_the_rounded_rows() -> None:
    # y[0] is 1 + 2^-12, which float16 rounds to 1: what is left of y[0] - y[1] is nothing.
    weight, projection = torch.zeros(64), torch.zeros(1, 64).half()
    weight[0] = 2.0**-12
    projection[0, 0], projection[0, 1] = 1, -1
    _, g = rms_norm_project_reference(torch.ones(1, 64), weight, projection, eps=0.0)
    assert g.item() == 0.0
