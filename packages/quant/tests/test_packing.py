"""The stored form: by hand, and bit for bit what compressed-tensors writes and reads."""

import pytest
import torch
from bytebound_quant.errors import PackedTensorError, UnsupportedShapeError
from bytebound_quant.grid import QuantizedMatrix, Scheme
from bytebound_quant.packing import pack, unpack
from bytebound_quant.rtn import rtn
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

both = pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
# (N, K, G): N off the 8 of a word of zero points, K off the 8 of a word of codes
SHAPES = [(1, 64, 64), (48, 192, 64), (96, 200, 8), (130, 5120, 128), (3, 12, 4), (5, 9, 3)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def sample(shape: tuple[int, int, int], symmetric: bool) -> tuple[torch.Tensor, Scheme]:
    rows, columns, group = shape
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows + columns))
    return weight, Scheme(symmetric=symmetric, group_size=group)


def theirs(scheme: Scheme) -> QuantizationScheme:
    args = QuantizationArgs(
        num_bits=4, symmetric=scheme.symmetric, strategy="group", group_size=scheme.group_size
    )
    return QuantizationScheme(targets=["Linear"], weights=args)


def their_grid(matrix: QuantizedMatrix) -> dict[str, torch.Tensor]:
    zero = torch.zeros_like(matrix.scale, dtype=torch.int8)
    if matrix.zero_point is not None:
        zero = matrix.zero_point - 8  # their asymmetric codes are -8..7
    return {"weight_scale": matrix.scale, "weight_zero_point": zero}


def word(nibbles: list[int]) -> int:
    value = sum(n << (4 * i) for i, n in enumerate(nibbles))
    return value - (1 << 32) if value >= 1 << 31 else value


def test_symmetric_by_hand() -> None:
    codes = torch.tensor([[-8, -7, 0, 1, 2, 3, 4, 7, 7, -8]], dtype=torch.int8)
    scale = torch.tensor([[0.5, 2.0]], dtype=torch.float16)
    packed = pack(QuantizedMatrix(codes, scale, None, Scheme(group_size=5)))
    assert set(packed) == {"weight_packed", "weight_scale", "weight_shape"}
    words = [[word([0, 1, 8, 9, 10, 11, 12, 15]), word([15, 0])]]
    assert packed["weight_packed"].tolist() == words
    assert packed["weight_packed"].dtype == torch.int32
    assert packed["weight_shape"].tolist() == [1, 10]
    assert packed["weight_shape"].dtype == torch.int64


def test_asymmetric_by_hand() -> None:
    codes = torch.arange(9, dtype=torch.int8).view(9, 1)
    zero = torch.tensor([[15], [1], [2], [3], [4], [5], [6], [9], [7]], dtype=torch.int8)
    scale = torch.ones(9, 1, dtype=torch.float16)
    scheme = Scheme(symmetric=False, group_size=1)
    packed = pack(QuantizedMatrix(codes, scale, zero, scheme))
    assert packed["weight_packed"].tolist() == [[n] for n in range(9)]
    assert packed["weight_zero_point"].tolist() == [[word([15, 1, 2, 3, 4, 5, 6, 9])], [7]]


@both
@shapes
def test_equals_their_compressor(shape: tuple[int, int, int], symmetric: bool) -> None:
    weight, scheme = sample(shape, symmetric)
    matrix = rtn(weight, scheme, mse=True)
    packed = pack(matrix)
    state = {"weight": weight, **their_grid(matrix)}
    expected = PackedQuantizationCompressor.compress(state, theirs(scheme))
    assert packed.keys() == expected.keys()
    for name, tensor in expected.items():
        assert packed[name].dtype == tensor.dtype, name
        assert torch.equal(packed[name], tensor), name
        assert packed[name].is_contiguous(), name


@both
@shapes
def test_their_decompressor_reads_ours(shape: tuple[int, int, int], symmetric: bool) -> None:
    weight, scheme = sample(shape, symmetric)
    matrix = rtn(weight, scheme)
    state = PackedQuantizationCompressor.decompress(pack(matrix), theirs(scheme))
    assert torch.equal(state["weight"], matrix.dequantize(torch.float16))


@both
@shapes
def test_reads_what_they_write(shape: tuple[int, int, int], symmetric: bool) -> None:
    weight, scheme = sample(shape, symmetric)
    matrix = rtn(weight, scheme)
    state = {"weight": weight, **their_grid(matrix)}
    read = unpack(PackedQuantizationCompressor.compress(state, theirs(scheme)), scheme)
    assert torch.equal(read.codes, matrix.codes) and torch.equal(read.scale, matrix.scale)
    assert read.codes.dtype == torch.int8
    if symmetric:
        assert read.zero_point is None
    else:
        assert torch.equal(read.zero_point, matrix.zero_point)


def test_padding_of_another_writer_is_ignored() -> None:
    weight, scheme = sample((3, 12, 4), False)
    packed = pack(rtn(weight, scheme))
    packed["weight_packed"][:, 1] |= torch.tensor(-1 << 16, dtype=torch.int32)
    packed["weight_zero_point"] |= torch.tensor(-1 << 12, dtype=torch.int32)
    assert torch.equal(unpack(packed, scheme).codes, rtn(weight, scheme).codes)
    assert torch.equal(unpack(packed, scheme).zero_point, rtn(weight, scheme).zero_point)


def test_bfloat16_scale_stays() -> None:
    weight, scheme = sample((4, 16, 8), True)
    packed = pack(rtn(weight, scheme))
    packed["weight_scale"] = packed["weight_scale"].bfloat16()
    assert unpack(packed, scheme).scale.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        ("weight_packed", None, "weight_packed missing"),
        ("weight_zero_point", None, "weight_zero_point missing"),
        ("weight_g_idx", torch.zeros(16), "weight_g_idx not expected"),
        ("weight_shape", torch.tensor([4, 16, 1]), "weight_shape"),
        ("weight_shape", torch.tensor([4.0, 16.0]), "weight_shape"),
        ("weight_shape", torch.tensor([4, 0]), "weight_shape"),
        ("weight_shape", torch.tensor([4, 24]), r"weight_packed: got \[4, 2\] int32.*\[4, 3\]"),
        ("weight_packed", torch.zeros(4, 2), "weight_packed: got .* float32"),
        ("weight_scale", torch.ones(4, 2), "weight_scale: got .* float32"),
        ("weight_scale", torch.ones(4, 1).half(), r"weight_scale: got \[4, 1\]"),
        ("weight_zero_point", torch.zeros(4, 2).int(), r"weight_zero_point: got \[4, 2\]"),
    ],
)
def test_damage_is_named(name: str, tensor: torch.Tensor | None, said: str) -> None:
    weight, scheme = sample((4, 16, 8), False)
    packed = pack(rtn(weight, scheme))
    if tensor is None:
        del packed[name]
    else:
        packed[name] = tensor
    with pytest.raises(PackedTensorError, match=said):
        unpack(packed, scheme)


def test_scheme_and_zero_points_must_agree() -> None:
    weight, scheme = sample((4, 16, 8), False)
    with pytest.raises(PackedTensorError, match="weight_zero_point not expected for int4 sym"):
        unpack(pack(rtn(weight, scheme)), Scheme(group_size=8))
    with pytest.raises(UnsupportedShapeError):
        unpack(pack(rtn(weight, scheme)), Scheme(symmetric=False, group_size=12))
