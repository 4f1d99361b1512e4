"""GPTQ against a slow float64 form of its own, and calibrations that break naive ones (E30)."""

from collections.abc import Callable

import pytest
import torch
from bytebound_quant.errors import CalibrationError, SchemeError, UnsupportedShapeError
from bytebound_quant.gptq import RUN, gptq, output_errors
from bytebound_quant.grid import QuantizedMatrix, Scheme
from bytebound_quant.hessian import STEP, Hessian
from bytebound_quant.refine import refined
from bytebound_quant.rtn import rtn

both = pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
orders = pytest.mark.parametrize("act_order", [False, True], ids=["stored", "act"])
K, N = 48, 11


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def inputs(rows: int = 400, columns: int = K, seed: int = 1) -> torch.Tensor:
    """Correlated calibration rows whose columns differ in size."""
    mix = normal(columns, columns, seed=seed + 100) / columns**0.5 + torch.eye(columns)
    return normal(rows, columns, seed=seed) @ mix * torch.linspace(0.3, 2, columns)


def hessian_of(*parts: torch.Tensor) -> Hessian:
    hessian = Hessian(parts[0].shape[-1])
    for part in parts:
        hessian.add(part)
    return hessian


def slow_grid(group: torch.Tensor, scheme: Scheme) -> tuple[float, int]:
    low, high = min(0.0, group.min().item()), max(0.0, group.max().item())
    exact = max(-low, high) / 7.5 if scheme.symmetric else (high - low) / 15
    scale = torch.tensor(exact, dtype=torch.float16).item()
    return scale, 0 if scheme.symmetric else min(15, max(0, round(-low / scale)))


def slow_gptq(
    weight: torch.Tensor, x: torch.Tensor, scheme: Scheme, act_order: bool, damping: float
) -> torch.Tensor:
    """Optimal brain surgeon, one row and column at a time: an explicit inverse of what is left.

    Rounding column j to q moves the open columns by -(w_j - q) [H^-1]_jk / [H^-1]_jj, where H is
    the Hessian of the open columns alone.
    """
    moment = 2 / x.shape[0] * x.double().T @ x.double()
    moment += damping * moment.diagonal().mean() * torch.eye(x.shape[1])
    order = list(range(x.shape[1]))
    if act_order:
        order.sort(key=lambda j: -moment[j, j].item())
    size = scheme.group_size
    low, high = (-8, 7) if scheme.symmetric else (0, 15)
    codes = torch.zeros(weight.shape, dtype=torch.int8)
    for i in range(weight.shape[0]):
        row = weight[i].double().clone()
        grids = [slow_grid(row[g : g + size], scheme) for g in range(0, len(row), size)]
        for step, j in enumerate(order):
            if not act_order and j % size == 0:
                grids[j // size] = slow_grid(row[j : j + size], scheme)
            scale, zero = grids[j // size]
            code = min(high, max(low, round(row[j].item() / scale + zero)))
            left = order[step:]
            inverse = torch.linalg.inv(moment[left][:, left])
            row[left] -= (row[j] - (code - zero) * scale) * inverse[0] / inverse[0, 0]
            codes[i, j] = code
    return codes


@both
@orders
@pytest.mark.parametrize("group", [16, 48])
@pytest.mark.parametrize("block", [1, 7, 16, 100])
def test_against_the_slow_form(symmetric: bool, act_order: bool, group: int, block: int) -> None:
    scheme = Scheme(symmetric=symmetric, group_size=group)
    weight, x = normal(N, K), inputs()
    matrix, notes = gptq(
        weight,
        hessian_of(x),
        scheme,
        mse=False,
        act_order=act_order,
        block=block,
        refine=0,
        shrinkage=0,
    )
    same = (matrix.codes == slow_gptq(weight, x, scheme, act_order, 0.01)).all(1)
    # a row that plain rounding happens to serve better keeps it
    assert (~same).sum() <= notes.rounded_rows <= 2
    assert torch.equal(matrix.codes[~same], rtn(weight, scheme).codes[~same])
    assert (notes.damping, notes.attempts) == (0.01, 1)


@both
@orders
def test_error_is_that_of_the_outputs(symmetric: bool, act_order: bool) -> None:
    scheme = Scheme(symmetric=symmetric, group_size=16)
    weight, x = normal(N, K), inputs()
    matrix, notes = gptq(weight, hessian_of(x), scheme, act_order=act_order)
    out = x.double() @ weight.double().T

    def relative(m: QuantizedMatrix) -> float:
        return ((x.double() @ m.dequantize().double().T - out).norm() / out.norm()).item() ** 2

    assert notes.error == pytest.approx(relative(matrix), rel=1e-4)
    assert notes.rtn_error == pytest.approx(relative(rtn(weight, scheme)), rel=1e-4)
    assert notes.error < 0.6 * notes.rtn_error
    assert (notes.rows, notes.dead_columns, notes.precision) == (400, 0, "float32")


@both
def test_each_addition_lowers_the_error(symmetric: bool) -> None:
    scheme = Scheme(symmetric=symmetric, group_size=32)
    weight, hessian = normal(64, 128), hessian_of(inputs(1000, 128))
    plain, searched, once, twice = (
        gptq(weight, hessian, scheme, mse=mse, refine=refine, shrinkage=0)[1].error
        for mse, refine in ((False, 0), (True, 0), (True, 1), (True, 2))
    )
    assert plain > searched > once > twice


@both
@orders
def test_twice_gives_the_same_bytes(symmetric: bool, act_order: bool) -> None:
    scheme = Scheme(symmetric=symmetric)
    weight = normal(40, 256)
    results = [
        gptq(weight, hessian_of(inputs(300, 256)), scheme, act_order=act_order) for _ in range(2)
    ]
    (one, notes), (two, again) = results
    assert torch.equal(one.codes, two.codes) and torch.equal(one.scale, two.scale)
    assert notes == again
    if not symmetric:
        assert torch.equal(one.zero_point, two.zero_point)


@both
def test_runs_of_rows_join(symmetric: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = Scheme(symmetric=symmetric, group_size=16)
    weight, hessian = normal(N, K), hessian_of(inputs())
    whole, notes = gptq(weight, hessian, scheme)
    monkeypatch.setitem(RUN, "cpu", 4 * K)
    parts, again = gptq(weight, hessian, scheme)
    assert torch.equal(whole.codes, parts.codes) and torch.equal(whole.scale, parts.scale)
    assert again.error == pytest.approx(notes.error)


def test_sixteen_bit_weights_are_upcast_and_left_alone() -> None:
    weight, hessian = normal(N, K).bfloat16(), hessian_of(inputs())
    kept, moment = weight.clone(), hessian.matrix.clone()
    one, _ = gptq(weight, hessian, Scheme(group_size=16))
    two, _ = gptq(weight.float(), hessian, Scheme(group_size=16))
    assert torch.equal(one.codes, two.codes)
    assert torch.equal(weight, kept) and torch.equal(hessian.matrix, moment)


def repeated() -> torch.Tensor:
    return inputs(1).expand(300, K)


def few() -> torch.Tensor:
    return inputs(5)


def with_dead() -> torch.Tensor:
    x = inputs()
    x[:, [0, 17, 47]] = 0
    return x


def all_dead() -> torch.Tensor:
    return torch.zeros(20, K)


def twins() -> torch.Tensor:
    x = inputs()
    x[:, 1::2] = x[:, 0::2]
    return x


def uneven() -> torch.Tensor:
    return inputs() * torch.logspace(-12, 6, K)


@both
@orders
@pytest.mark.parametrize("damping", [0.01, 0.0])
@pytest.mark.parametrize(
    "calibration", [repeated, few, with_dead, all_dead, twins, uneven], ids=lambda f: f.__name__
)
def test_degenerate_calibration(  # E30
    symmetric: bool, act_order: bool, damping: float, calibration: Callable[[], torch.Tensor]
) -> None:
    scheme = Scheme(symmetric=symmetric, group_size=16)
    weight, hessian = normal(N, K), hessian_of(calibration())
    matrix, notes = gptq(weight, hessian, scheme, act_order=act_order, damping=damping)
    assert matrix.dequantize().isfinite().all() and (matrix.scale > 0).all()
    mine = output_errors(weight, matrix, hessian.matrix)
    plain = output_errors(weight, rtn(weight, scheme), hessian.matrix)
    assert (mine <= plain).all()
    assert notes.error <= notes.rtn_error
    assert notes.attempts >= 1 and 0 <= notes.damping <= 10
    low, high = scheme.code_range
    assert (matrix.codes >= low).all() and (matrix.codes <= high).all()


def test_dead_columns_are_rounded_and_touch_nothing() -> None:
    scheme = Scheme(group_size=16)
    weight, x = normal(N, K), with_dead()
    matrix, notes = gptq(weight, hessian_of(x), scheme)
    assert notes.dead_columns == 3
    step = matrix.scale.float().repeat_interleave(16, 1)
    dead = [0, 17, 47]
    expected = (weight / step).clamp(-8, 7).round()
    assert torch.equal(matrix.codes[:, dead].float(), expected[:, dead])


def test_damping_grows_and_is_reported() -> None:
    weight, hessian = normal(N, K), hessian_of(repeated())
    matrix, notes = gptq(weight, hessian, Scheme(group_size=16), damping=0.0, shrinkage=0)
    assert notes.attempts > 1 and notes.damping >= 0.001
    assert notes.rounded_rows < N
    assert matrix.dequantize().isfinite().all()


def test_plain_rounding_is_kept_where_nothing_factorises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bytebound_quant.gptq._factorise", lambda *args: None)
    weight, scheme = normal(N, K), Scheme(group_size=16)
    matrix, notes = gptq(weight, hessian_of(inputs()), scheme)
    assert torch.equal(matrix.codes, rtn(weight, scheme).codes)
    assert (notes.rounded_rows, notes.damping, notes.precision) == (N, 0.0, "none")
    assert (notes.attempts, notes.error) == (4, notes.rtn_error)


def test_shrinkage_helps_other_inputs_when_rows_are_few() -> None:
    weight, scheme = normal(64, 128), Scheme(group_size=32)
    mix = normal(128, 128, seed=7) / 128**0.5 + torch.eye(128)
    few, other = normal(100, 128, seed=8) @ mix, hessian_of(normal(5000, 128, seed=9) @ mix)
    kept, notes = gptq(weight, hessian_of(few), scheme)
    fitted, again = gptq(weight, hessian_of(few), scheme, shrinkage=0)
    assert notes.shrinkage == pytest.approx(1.28**0.5) and again.shrinkage == 0
    errors = [output_errors(weight, m, other.matrix).sum() for m in (kept, fitted)]
    assert errors[0] < 0.8 * errors[1]


def test_what_is_refused() -> None:
    weight, scheme, good = normal(N, K), Scheme(group_size=16), hessian_of(inputs())
    with pytest.raises(CalibrationError, match="no calibration rows"):
        gptq(weight, Hessian(K), scheme)
    with pytest.raises(CalibrationError, match="not finite"):
        gptq(weight, hessian_of(torch.full((2, K), float("nan"))), scheme)
    with pytest.raises(CalibrationError, match="not finite"):
        gptq(weight, hessian_of(torch.full((2, K), 1e30)), scheme)
    with pytest.raises(UnsupportedShapeError, match="32 input features, the calibration 48"):
        gptq(weight[:, :32], good, scheme)
    for option in (
        {"damping": -1.0},
        {"damping": float("nan")},
        {"block": 0},
        {"refine": -1},
        {"shrinkage": -1.0},
    ):
        with pytest.raises(SchemeError, match=next(iter(option))):
            gptq(weight, good, scheme, **option)
    with pytest.raises(CalibrationError, match="rows of 48 features"):
        good.add(torch.ones(3, 47))
    with pytest.raises(CalibrationError, match="int64"):
        good.add(torch.ones(3, K, dtype=torch.int64))


@pytest.mark.parametrize("cuts", [[9000], [1, 8999], [4096, 4904], [3000, 0, 6000]], ids=str)
def test_hessian_does_not_depend_on_the_cuts(cuts: list[int]) -> None:
    x = inputs(9000)
    hessian = hessian_of(*x.split(cuts))
    exact = 2 / 9000 * x.double().T @ x.double()
    assert hessian.rows == 9000 > STEP
    assert ((hessian.matrix - exact).norm() / exact.norm()).item() < 1e-6
    assert torch.equal(hessian.matrix, hessian_of(*x.split(cuts)).matrix)


def test_hessian_takes_any_leading_shape_and_half_precision() -> None:
    x = inputs(24).bfloat16()
    assert torch.equal(hessian_of(x.view(2, 12, K)).matrix, hessian_of(x.float()).matrix)
    assert torch.equal(hessian_of(x, x[:0]).matrix, hessian_of(x).matrix)


@both
def test_refinement_lowers_every_rows_error(symmetric: bool) -> None:
    scheme = Scheme(symmetric=symmetric, group_size=16)
    weight = normal(N, K)
    moment = hessian_of(inputs()).matrix
    matrix = rtn(weight, scheme)
    before = output_errors(weight, matrix, moment)
    assert refined(weight, matrix, moment, rounds=0) is matrix
    for rounds in (1, 2, 3):
        better = refined(weight, matrix, moment, rounds=rounds)
        after = output_errors(weight, better, moment)
        assert (after <= before * (1 + 1e-5)).all()
        before = after
    assert after.sum() < 0.7 * output_errors(weight, matrix, moment).sum()


def test_refinement_finds_the_best_of_one_column() -> None:
    scheme = Scheme(group_size=1)
    weight = torch.tensor([[3.3]])
    matrix = QuantizedMatrix(
        torch.tensor([[2]], dtype=torch.int8), torch.ones(1, 1).half(), None, scheme
    )
    better = refined(weight, matrix, torch.ones(1, 1), rounds=1)
    assert better.codes.tolist() == [[2]]
    assert better.scale.item() == torch.tensor(1.65).half().item()


def slow_target(
    weight: torch.Tensor, x: torch.Tensor, ideal: torch.Tensor, lack: torch.Tensor, damping: float
) -> torch.Tensor:
    """Least squares in float64 over the rows themselves, no moment formed.

    Rows that ask for the weight itself stand for the damping.
    """
    x, ideal, lack, weight = x.double(), ideal.double(), lack.double(), weight.double()
    diagonal = 2 / len(x) * x.square().sum(0)
    ridge = (damping * diagonal.mean() * len(x) / 2).sqrt() * torch.eye(x.shape[1])
    rows = torch.cat((x, ridge.double()))
    wanted = torch.cat((ideal @ weight.T + lack, ridge.double() @ weight.T))
    return torch.linalg.lstsq(rows, wanted).solution.T


def drifted() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, the 16-bit model's, and what the sum behind [., N] lacks: all correlated."""
    ideal = inputs()
    x = ideal + 0.1 * ideal @ normal(K, K, seed=3) / K**0.5 + 0.05 * normal(400, K, seed=4)
    return x, ideal, 0.3 * x @ normal(K, N, seed=5) / K**0.5 + 0.1 * normal(400, N, seed=6)


def drifted_hessian(cuts: int = 400) -> Hessian:
    hessian = Hessian(K, drift=True, outputs=N)
    for x, ideal, lack in zip(*(part.split(cuts) for part in drifted()), strict=True):
        hessian.add(x, ideal, lack)
    return hessian


@both
@orders
def test_target_against_slow_least_squares(symmetric: bool, act_order: bool) -> None:
    scheme = Scheme(symmetric=symmetric, group_size=16)
    weight, hessian = normal(N, K), drifted_hessian()
    matrix, notes = gptq(
        weight,
        hessian,
        scheme,
        mse=False,
        act_order=act_order,
        refine=0,
        shrinkage=0,
        lack=hessian.lack,
    )
    x, ideal, lack = drifted()
    target = slow_target(weight, x, ideal, lack, 0.01)
    same = (matrix.codes == slow_gptq(target, x, scheme, act_order, 0.01)).all(1)
    assert (~same).sum() <= 1  # a sum that falls on a half
    assert notes.rounded_rows == 0
    moved = (target - weight).norm() / weight.norm()
    assert notes.correction == pytest.approx(float(moved), rel=1e-3)
    out = x.double() @ target.T
    off = x.double() @ matrix.dequantize().double().T - out
    assert notes.error == pytest.approx(float(off.norm() / out.norm()) ** 2, rel=1e-3)


def test_the_step_to_the_target_is_short_where_rows_are_few() -> None:
    weight, hessian = normal(N, K), drifted_hessian()
    _, notes = gptq(weight, hessian, Scheme(group_size=16), lack=hessian.lack)
    shrunk = (K / 400) ** 0.5
    moment = hessian.matrix.double()
    diagonal = moment.diagonal()
    damped = moment + torch.diag(shrunk * diagonal + 0.01 * diagonal.mean())
    pull = weight.double() @ hessian.drift.double() + hessian.lack.double()
    moved = pull @ torch.linalg.inv(damped) / (1 + 4 * shrunk)
    assert notes.correction == pytest.approx(float(moved.norm() / weight.norm()), rel=1e-4)


@both
def test_what_earlier_layers_changed_is_made_up_for(symmetric: bool) -> None:
    scheme = Scheme(symmetric=symmetric, group_size=16)
    weight, hessian = normal(N, K), drifted_hessian()
    x, ideal, lack = drifted()

    def off(missing: torch.Tensor | None, moment: Hessian) -> float:
        matrix, _ = gptq(weight, moment, scheme, lack=missing, shrinkage=0)
        wanted = ideal @ weight.T + lack
        return float((x @ matrix.dequantize().T - wanted).norm())

    plain = off(None, hessian_of(x))
    inputs_only = off(None, hessian)
    assert off(hessian.lack, hessian) < 0.9 * inputs_only < 0.9 * plain


def test_no_drift_changes_nothing() -> None:
    weight, scheme, x = normal(N, K), Scheme(group_size=16), inputs()
    hessian = Hessian(K, drift=True, outputs=N)
    hessian.add(x, x, torch.zeros(len(x), N))
    one, notes = gptq(weight, hessian, scheme, lack=hessian.lack)
    two, again = gptq(weight, hessian_of(x), scheme)
    assert torch.equal(one.codes, two.codes) and torch.equal(one.scale, two.scale)
    assert notes == again and notes.correction == 0


def test_target_comes_in_runs_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, scheme, hessian = normal(N, K), Scheme(group_size=16), drifted_hessian()
    whole, _ = gptq(weight, hessian, scheme, lack=hessian.lack)
    monkeypatch.setitem(RUN, "cpu", 4 * K)
    parts, _ = gptq(weight, hessian, scheme, lack=hessian.lack)
    assert torch.equal(whole.codes, parts.codes) and torch.equal(whole.scale, parts.scale)


@pytest.mark.parametrize("cuts", [400, 7, 1])
def test_cross_moments(cuts: int) -> None:
    hessian = drifted_hessian(cuts)
    x, ideal, lack = (part.double() for part in drifted())
    for moment, side in ((hessian.drift, ideal - x), (hessian.lack, lack)):
        assert moment is not None
        exact = 2 / 400 * side.T @ x
        assert ((moment - exact).norm() / exact.norm()).item() < 1e-5


def test_what_is_refused_of_the_16_bit_side() -> None:
    x, ideal, lack = drifted()
    for given in ((x,), (x, ideal), (x, None, lack)):
        with pytest.raises(CalibrationError, match="for all rows or for none"):
            Hessian(K, drift=True, outputs=N).add(*given)
    with pytest.raises(CalibrationError, match="for all rows or for none"):
        Hessian(K).add(x, ideal)
    with pytest.raises(CalibrationError, match="400 rows of 11 features"):
        Hessian(K, drift=True, outputs=N).add(x, ideal, lack[:5])
    hessian = drifted_hessian()
    with pytest.raises(UnsupportedShapeError, match=r"lack: got \[3, 48\]"):
        gptq(normal(N, K), hessian, Scheme(group_size=16), lack=torch.zeros(3, K))
    hessian.drift[0, 0] = float("nan")
    with pytest.raises(CalibrationError, match="16-bit model's calibration inputs"):
        gptq(normal(N, K), hessian, Scheme(group_size=16))


def test_a_huge_drift_is_damped_or_rounded() -> None:
    weight, scheme = normal(N, K), Scheme(group_size=16)
    hessian = Hessian(K, drift=True)
    hessian.add(inputs(), inputs(seed=9) * 1e9)
    matrix, notes = gptq(weight, hessian, scheme)
    assert matrix.dequantize().isfinite().all()
    assert notes.attempts > 1
