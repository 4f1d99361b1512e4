"""The reference is the formula, checked by hand and against the runtime's reference model."""

import pytest
from bytebound_kernels.ops.dense_matvec import dense_matvec_reference

torch = pytest.importorskip("torch")


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_by_hand() -> None:
    x = torch.tensor([[1.0, 2.0], [0.0, -1.0]])
    weight = torch.tensor([[1.0, 1.0], [2.0, 0.0], [0.0, 3.0]])
    product = torch.tensor([[3.0, 2.0, 6.0], [-1.0, 0.0, -3.0]])
    out = dense_matvec_reference(x, weight)
    assert out.dtype == torch.float64
    assert torch.equal(out, product.double())
    residual = torch.full((2, 3), 10.0)
    assert torch.equal(dense_matvec_reference(x, weight, residual=residual), out + 10)
    gated = dense_matvec_reference(x, weight, up=2 * weight)
    torch.testing.assert_close(gated, out / (1 + torch.exp(-out)) * 2 * out)
    assert torch.equal(dense_matvec_reference(x, weight, scale=0.25), out / 4)
    assert torch.equal(
        dense_matvec_reference(x, weight, residual=residual, scale=0.5), 10 + out / 2
    )
    assert torch.equal(dense_matvec_reference(x, weight, up=2 * weight, scale=0.5), gated / 2)


def test_agrees_with_the_mlp_of_the_reference_model() -> None:
    model = pytest.importorskip("bytebound.reference.model")
    gate, up = random(48, 64, seed=1), random(48, 64, seed=2)
    down, x = random(64, 48, seed=3), random(5, 64)
    expected = model.mlp(x, model.MlpWeights(gate, up, down))
    hidden = dense_matvec_reference(x, gate, up=up)
    torch.testing.assert_close(
        dense_matvec_reference(hidden, down).float(), expected, rtol=1e-4, atol=1e-3
    )


def test_computes_in_float64() -> None:
    # 1 + 2^-40 is no float32, and two halves of it are no float16.
    x = torch.tensor([[1.0, 2.0**-20]], dtype=torch.bfloat16)
    out = dense_matvec_reference(x, torch.tensor([[1.0, 2.0**-20]], dtype=torch.bfloat16))
    assert out.item() == 1 + 2.0**-40
