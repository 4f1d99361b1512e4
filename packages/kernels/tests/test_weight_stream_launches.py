"""What weight_stream hands to the kernel, and what it refuses of a launch: no GPU needed."""

from typing import Any

import pytest
from bytebound_kernels import (
    DeviceInfo,
    InvalidArgumentError,
    KernelError,
    StreamNorm,
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    _device,
    _native,
    weight_stream_slots,
)

from .stream_fakes import (
    FULL,
    HALF,
    HV,
    INT,
    PARTS,
    POINTERS,
    TENSORS,
    VALUES,
    WORKSPACE_BYTES,
    C,
    D,
    F,
    H,
    P,
    W,
    call,
    layer,
    program_of,
    workspace_of,
)

DTYPE, SHAPE, LAYOUT = UnsupportedDtypeError, UnsupportedShapeError, UnsupportedLayoutError

Launches = list[tuple[list[Any], dict[str, Any]]]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, pretend_cuda: None) -> Launches:
    """Record what would reach the kernel."""
    seen: Launches = []

    def maker(name: str) -> Any:
        return lambda **arguments: (name, arguments)

    for name in ("stream_norm", "stream_gates", "stream_product", "stream_gated_delta"):
        monkeypatch.setattr(_native, name, maker(name), raising=False)
    replaced: dict[str, Any] = {
        "weight_stream_plan": lambda ops, **keywords: ops,
        "weight_stream": lambda ops, **keywords: seen.append((ops, keywords)),
        "weight_stream_workspace_bytes": lambda num_sms: WORKSPACE_BYTES,
        "weight_stream_slots": lambda rows, d, attention, asymmetric, device: (
            8 if rows * d < 8 * 5000 else 0
        ),
    }
    for name, function in replaced.items():
        monkeypatch.setattr(_native, name, function, raising=False)
    return seen


def test_what_the_kernel_gets(fake: Any, launched: Launches) -> None:
    ops = layer(
        fake,
        x={"strides": (D + 4, 1)},
        behind={"strides": (D + 3, 1)},
        updates={"strides": (W + 4, 1)},
    )
    clock = fake((9, 4, 132), dtype="torch.int64", pointer=1 << 35)
    call(fake, ops, rows=5, clock=clock, stream=7)
    ((native, keywords),) = launched
    assert keywords == {
        "rows": 5,
        "workspace": 1 << 34,
        "clock": 1 << 35,
        "table": 1 << 40,
        "stream": 7,
    }
    p = POINTERS
    delta = {
        "current": (p["projected"], p["gates"], p["gates"] + 2 * HV),
        "pending": (p["pending_qkv"], p["pending_updates"]),
        "z": p["projected"] + 2 * C,
        "out": p["mixed"],
        "updates": p["updates"],
        "num_accepted": p["num_accepted"],
        "conv_weight": p["conv"],
        "a_log": p["a_log"],
        "dt_bias": p["dt_bias"],
        "norm_weight": p["norm"],
        "conv_window": p["conv_window"],
        "state": p["recurrent"],
        "pending_rows": P,
        "row_strides": (C + VALUES, 2 * HV, 2 * HV),
        "updates_row_stride": W + 4,
        "z_row_stride": C + VALUES,
        "out_row_stride": VALUES,
        "h": H,
        "hv": HV,
        "eps": 1e-5,
    }
    assert native[0] == ("stream_gated_delta", {**delta, "replay": True})
    assert native[4] == ("stream_gated_delta", {**delta, "replay": False})
    assert native[1] == (
        "stream_norm",
        {
            "x": p["x"],
            "weight": p["norm_1"],
            "out": p["hidden"],
            "x_row_stride": D + 4,
            "out_row_stride": D,
            "d": D,
            "eps": 0.5,
        },
    )
    assert native[3] == (
        "stream_gates",
        {
            "weight": p["gates_weight"],
            "out": p["gates"],
            "weight_row_stride": D,
            "out_row_stride": 2 * HV,
            "n": 2 * HV,
            "d": D,
        },
    )
    product = {
        "weight": p["down"],
        "x": p["inner"],
        "out": p["behind"],
        "residual": p["middle"],
        "x_row_stride": F,
        "out_row_stride": D + 3,
        "residual_row_stride": D,
        "n": D,
        "k": F,
        "scale_dtype": 0,
        "asymmetric": False,
        "float_out": True,
        "epilogue": 1,
        "scale": 4.0,
    }
    assert native[8] == ("stream_product", product)
    assert native[7][1] == {
        **product,
        "weight": p["gate_up"],
        "x": 0,
        "out": p["inner"],
        "residual": 0,
        "x_row_stride": 0,
        "out_row_stride": F,
        "residual_row_stride": 0,
        "n": F,
        "k": D,
        "float_out": False,
        "epilogue": 2,
        "scale": 0.25,
    }
    assert native[2][1]["epilogue"] == 0
    assert native[6][1]["out"] == native[6][1]["out_row_stride"] == 0


def test_a_program_is_made_once(
    fake: Any, launched: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = layer(fake)
    program = program_of(fake, iter(ops))
    assert program.ops == tuple(ops) and program.device == 0
    for name in ("stream_norm", "stream_gates", "stream_product", "stream_gated_delta"):
        monkeypatch.setattr(_native, name, None)  # none is asked again
    call(fake, program, rows=1, stream=5)
    program.run(rows=2, workspace=workspace_of(fake), stream=5)
    assert [keywords["rows"] for _, keywords in launched] == [1, 2]
    assert launched[0][0] == launched[1][0] and len(launched[0][0]) == len(ops)
    assert launched[0][1]["clock"] == 0
    with pytest.raises(InvalidArgumentError, match="rows is 9"):
        program.run(rows=9, workspace=workspace_of(fake))


def test_results_may_be_columns_of_one_wide_tensor(fake: Any, launched: Launches) -> None:
    """As the activations of a pass lie in one arena, rows outermost."""
    width, start, column = 8192, 1 << 36, 0  # bytes of a row
    changes: dict[str, dict[str, Any]] = {}
    for name in ("projected", "gates", "mixed", "inner", "middle", "behind"):
        (_, count), dtype = TENSORS[name]
        size = 4 if dtype == FULL else 2
        changes[name] = {"pointer": start + column, "strides": (width // size, 1)}
        column += -(-count * size // 256) * 256
    for name, (whole, first, _) in PARTS.items():
        changes[name] = {
            "pointer": changes[whole]["pointer"] + 2 * first,
            "strides": (width // 2, 1),
        }
    call(fake, layer(fake, **changes), stream=5)
    assert len(launched) == 1
    changes["inner"]["pointer"] -= 16
    with pytest.raises(LAYOUT, match=r"ops\[7\].out overlaps ops\[4\].out"):
        call(fake, layer(fake, **changes), stream=5)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"shape": (WORKSPACE_BYTES - 1,)}, SHAPE, "workspace has 4095 bytes; expected 4096"),
        ({"dtype": HALF}, DTYPE, "workspace has dtype float16"),
        ({"pointer": (1 << 34) + 8}, LAYOUT, "workspace starts at"),
        ({"pointer": POINTERS["mixed"]}, LAYOUT, "workspace overlaps .*out"),
        ({"device": "cpu"}, UnsupportedDeviceError, "workspace on the host"),
    ],
)
def test_workspace(
    fake: Any, launched: Launches, changes: dict[str, Any], error: type[KernelError], message: str
) -> None:
    with pytest.raises(error, match=f"weight_stream: .*{message}"):
        call(fake, layer(fake), workspace=workspace_of(fake, **changes))
    assert not launched


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"shape": (8, 4, 132)}, SHAPE, r"clock has shape .* expected \(9, 4, 132\)"),
        ({"dtype": INT}, DTYPE, "clock has dtype int32"),
        ({"strides": (4 * 133, 133, 1)}, LAYOUT, "clock of shape"),
        ({"pointer": POINTERS["behind"]}, LAYOUT, "clock overlaps"),
        ({"pointer": 1 << 34}, LAYOUT, "workspace overlaps clock"),
        ({"device": "cpu"}, UnsupportedDeviceError, "clock on the host"),
    ],
)
def test_clock(
    fake: Any, launched: Launches, changes: dict[str, Any], error: type[KernelError], message: str
) -> None:
    fields = {"shape": (9, 4, 132), "dtype": "torch.int64", "pointer": 1 << 35, **changes}
    with pytest.raises(error, match=f"weight_stream: .*{message}"):
        call(fake, layer(fake), clock=fake(**fields))
    assert not launched


def test_rows_that_do_not_fit_shared_memory(fake: Any, launched: Launches) -> None:
    wide = StreamNorm(fake((8, 8192), dtype=FULL), fake((8192,), dtype=FULL, pointer=1 << 33))
    with pytest.raises(SHAPE, match=r"8 rows of D = 8192 and the weights .* do not fit"):
        call(fake, [wide], rows=8)
    assert not launched
    call(fake, [wide], rows=4, stream=5)
    assert len(launched) == 1
    assert weight_stream_slots(8, 8192, asymmetric=False) == 0


def test_a_gpu_before_sm_90(fake: Any, launched: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    card = DeviceInfo(0, "card 0", (8, 9), 132, 50 << 20, 80 << 30)
    answer = _device._Availability("", (card,), {})
    monkeypatch.setattr(_device, "_availability", lambda: answer)
    message = r"device 0 is card 0 \(sm_89\); expected sm_90 or later"
    with pytest.raises(UnsupportedDeviceError, match=f"weight_stream: {message}"):
        call(fake, layer(fake))
    assert not launched
