"""The grid of a group: ranges, codes, bounds, and what is refused by name."""

import pytest
import torch
from bytebound_quant.errors import (
    NonFiniteWeightError,
    ScaleRangeError,
    SchemeError,
    UnsupportedShapeError,
)
from bytebound_quant.grid import CHUNK, SMALLEST_SCALE, QuantizedMatrix, Scheme, encode, find_grid
from hypothesis import given, settings
from hypothesis import strategies as st

SYM, ASYM = Scheme(group_size=4), Scheme(symmetric=False, group_size=4)
both = pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def quantize(weight: torch.Tensor, scheme: Scheme, **options: object) -> QuantizedMatrix:
    scale, zero = find_grid(weight, scheme, **options)
    return QuantizedMatrix(encode(weight, scale, zero, scheme), scale, zero, scheme)


@pytest.mark.parametrize(
    "fields",
    [{"bits": 3}, {"group_size": 0}, {"group_size": -1}, {"group_size": True}, {"symmetric": 1}],
    ids=str,
)
def test_scheme_names_a_wrong_field(fields: dict[str, int]) -> None:
    with pytest.raises(SchemeError, match=next(iter(fields))):
        Scheme(**fields)


def test_bits_per_weight() -> None:
    assert Scheme().bits_per_weight(5120, 17408) == 4.125
    assert Scheme(symmetric=False).bits_per_weight(5120, 17408) == 4.15625
    # 3 x 12, group 4: rows of 2 words and 3 scales; 3 words of zero points
    assert SYM.bits_per_weight(3, 12) == (3 * 2 * 32 + 9 * 16) / 36
    assert ASYM.bits_per_weight(3, 12) == (3 * 2 * 32 + 9 * 16 + 3 * 32) / 36
    assert Scheme().describe() == "int4 symmetric, group 128"


def test_symmetric_by_hand() -> None:
    scale, zero = find_grid(torch.tensor([[-7.5, 3.75, 0.0, 1.0]]), SYM)
    assert zero is None and scale.dtype == torch.float16 and scale.tolist() == [[1.0]]
    weight = torch.tensor([[-7.5, 7.5, 0.5, 1.5]])  # halves go to the even code, 8 does not exist
    codes = encode(weight, scale, zero, SYM)
    assert codes.dtype == torch.int8 and codes.tolist() == [[-8, 7, 0, 2]]


def test_asymmetric_by_hand() -> None:
    scale, zero = find_grid(torch.tensor([[-5.0, 0.0, 2.5, 10.0]]), ASYM)
    assert zero is not None and zero.dtype == torch.int8
    assert (scale.tolist(), zero.tolist()) == ([[1.0]], [[5]])
    matrix = quantize(torch.tensor([[-5.0, 0.0, 2.5, 10.0]]), ASYM)
    assert matrix.codes.tolist() == [[0, 5, 8, 15]]  # 2.5 + 5 = 7.5 goes to the even 8
    assert matrix.dequantize().tolist() == [[-5.0, 0.0, 3.0, 10.0]]


def test_asymmetric_range_holds_zero() -> None:
    scale, zero = find_grid(torch.tensor([[3.0, 4.0, 15.0, 6.0], [-3.0, -15.0, -4.0, -6.0]]), ASYM)
    assert zero is not None
    assert (scale.tolist(), zero.tolist()) == ([[1.0], [1.0]], [[0], [15]])


@both
def test_codes_use_the_stored_scale(symmetric: bool) -> None:
    scheme = Scheme(symmetric=symmetric, group_size=32)
    weight = normal(9, 96)
    matrix = quantize(weight, scheme)
    assert matrix.scale.dtype == torch.float16
    step = matrix.scale.double().repeat_interleave(32, 1)
    zero = 0 if matrix.zero_point is None else matrix.zero_point.double().repeat_interleave(32, 1)
    low, high = scheme.code_range
    expected = (weight.double() / step + zero).clamp(low, high).round()
    assert torch.equal(matrix.codes.double(), expected)
    assert torch.equal(matrix.dequantize().double(), (expected - zero) * step)


@both
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_weights_are_upcast(symmetric: bool, dtype: torch.dtype) -> None:
    scheme = Scheme(symmetric=symmetric, group_size=16)
    half = normal(4, 32).to(dtype)
    one, two = quantize(half, scheme, mse=True), quantize(half.float(), scheme, mse=True)
    assert torch.equal(one.codes, two.codes) and torch.equal(one.scale, two.scale)


@both
def test_zero_tiny_and_huge_groups(symmetric: bool) -> None:
    scheme = Scheme(symmetric=symmetric, group_size=4)
    weight = torch.zeros(1, 12)
    weight[0, 4:8] = 1e-9
    weight[0, 8:] = torch.tensor([6e4, -6e4, 0.0, 1.0]) if symmetric else 6e4
    for mse in (False, True):
        matrix = quantize(weight, scheme, mse=mse)
        assert matrix.scale[0, :2].tolist() == [1.0, SMALLEST_SCALE]
        assert matrix.dequantize()[0, :8].tolist() == [0.0] * 8
        assert matrix.dequantize(torch.float16).isfinite().all()
    with pytest.raises(ScaleRangeError, match="row 1, columns 4 to 7"):
        find_grid(torch.tensor([[1.0] * 8, [1.0] * 4 + [1e6] * 4]), scheme)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_not_finite_is_named(bad: float) -> None:
    weight = torch.ones(3, 8)
    weight[2, 5] = bad
    with pytest.raises(NonFiniteWeightError, match=r"\[2, 5\] is"):
        find_grid(weight, SYM)


@pytest.mark.parametrize(
    "weight",
    [torch.ones(2, 6), torch.ones(8), torch.ones(0, 8), torch.ones(2, 0), torch.ones(2, 8).int()],
    ids=lambda w: f"{list(w.shape)}-{w.dtype}",
)
def test_shapes_are_refused(weight: torch.Tensor) -> None:
    with pytest.raises(UnsupportedShapeError):
        find_grid(weight, SYM)


@both
@pytest.mark.parametrize("shape", [(1, 64), (48, 5120), (130, 192)], ids=str)
def test_mse_is_never_worse_in_any_group(symmetric: bool, shape: tuple[int, int]) -> None:
    scheme = Scheme(symmetric=symmetric, group_size=64)
    weight = normal(*shape) ** 3
    errors = [
        (quantize(weight, scheme, mse=mse).dequantize() - weight)
        .double()
        .square()
        .view(shape[0], -1, 64)
        .sum(2)
        for mse in (False, True)
    ]
    assert (errors[1] <= errors[0] * (1 + 1e-6)).all()
    assert errors[1].sum() < errors[0].sum() or shape[0] == 1


def test_importance_moves_the_range() -> None:
    weight = torch.cat((normal(1, 63), torch.tensor([[9.0]])), 1)
    scheme = Scheme(group_size=64)
    importance = torch.ones(64)
    importance[63] = 0
    free, _ = find_grid(weight, scheme, mse=True, importance=importance)
    importance[63] = 1e6
    bound, _ = find_grid(weight, scheme, mse=True, importance=importance)
    assert free < bound


def test_rows_do_not_depend_on_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, scheme = normal(37, 64), Scheme(symmetric=False, group_size=32)
    whole = quantize(weight, scheme, mse=True)
    monkeypatch.setitem(CHUNK, "cpu", 200)
    parts = quantize(weight, scheme, mse=True)
    assert torch.equal(whole.codes, parts.codes) and torch.equal(whole.scale, parts.scale)


@settings(deadline=None, max_examples=60)
@given(
    values=st.lists(st.floats(-1e4, 1e4, width=32), min_size=8, max_size=8),
    symmetric=st.booleans(),
    mse=st.booleans(),
)
def test_error_is_at_most_half_a_step_inside_the_range(
    values: list[float], symmetric: bool, mse: bool
) -> None:
    weight = torch.tensor([values])
    scheme = Scheme(symmetric=symmetric, group_size=4)
    matrix = quantize(weight, scheme, mse=mse)
    step = matrix.scale.double().repeat_interleave(4, 1)
    zero = 0 if matrix.zero_point is None else matrix.zero_point.double().repeat_interleave(4, 1)
    low, high = scheme.code_range
    clamped = weight.double().clamp((low - zero) * step, (high - zero) * step)
    assert (matrix.codes >= low).all() and (matrix.codes <= high).all()
    # beside half a step, the rounding of w / scale to float32
    assert ((matrix.dequantize().double() - clamped).abs() <= step * (0.5 + 2e-6)).all()
    if not mse:  # the whole group is in range, but for the positive end and float16's rounding
        assert ((clamped - weight).abs() <= step * 0.52).all()
