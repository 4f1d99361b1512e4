"""What gdn_step refuses, and what it hands to the kernel: no memory is touched, no GPU needed."""

from typing import Any

import pytest
from bytebound_kernels import (
    CudaUnavailableError,
    GdnPending,
    GdnRows,
    GdnState,
    GdnWeights,
    InvalidArgumentError,
    KernelError,
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    UnsupportedTensorError,
    _native,
    gdn_step,
)

H, HV, R, P = 2, 6, 3, 4
C = (2 * H + HV) * 128
W = (H + HV) * 128 + 8  # six value heads, in whole units of four floats
HALF, FLOAT = "torch.float16", "torch.float32"


def arguments(fake: Any, num_pending: int = 0, **changes: Any) -> dict[str, Any]:
    """Return the arguments of a call, each tensor in memory of its own.

    A change is a dict of fields of the tensor of that name.
    """
    shapes = {
        "qkv": ((R, C), HALF),
        "a": ((R, HV), HALF),
        "b": ((R, HV), HALF),
        "z": ((R, HV * 128), HALF),
        "conv": ((C, 4), HALF),
        "a_log": ((HV,), FLOAT),
        "dt_bias": ((HV,), FLOAT),
        "norm": ((128,), FLOAT),
        "conv_window": ((C, 3), HALF),
        "recurrent": ((HV, 128, 128), FLOAT),
        "out": ((R, HV * 128), HALF),
        "pending_qkv": ((num_pending, C), HALF),
        "pending_updates": ((num_pending, W), FLOAT),
        "num_accepted": ((1,), "torch.int32"),
    }
    tensors = {}
    for i, (name, (shape, dtype)) in enumerate(shapes.items(), start=1):
        fields = {"shape": shape, "dtype": dtype, "pointer": i << 24, **changes.pop(name, {})}
        tensors[name] = fake(**fields)
    t = tensors
    result: dict[str, Any] = {
        "rows": GdnRows(t["qkv"], t["a"], t["b"]),
        "z": t["z"],
        "weights": GdnWeights(t["conv"], t["a_log"], t["dt_bias"], t["norm"]),
        "state": GdnState(t["conv_window"], t["recurrent"]),
        "out": t["out"],
        "commit": num_pending == 0,
    }
    if num_pending:
        result["pending"] = GdnPending(t["pending_qkv"], t["pending_updates"])
        result["num_accepted"] = t["num_accepted"]
    return result | changes


SHAPE, LAYOUT = UnsupportedShapeError, UnsupportedLayoutError


@pytest.mark.parametrize(
    ("name", "fields", "error", "message"),
    [
        ("qkv", {"dtype": FLOAT}, UnsupportedDtypeError, "rows.qkv has dtype float32"),
        ("qkv", {"shape": (9, C)}, SHAPE, r"rows.qkv has shape \(9, 1280\); expected \[R, C\]"),
        ("qkv", {"shape": (C,)}, SHAPE, "rows.qkv has shape"),
        ("qkv", {"shape": (R, C + 128)}, SHAPE, r"rows.qkv has 1408 channels; expected \(2 H"),
        ("qkv", {"shape": (R, HV * 128)}, SHAPE, "rows.qkv has 768 channels"),
        ("qkv", {"shape": (R, 14 * 128)}, SHAPE, "H is 4 and HV 6; expected HV = H times 1 to 16"),
        ("qkv", {"strides": (1, R)}, LAYOUT, "rows.qkv of shape .* expected the last dimension"),
        ("qkv", {"strides": (C + 1, 1)}, LAYOUT, "rows.qkv has rows 1281 elements apart"),
        ("qkv", {"pointer": (1 << 24) + 2}, LAYOUT, "rows.qkv starts at 0x1000002; .* of 4 bytes"),
        ("a", {"dtype": "torch.bfloat16"}, UnsupportedDtypeError, "rows.a has dtype bfloat16"),
        ("a", {"shape": (R + 1, HV)}, SHAPE, r"rows.a has shape \(4, 6\); expected \(3, 6\)"),
        ("b", {"shape": (R, HV + 1)}, SHAPE, r"rows.b has shape \(3, 7\)"),
        ("b", {"strides": (1, R)}, LAYOUT, "rows.b of shape"),
        ("z", {"shape": (R, 128)}, SHAPE, r"z has shape \(3, 128\); expected \(3, 768\)"),
        ("z", {"pointer": (4 << 24) + 2}, LAYOUT, "z starts at"),
        ("conv", {"shape": (C, 3)}, SHAPE, r"weights.conv has shape \(1280, 3\)"),
        ("conv", {"dtype": FLOAT}, UnsupportedDtypeError, "weights.conv has dtype float32"),
        ("conv", {"pointer": (5 << 24) + 8}, LAYOUT, "weights.conv starts at .* of 16 bytes"),
        ("conv", {"strides": (8, 1)}, LAYOUT, "weights.conv of shape"),
        ("a_log", {"dtype": HALF}, UnsupportedDtypeError, "weights.a_log has dtype float16"),
        ("dt_bias", {"shape": (HV + 1,)}, SHAPE, "weights.dt_bias has shape"),
        ("norm", {"shape": (64,)}, SHAPE, "weights.norm has shape"),
        ("conv_window", {"shape": (C, 4)}, SHAPE, "state.conv_window has shape"),
        ("conv_window", {"dtype": FLOAT}, UnsupportedDtypeError, "state.conv_window has dtype"),
        ("conv_window", {"pointer": (9 << 24) + 2}, LAYOUT, "state.conv_window starts at"),
        ("recurrent", {"shape": (HV, 64, 128)}, SHAPE, "K = 64 and V = 128; expected 128 for both"),
        ("recurrent", {"shape": (HV, 128, 256)}, SHAPE, "K = 128 and V = 256"),
        ("recurrent", {"shape": (0, 128, 128)}, SHAPE, "HV is 0"),
        ("recurrent", {"dtype": HALF}, UnsupportedDtypeError, "state.recurrent has dtype float16"),
        ("recurrent", {"strides": (16384, 1, 128)}, LAYOUT, "state.recurrent of shape"),
        ("recurrent", {"pointer": (10 << 24) + 4}, LAYOUT, "state.recurrent starts at"),
        ("recurrent", {"pointer": 1 << 24}, LAYOUT, "state.recurrent overlaps rows.qkv"),
        ("conv_window", {"pointer": 10 << 24}, LAYOUT, "state.recurrent overlaps state.conv_w"),
        ("out", {"dtype": FLOAT}, UnsupportedDtypeError, "out has dtype float32"),
        ("out", {"shape": (R, 128)}, SHAPE, "out has shape"),
        ("out", {"strides": (0, 1)}, LAYOUT, "out has rows of 768 elements at a distance of 0"),
        ("out", {"pointer": 4 << 24}, LAYOUT, "out overlaps z"),
        ("out", {"pointer": 10 << 24}, LAYOUT, "out overlaps state.recurrent"),
    ],
)
def test_refused_on_any_machine(
    fake: Any,
    no_cuda: str,
    name: str,
    fields: dict[str, Any],
    error: type[KernelError],
    message: str,
) -> None:
    with pytest.raises(error, match=f"gdn_step: .*{message}"):
        gdn_step(**arguments(fake, **{name: fields}))


@pytest.mark.parametrize(
    ("name", "fields", "error", "message"),
    [
        ("pending_qkv", {"shape": (0, C)}, SHAPE, "pending.qkv has shape .* with P from 3 to 8"),
        ("pending_qkv", {"shape": (R - 1, C)}, SHAPE, "pending.qkv has shape .* P from 3 to 8"),
        ("pending_qkv", {"shape": (9, C)}, SHAPE, "pending.qkv has shape"),
        ("pending_qkv", {"shape": (P, C + 128)}, SHAPE, r"pending.qkv .* expected \[P, 1280\]"),
        ("pending_qkv", {"dtype": "torch.bfloat16"}, UnsupportedDtypeError, "pending.qkv has"),
        ("pending_qkv", {"strides": (2 * C, 1)}, LAYOUT, "pending.qkv of shape"),
        ("pending_updates", {"shape": (P + 1, W)}, SHAPE, r"pending.updates has shape \(5, 1032\)"),
        ("pending_updates", {"shape": (P, W - 2)}, SHAPE, "pending.updates has shape"),
        ("pending_updates", {"dtype": HALF}, UnsupportedDtypeError, "pending.updates has dtype"),
        ("pending_updates", {"pointer": (13 << 24) + 4}, LAYOUT, "pending.updates starts at"),
        ("pending_updates", {"pointer": 1 << 24}, LAYOUT, "pending.updates overlaps rows.qkv"),
        ("pending_updates", {"pointer": 10 << 24}, LAYOUT, "state.recurrent overlaps pending.up"),
        ("num_accepted", {"dtype": "torch.int64"}, UnsupportedDtypeError, "num_accepted has"),
        ("num_accepted", {"shape": (2,)}, SHAPE, "num_accepted has shape"),
        ("num_accepted", {"shape": ()}, SHAPE, "num_accepted has shape"),
        ("out", {"pointer": 12 << 24}, LAYOUT, "out overlaps pending.qkv"),
    ],
)
def test_pending_refused_on_any_machine(
    fake: Any,
    no_cuda: str,
    name: str,
    fields: dict[str, Any],
    error: type[KernelError],
    message: str,
) -> None:
    with pytest.raises(error, match=f"gdn_step: .*{message}"):
        gdn_step(**arguments(fake, P, **{name: fields}))


@pytest.mark.parametrize(
    ("num_pending", "changes", "message"),
    [
        (P, {"commit": True}, "commit is True with pending rows"),
        (P, {"num_accepted": None}, "only one of pending and num_accepted"),
        (P, {"pending": None}, "only one of pending and num_accepted"),
        (P, {"pending_rows": P + 1}, "pending_rows is 5; expected 0 to 4, the rows of pending"),
        (P, {"pending_rows": -1}, "pending_rows is -1; expected 0 to 4"),
        (P, {"pending_rows": 2.0}, "pending_rows is 2.0; expected an integer"),
        (0, {"pending_rows": 1}, "pending_rows is 1; expected 0 to 0"),
        (0, {"eps": -1.0}, "eps is -1.0"),
        (0, {"eps": float("nan")}, "eps is nan"),
    ],
)
def test_combinations_refused_on_any_machine(
    fake: Any, no_cuda: str, num_pending: int, changes: dict[str, Any], message: str
) -> None:
    call = arguments(fake, num_pending) | changes
    with pytest.raises(InvalidArgumentError, match=f"gdn_step: .*{message}"):
        gdn_step(**call)


def test_refuses_what_is_no_tensor(fake: Any, no_cuda: str) -> None:
    with pytest.raises(UnsupportedTensorError, match="z is a list"):
        gdn_step(**(arguments(fake) | {"z": [1.0]}))


def test_sound_arguments_without_cuda_name_the_reason(fake: Any, no_cuda: str) -> None:
    with pytest.raises(CudaUnavailableError, match=no_cuda):
        gdn_step(**arguments(fake))


def test_one_device_for_all(fake: Any, pretend_cuda: None) -> None:
    with pytest.raises(UnsupportedDeviceError, match=r"z on cuda:1.*state.recurrent on cuda:0"):
        gdn_step(**arguments(fake, z={"device": "cuda:1"}))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, pretend_cuda: None) -> list[dict[str, Any]]:
    """Record launches instead of making them."""
    recorded: list[dict[str, Any]] = []

    def record(current: Any, pending: Any, **keywords: Any) -> None:
        recorded.append({"current": current, "pending": pending, **keywords})

    monkeypatch.setattr(_native, "gdn_step", record, raising=False)
    return recorded


def test_what_the_kernel_gets(fake: Any, launches: list[dict[str, Any]]) -> None:
    call = arguments(fake, qkv={"strides": (C + 64, 1)}, out={"strides": (1000, 1)})
    assert gdn_step(**call, eps=0.5) is call["out"]
    launch = launches[0]
    assert launch["current"] == (1 << 24, 2 << 24, 3 << 24)
    assert launch["pending"] == (0, 0) and launch["num_accepted"] == 0
    assert (launch["rows"], launch["pending_rows"]) == (R, 0)
    assert (launch["h"], launch["hv"], launch["dtype"]) == (H, HV, 0)
    assert launch["row_strides"] == (C + 64, HV, HV)
    assert (launch["z_row_stride"], launch["out_row_stride"]) == (HV * 128, 1000)
    assert launch["commit"] is True and launch["state_settled"] is False
    assert launch["eps"] == 0.5


def test_what_the_kernel_gets_for_a_replay(fake: Any, launches: list[dict[str, Any]]) -> None:
    empty = {"qkv": {"shape": (0, C)}, "a": {"shape": (0, HV)}, "b": {"shape": (0, HV)}}
    for name in ("z", "out"):
        empty[name] = {"shape": (0, HV * 128)}
    gdn_step(**arguments(fake, P, **empty), state_settled=True)
    launch = launches[0]
    assert launch["pending"] == (12 << 24, 13 << 24)
    assert launch["num_accepted"] == 14 << 24
    assert (launch["rows"], launch["pending_rows"]) == (0, P)
    assert launch["commit"] is False and launch["state_settled"] is True


def test_rows_to_read_ahead_may_be_fewer_than_there_is_room_for(
    fake: Any, launches: list[dict[str, Any]]
) -> None:
    for rows in (0, 1, P):
        gdn_step(**arguments(fake, P), pending_rows=rows)
    assert [one["pending_rows"] for one in launches] == [0, 1, P]


def test_numbers_and_switches_of_numpy(fake: Any, launches: list[dict[str, Any]]) -> None:
    numpy = pytest.importorskip("numpy")
    given = arguments(fake, P) | {"commit": numpy.bool_(False)}
    gdn_step(**given, pending_rows=numpy.int64(1), state_settled=numpy.bool_(True))
    names = ("pending_rows", "commit", "state_settled")
    assert [launches[0][name] for name in names] == [1, False, True]
    assert [type(launches[0][name]) for name in names] == [int, bool, bool]


def test_out_may_lie_beside_its_inputs_in_a_wider_tensor(
    fake: Any, launches: list[dict[str, Any]]
) -> None:
    width, start = 4000, 1 << 24
    shapes = {"qkv": C, "z": HV * 128, "a": HV, "b": HV, "out": HV * 128}
    changes, column = {}, 0
    for name, size in shapes.items():
        changes[name] = {"strides": (width, 1), "pointer": start + 2 * column}
        column += size
    gdn_step(**arguments(fake, **changes))
    assert len(launches) == 1
    changes["out"]["pointer"] -= 4
    with pytest.raises(UnsupportedLayoutError, match=r"out overlaps rows\.b"):
        gdn_step(**arguments(fake, **changes))
