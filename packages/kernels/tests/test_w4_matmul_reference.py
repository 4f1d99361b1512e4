"""The definitions of w4_matmul and w4_unpack, against each other and against plain arithmetic."""

import pytest
from bytebound_kernels import PackedW4

torch = pytest.importorskip("torch")

from bytebound_kernels.ops.w4_matmul import w4_matmul_reference  # noqa: E402
from bytebound_kernels.ops.w4_matvec.layout import interleave, pack_reference  # noqa: E402
from bytebound_kernels.ops.w4_unpack import w4_unpack_reference  # noqa: E402

K = 256


def stored(n, seed):
    draw = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (n, K), generator=draw, dtype=torch.uint8)
    scale = (torch.rand((n, K // 128), generator=draw) + 0.5).half()
    zero = torch.randint(0, 16, (n, K // 128), generator=draw, dtype=torch.uint8)
    return codes, scale, zero


def plain(codes, scale, zero):
    wide = [t.double().repeat_interleave(128, 1) for t in (scale, zero)]
    return wide[0] * (codes.double() - wide[1])


@pytest.mark.parametrize("n", [1, 77, 130])
def test_unpacking_is_the_inverse_of_packing(n) -> None:
    matrix = stored(n, 0)
    weight = PackedW4(pack_reference(*matrix), n, K, asymmetric=True)
    assert torch.equal(w4_unpack_reference(weight), plain(*matrix))


@pytest.mark.parametrize("n", [1, 20, 96, 100])
def test_an_interleaved_matrix_unpacks_to_gate_and_up(n) -> None:
    gate, up = stored(n, 1), stored(n, 2)
    both = [interleave(a, b) for a, b in zip(gate, up, strict=True)]
    weight = PackedW4(pack_reference(*both), n, K, asymmetric=True, interleaved=True)
    matrix = w4_unpack_reference(weight)
    assert torch.equal(matrix, torch.cat([plain(*gate), plain(*up)]))

    x = torch.randn((5, K), generator=torch.Generator().manual_seed(3)).double()
    y_gate, y_up = (x @ matrix.T).chunk(2, -1)
    expected = torch.nn.functional.silu(y_gate) * y_up
    torch.testing.assert_close(w4_matmul_reference(x, weight), expected)
    torch.testing.assert_close(w4_matmul_reference(x, weight, scale=0.25), expected / 4)


def test_scale_is_of_the_product_alone() -> None:
    codes, scale, zero = stored(77, 1)
    weight = PackedW4(pack_reference(codes, scale, zero), 77, K, asymmetric=True)
    x = torch.randn((5, K), generator=torch.Generator().manual_seed(3)).double()
    residual = torch.full((5, 77), 10.0)
    expected = 10 + 0.25 * (x @ plain(codes, scale, zero).T)
    out = w4_matmul_reference(x, weight, residual=residual, scale=0.25)
    torch.testing.assert_close(out, expected)
