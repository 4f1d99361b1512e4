"""Rounding to nearest against a loop over single numbers."""

import pytest
import torch
from bytebound_quant.errors import UnsupportedShapeError
from bytebound_quant.grid import Scheme
from bytebound_quant.rtn import rtn

both = pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])


def slow(weight: torch.Tensor, scheme: Scheme) -> tuple[list, list, list]:
    """One weight at a time, in Python's numbers; only the float16 rounding is torch's."""
    codes, scales, zeros = [], [], []
    for row in weight.tolist():
        row_codes = []
        for start in range(0, len(row), scheme.group_size):
            group = row[start : start + scheme.group_size]
            low, high = min(0.0, *group), max(0.0, *group)
            exact = max(-low, high) / 7.5 if scheme.symmetric else (high - low) / 15
            scale = torch.tensor(exact, dtype=torch.float16).item()
            zero = 0 if scheme.symmetric else min(15, max(0, round(-low / scale)))
            floor, ceiling = (-8, 7) if scheme.symmetric else (0, 15)
            row_codes += [min(ceiling, max(floor, round(w / scale + zero))) for w in group]
            scales.append(scale)
            zeros.append(zero)
        codes.append(row_codes)
    return codes, scales, zeros


@both
@pytest.mark.parametrize("shape", [(1, 8), (48, 64), (13, 200)], ids=str)
def test_against_the_slow_loop(symmetric: bool, shape: tuple[int, int]) -> None:
    scheme = Scheme(symmetric=symmetric, group_size=8)
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    codes, scales, zeros = slow(weight, scheme)
    matrix = rtn(weight, scheme)
    assert matrix.codes.tolist() == codes
    assert matrix.scale.flatten().tolist() == scales
    assert matrix.scheme is scheme
    if matrix.zero_point is not None:
        assert matrix.zero_point.flatten().tolist() == zeros
    else:
        assert symmetric


@both
@pytest.mark.parametrize("mse", [False, True], ids=["plain", "mse"])
def test_twice_gives_the_same_bytes(symmetric: bool, mse: bool) -> None:
    scheme = Scheme(symmetric=symmetric)
    weight = torch.randn(33, 256, generator=torch.Generator().manual_seed(2))
    one, two = rtn(weight, scheme, mse=mse), rtn(weight.clone(), scheme, mse=mse)
    assert torch.equal(one.codes, two.codes) and torch.equal(one.scale, two.scale)


def test_mse_lowers_the_error_of_normal_weights() -> None:
    weight = torch.randn(64, 512, generator=torch.Generator().manual_seed(3))
    errors = [(rtn(weight, Scheme(), mse=m).dequantize() - weight).norm() for m in (False, True)]
    assert errors[1] < 0.95 * errors[0]


def test_a_short_last_group_is_refused() -> None:
    with pytest.raises(UnsupportedShapeError, match=r"200 input features.*128"):
        rtn(torch.ones(4, 200), Scheme())
