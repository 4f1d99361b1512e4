"""The bytes of a packed four-bit matrix, by hand and round trip; no GPU."""

import hashlib

import pytest
from bytebound_kernels import InvalidArgumentError, PackedW4, UnsupportedShapeError, w4_packed_bytes

torch = pytest.importorskip("torch")

from bytebound_kernels.ops.w4_matvec.layout import (  # noqa: E402
    PACKED_LAYOUT_VERSION,
    interleave,
    pack_reference,
    unpack_reference,
)
from bytebound_kernels.ops.w4_matvec.reference import w4_matvec_reference  # noqa: E402


def stored(n, k, seed=0):
    """Codes, scales and zero points of a random matrix."""
    draw = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (n, k), generator=draw, dtype=torch.uint8)
    scale = (torch.rand((n, k // 128), generator=draw) * 0.02 + 0.001).half()
    zero = torch.randint(0, 16, (n, k // 128), generator=draw, dtype=torch.uint8)
    return codes, scale, zero


def test_one_code_lies_where_the_drawing_says() -> None:
    # Row 16 * 2 + 8 + 5: tile 2, upper row of quad 5.
    # Column 128 + 32 * 3 + 4 * 6 + 2: pair 3, step 6, the third of four.
    codes = torch.zeros((64, 256), dtype=torch.uint8)
    codes[45, 128 + 96 + 26] = 9
    data = pack_reference(codes, torch.zeros((64, 2), dtype=torch.float16))
    item = data[4096 + 128 :]
    word = item[512 * 5 + 16 * 23 + 4 * 2 :][:4].view(torch.int32).item()
    assert word == 9 << 12, "column 2 of an upper row is bits 12 to 15"
    assert data.count_nonzero() == 1


def test_one_scale_and_zero_point_lie_where_the_drawing_says() -> None:
    codes = torch.zeros((64, 128), dtype=torch.uint8)
    scale = torch.zeros((64, 1), dtype=torch.float16)
    zero = torch.zeros((64, 1), dtype=torch.uint8)
    scale[45, 0], zero[45, 0] = 0.5, 11
    data = pack_reference(codes, scale, zero)
    assert data[4096 + 16 * 5 + 2 * 5 :][:2].view(torch.float16).item() == 0.5
    assert data[4096 + 128 + 4 * 5 + 2].item() == 11 << 4
    assert data.count_nonzero() == 2


def test_the_version_belongs_to_these_bytes() -> None:
    """Whoever keeps packed matrices finds out by the version alone that the bytes changed."""
    rows, columns = torch.arange(77)[:, None], torch.arange(256)[None, :]
    codes = ((rows * 7 + columns * 3) % 16).to(torch.uint8)
    scale = (torch.arange(154).view(77, 2) / 64).half()
    zero = ((rows + torch.arange(2)) % 16).to(torch.uint8)
    packed = [pack_reference(codes, scale), pack_reference(codes, scale, zero)]
    packed.append(
        pack_reference(interleave(codes, codes.flip(0)), interleave(scale, scale.flip(0)))
    )
    digests = [hashlib.sha256(bytes(one.tolist())).hexdigest()[:16] for one in packed]
    known = {1: ["af075f87dae83000", "20cdac6afcd36fae", "ea65c31209efdce5"]}
    assert known == {PACKED_LAYOUT_VERSION: digests}


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("n", [1, 63, 64, 77, 200])
@pytest.mark.parametrize("k", [128, 384])
def test_round_trip(n, k, asymmetric) -> None:
    codes, scale, zero = stored(n, k)
    data = pack_reference(codes, scale, zero if asymmetric else None)
    assert data.shape == (w4_packed_bytes(n, k, asymmetric=asymmetric),)
    offset = zero.double() if asymmetric else torch.full_like(zero, 8).double()
    expected = scale.double().repeat_interleave(128, 1) * (
        codes.double() - offset.repeat_interleave(128, 1)
    )
    assert torch.equal(unpack_reference(data, n, k, asymmetric=asymmetric), expected)


@pytest.mark.parametrize("n", [1, 8, 20])
def test_an_interleaved_matrix_multiplies_as_gate_and_up(n) -> None:
    gate, up = stored(n, 256, 1)[:2], stored(n, 256, 2)[:2]
    data = pack_reference(interleave(gate[0], up[0]), interleave(gate[1], up[1]))
    whole = PackedW4(data, n, 256, interleaved=True)
    assert data.shape == (w4_packed_bytes(n, 256, interleaved=True),)
    x = torch.randn(3, 256)
    parts = [x.double() @ unpack_reference(pack_reference(*part), n, 256).T for part in (gate, up)]
    expected = torch.nn.functional.silu(parts[0]) * parts[1]
    torch.testing.assert_close(w4_matvec_reference(x, whole), expected)


def test_bytes_of_the_27b_matrices() -> None:
    bits = w4_packed_bytes(17408, 5120, interleaved=True) * 8 / (2 * 17408 * 5120)
    assert bits == 4.125
    assert w4_packed_bytes(5120, 128, asymmetric=True) * 8 / (5120 * 128) == 4.15625


@pytest.mark.parametrize(("n", "k"), [(64, 0), (64, 64), (64, 130), (0, 128), (2**30 + 1, 128)])
def test_other_shapes_are_refused_by_name(n, k) -> None:
    with pytest.raises(UnsupportedShapeError, match=f"(K is {k}|N is {n}); expected"):
        w4_packed_bytes(n, k)


def test_another_scale_dtype_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="scale_dtype is 'float32'"):
        PackedW4(None, 64, 128, scale_dtype="float32")
