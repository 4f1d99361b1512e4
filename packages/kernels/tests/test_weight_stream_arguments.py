"""What weight_stream refuses, and what it hands to the kernel: no memory is touched."""

from typing import Any

import pytest
from bytebound_kernels import (
    STREAM_MAX_OPS,
    CudaUnavailableError,
    DeviceInfo,
    GdnRows,
    GdnState,
    GdnWeights,
    InvalidArgumentError,
    KernelError,
    PackedW4,
    StreamGatedDelta,
    StreamGates,
    StreamNorm,
    StreamOp,
    StreamProduct,
    StreamProgram,
    StreamReplay,
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    UnsupportedTensorError,
    _device,
    _native,
    w4_packed_bytes,
    weight_stream,
    weight_stream_slots,
    weight_stream_workspace_bytes,
)

D, H, HV, F, P = 256, 1, 2, 384, 5
C, VALUES = (2 * H + HV) * 128, HV * 128
HALF, FULL, INT = "torch.float16", "torch.float32", "torch.int32"
WORKSPACE_BYTES = 4096
DTYPE, SHAPE, LAYOUT = UnsupportedDtypeError, UnsupportedShapeError, UnsupportedLayoutError
INVALID, TENSOR = InvalidArgumentError, UnsupportedTensorError

# name: shape, dtype; each in memory of its own, but for the parts of projected and gates.
TENSORS: dict[str, tuple[tuple[int, ...], str]] = {
    "x": ((8, D), FULL),
    "norm_1": ((D,), FULL),
    "projected": ((8, C + VALUES), HALF),
    "gates_weight": ((2 * HV, D), HALF),
    "gates": ((8, 2 * HV), HALF),
    "conv": ((C, 4), HALF),
    "a_log": ((HV,), FULL),
    "dt_bias": ((HV,), FULL),
    "norm": ((128,), FULL),
    "conv_window": ((C, 3), HALF),
    "recurrent": ((HV, 128, 128), FULL),
    "pending_qkv": ((P, C), HALF),
    "pending_a": ((P, HV), HALF),
    "pending_b": ((P, HV), HALF),
    "num_accepted": ((1,), INT),
    "mixed": ((8, VALUES), HALF),
    "middle": ((8, D), FULL),
    "norm_2": ((D,), FULL),
    "inner": ((8, F), HALF),
    "behind": ((8, D), FULL),
    "hidden": ((8, D), HALF),
    "in_proj": ((w4_packed_bytes(C + VALUES, D),), "torch.uint8"),
    "out_proj": ((w4_packed_bytes(D, VALUES),), "torch.uint8"),
    "gate_up": ((w4_packed_bytes(F, D, interleaved=True),), "torch.uint8"),
    "down": ((w4_packed_bytes(D, F),), "torch.uint8"),
}
POINTERS = {name: i << 24 for i, name in enumerate(TENSORS, start=1)}
# Parts of what another op writes: of which tensor, first column, columns.
PARTS = {
    "qkv": ("projected", 0, C),
    "z": ("projected", C, VALUES),
    "a": ("gates", 0, HV),
    "b": ("gates", HV, HV),
}


def tensors_of(fake: Any, **changes: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, dict[str, Any]] = {
        name: {"shape": shape, "dtype": dtype, "pointer": POINTERS[name]}
        for name, (shape, dtype) in TENSORS.items()
    }
    for name, (whole, column, width) in PARTS.items():
        fields[name] = {
            "shape": (8, width),
            "strides": (TENSORS[whole][0][1], 1),
            "pointer": POINTERS[whole] + 2 * column,
        }
    return {name: fake(**{**field, **changes.get(name, {})}) for name, field in fields.items()}


def layer(fake: Any, **changes: dict[str, Any]) -> list[StreamOp]:
    """One Gated DeltaNet layer and its MLP; a change is a dict of fields of that tensor."""
    t = tensors_of(fake, **changes)
    delta = StreamGatedDelta(
        GdnRows(t["qkv"], t["a"], t["b"]),
        t["z"],
        GdnWeights(t["conv"], t["a_log"], t["dt_bias"], t["norm"]),
        GdnState(t["conv_window"], t["recurrent"]),
        GdnRows(t["pending_qkv"], t["pending_a"], t["pending_b"]),
        t["num_accepted"],
        t["mixed"],
        1e-5,
    )
    return [
        StreamReplay(delta),
        StreamNorm(t["x"], t["norm_1"], t["hidden"], 0.5),
        StreamProduct(PackedW4(t["in_proj"], C + VALUES, D), t["projected"]),
        StreamGates(t["gates_weight"], t["gates"]),
        delta,
        StreamProduct(PackedW4(t["out_proj"], D, VALUES), t["middle"], t["mixed"], t["x"]),
        StreamNorm(t["middle"], t["norm_2"]),
        StreamProduct(PackedW4(t["gate_up"], F, D, interleaved=True), t["inner"], scale=0.25),
        StreamProduct(PackedW4(t["down"], D, F), t["behind"], t["inner"], t["middle"], 4.0),
    ]


def workspace_of(fake: Any, **changes: Any) -> Any:
    fields = {"shape": (WORKSPACE_BYTES,), "dtype": "torch.uint8", "pointer": 1 << 34, **changes}
    return fake(**fields)


def call(fake: Any, ops: Any, **keywords: Any) -> None:
    weight_stream(ops, **{"rows": 3, "workspace": workspace_of(fake), **keywords})


REFUSED: list[tuple[str, dict[str, Any], type[KernelError], str]] = [
    ("x", {"dtype": HALF}, DTYPE, r"ops\[1\].x has dtype float16"),
    ("x", {"shape": (7, D)}, SHAPE, r"ops\[1\].x has shape \(7, 256\); expected \(8, any\)"),
    ("x", {"shape": (D,)}, SHAPE, r"ops\[1\].x has shape"),
    ("x", {"shape": (8, 192)}, SHAPE, "D a multiple of 128 up to 8192"),
    ("x", {"shape": (8, 8320)}, SHAPE, "D a multiple of 128 up to 8192"),
    ("x", {"shape": (8, 0)}, SHAPE, "D a multiple of 128"),
    ("x", {"strides": (1, 8)}, LAYOUT, "last dimension contiguous"),
    ("x", {"strides": (D + 2, 1)}, LAYOUT, "at a distance of 1032 bytes; expected multiples of 16"),
    ("x", {"pointer": POINTERS["x"] + 8}, LAYOUT, r"ops\[1\].x starts at"),
    ("norm_1", {"shape": (D + 128,)}, SHAPE, r"ops\[1\].weight has shape"),
    ("norm_1", {"dtype": HALF}, DTYPE, r"ops\[1\].weight has dtype float16"),
    ("norm_1", {"strides": (2,)}, LAYOUT, "expected a contiguous tensor"),
    ("norm_1", {"pointer": POINTERS["norm_1"] + 4}, LAYOUT, r"ops\[1\].weight starts .* of 16"),
    ("hidden", {"dtype": FULL}, DTYPE, r"ops\[1\].out has dtype float32"),
    ("hidden", {"shape": (8, D + 1)}, SHAPE, r"ops\[1\].out has shape"),
    ("hidden", {"strides": (D + 2, 1)}, LAYOUT, r"ops\[1\].out starts .* multiples of 8"),
    ("hidden", {"strides": (0, 1)}, LAYOUT, r"ops\[1\].out has rows .* so they overlap"),
    ("in_proj", {"shape": (100,)}, SHAPE, r"ops\[2\]: weight.data has shape"),
    ("in_proj", {"pointer": POINTERS["in_proj"] + 8}, LAYOUT, r"ops\[2\]: weight.data starts"),
    ("projected", {"dtype": "torch.bfloat16"}, DTYPE, r"ops\[2\].out has dtype bfloat16"),
    ("projected", {"shape": (8, C)}, SHAPE, r"ops\[2\].out has shape \(8, 512\); .*\(8, 768\)"),
    ("projected", {"strides": (C, 1)}, LAYOUT, r"ops\[2\].out has rows .* so they overlap"),
    ("gates_weight", {"dtype": FULL}, DTYPE, r"ops\[3\].weight has dtype float32"),
    ("gates_weight", {"shape": (0, D)}, SHAPE, r"ops\[3\].weight has shape .* N from 1 to 4096"),
    ("gates_weight", {"shape": (4097, D)}, SHAPE, "N from 1 to 4096"),
    ("gates_weight", {"shape": (D,)}, SHAPE, r"ops\[3\].weight has shape"),
    ("gates_weight", {"shape": (4, D + 128)}, SHAPE, r"ops\[3\] multiplies rows of 384 elements"),
    ("gates_weight", {"strides": (D + 8, 1)}, LAYOUT, "expected a contiguous tensor"),
    ("gates_weight", {"pointer": POINTERS["gates_weight"] + 8}, LAYOUT, "of 16 bytes"),
    ("gates", {"dtype": FULL}, DTYPE, r"ops\[3\].out has dtype float32"),
    ("gates", {"shape": (8, 5)}, SHAPE, r"ops\[3\].out has shape"),
    ("qkv", {"dtype": FULL}, DTYPE, r"ops\[0\].delta.rows.qkv has dtype float32"),
    ("qkv", {"shape": (8, C + 128)}, SHAPE, r"rows.qkv has 640 channels; expected \(2 H \+ 2\)"),
    ("qkv", {"shape": (8, VALUES)}, SHAPE, "rows.qkv has 256 channels"),
    ("qkv", {"shape": (8, 10 * 128)}, SHAPE, "H = 4 key heads for HV = 2"),
    ("qkv", {"shape": (3, C)}, SHAPE, "rows.qkv has shape"),
    ("qkv", {"strides": (C + VALUES + 1, 1)}, LAYOUT, "rows.qkv starts .* multiples of 4"),
    ("a", {"shape": (8, HV + 1)}, SHAPE, "rows.a has shape"),
    ("b", {"dtype": "torch.bfloat16"}, DTYPE, "rows.b has dtype bfloat16"),
    ("z", {"shape": (8, 128)}, SHAPE, r"z has shape \(8, 128\); expected \(8, 256\)"),
    ("z", {"pointer": POINTERS["projected"] + 2 * C + 2}, LAYOUT, "z starts at"),
    ("conv", {"shape": (C, 3)}, SHAPE, "weights.conv has shape"),
    ("conv", {"pointer": POINTERS["conv"] + 8}, LAYOUT, "weights.conv starts .* 16 bytes"),
    ("a_log", {"dtype": HALF}, DTYPE, "weights.a_log has dtype float16"),
    ("dt_bias", {"shape": (HV + 1,)}, SHAPE, "weights.dt_bias has shape"),
    ("norm", {"pointer": POINTERS["norm"] + 4}, LAYOUT, "weights.norm starts .* 16 bytes"),
    ("conv_window", {"dtype": FULL}, DTYPE, "state.conv_window has dtype float32"),
    ("conv_window", {"shape": (C, 4)}, SHAPE, "state.conv_window has shape"),
    ("recurrent", {"shape": (HV, 64, 128)}, SHAPE, r"state.recurrent .* \(any, 128, 128\)"),
    ("recurrent", {"shape": (0, 128, 128)}, SHAPE, "HV = 0; expected 1 to"),
    ("recurrent", {"dtype": HALF}, DTYPE, "state.recurrent has dtype float16"),
    ("recurrent", {"pointer": POINTERS["recurrent"] + 4}, LAYOUT, "state.recurrent starts"),
    ("pending_qkv", {"shape": (9, C)}, SHAPE, "pending.qkv has shape .* R from 1 to 8"),
    ("pending_qkv", {"shape": (0, C)}, SHAPE, "pending.qkv has shape .* R from 1 to 8"),
    ("pending_qkv", {"shape": (P, C + 2)}, SHAPE, r"pending.qkv .* expected \(5, 512\)"),
    ("pending_a", {"shape": (P + 1, HV)}, SHAPE, "pending.a has shape"),
    ("num_accepted", {"dtype": "torch.int64"}, DTYPE, "num_accepted has dtype int64"),
    ("num_accepted", {"shape": (2,)}, SHAPE, "num_accepted has shape"),
    ("mixed", {"strides": (VALUES + 1, 1)}, LAYOUT, r"out starts .* multiples of 4"),
    ("mixed", {"strides": (VALUES + 2, 1)}, LAYOUT, r"ops\[5\].x starts .* multiples of 16"),
    ("middle", {"dtype": HALF}, DTYPE, r"ops\[5\].out has dtype float16; expected float32"),
    ("inner", {"shape": (8, F + 8)}, SHAPE, r"ops\[7\].out has shape"),
    # Who may read what another op writes.
    ("projected", {"pointer": POINTERS["in_proj"]}, LAYOUT, "overlaps weight.data"),
    ("gates", {"pointer": POINTERS["projected"]}, LAYOUT, r"ops\[3\].out overlaps ops\[2\].out"),
    ("mixed", {"pointer": POINTERS["conv_window"]}, LAYOUT, "overlaps .*conv_window"),
    ("mixed", {"pointer": POINTERS["recurrent"]}, LAYOUT, "overlaps .*state.recurrent"),
    ("middle", {"pointer": POINTERS["x"]}, LAYOUT, r"ops\[5\].out overlaps ops\[1\].x .* later"),
    ("behind", {"pointer": POINTERS["middle"]}, LAYOUT, r"ops\[8\].out overlaps ops\[5\].out"),
    ("behind", {"pointer": POINTERS["inner"]}, LAYOUT, r"ops\[8\].out overlaps ops\[7\].out"),
    ("hidden", {"pointer": POINTERS["behind"]}, LAYOUT, r"ops\[8\].out overlaps ops\[1\].out"),
    ("z", {"pointer": POINTERS["hidden"]}, LAYOUT, "out of a norm to be read behind the launch"),
    ("recurrent", {"pointer": POINTERS["conv"]}, LAYOUT, "recurrent overlaps .*weights.conv"),
    ("recurrent", {"pointer": POINTERS["x"]}, LAYOUT, r"recurrent overlaps ops\[1\].x"),
]


@pytest.mark.parametrize(("name", "fields", "error", "message"), REFUSED)
def test_refused_on_any_machine(
    fake: Any,
    no_cuda: str,
    name: str,
    fields: dict[str, Any],
    error: type[KernelError],
    message: str,
) -> None:
    with pytest.raises(error, match=f"weight_stream: .*{message}"):
        call(fake, layer(fake, **{name: fields}))


def changed(ops: list[StreamOp], index: int, **fields: Any) -> list[StreamOp]:
    return [*ops[:index], ops[index]._replace(**fields), *ops[index + 1 :]]


@pytest.mark.parametrize("index", [1, 4], ids=["norm", "delta"])
@pytest.mark.parametrize("eps", [-1e-6, float("nan"), "1e-6"])
def test_eps(fake: Any, no_cuda: str, index: int, eps: Any) -> None:
    with pytest.raises(INVALID, match=rf"weight_stream: ops\[{index}\].eps is"):
        call(fake, changed(layer(fake), index, eps=eps))


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), 1e-60, "1"])
def test_scale(fake: Any, no_cuda: str, scale: Any) -> None:
    with pytest.raises(INVALID, match=r"weight_stream: ops\[2\]: scale is"):
        call(fake, changed(layer(fake), 2, scale=scale))


@pytest.mark.parametrize(
    ("index", "fields", "message"),
    [
        (0, {"delta": None}, r"ops\[0\].delta is a NoneType; expected a StreamGatedDelta"),
        (1, {"x": [1.0]}, r"ops\[1\].x is a list"),
        (2, {"weight": [1.0]}, r"ops\[2\].weight is a list; expected a PackedW4"),
        (4, {"rows": ()}, r"ops\[4\].rows is a tuple; expected a GdnRows"),
        (4, {"weights": ()}, r"ops\[4\].weights is a tuple; expected a GdnWeights"),
        (4, {"state": ()}, r"ops\[4\].state is a tuple; expected a GdnState"),
        (4, {"pending": None}, r"ops\[4\].pending is a NoneType; expected a GdnRows"),
    ],
)
def test_what_is_no_tensor_and_no_record_is_refused(
    fake: Any, no_cuda: str, index: int, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(TENSOR, match=f"weight_stream: {message}"):
        call(fake, changed(layer(fake), index, **fields))
    with pytest.raises(TENSOR, match=r"ops\[1\] is a str; expected a StreamNorm, "):
        call(fake, [layer(fake)[1], "norm"])


@pytest.mark.parametrize("rows", [0, 9, -1, 1.0, True])
def test_rows(fake: Any, no_cuda: str, rows: Any) -> None:
    with pytest.raises(INVALID, match="weight_stream: rows is"):
        call(fake, layer(fake), rows=rows)
    with pytest.raises(INVALID, match="weight_stream: rows is"):
        weight_stream_slots(rows, D, asymmetric=False)


def test_the_number_of_ops(fake: Any, no_cuda: str) -> None:
    norm = layer(fake)[1]._replace(out=None)
    for ops in ([], [norm] * (STREAM_MAX_OPS + 1)):
        with pytest.raises(INVALID, match=f"got {len(ops)} ops; expected 1 to {STREAM_MAX_OPS}"):
            call(fake, ops)
    with pytest.raises(CudaUnavailableError):
        call(fake, [norm] * STREAM_MAX_OPS)


def test_the_limit_is_the_kernel_s() -> None:
    native = getattr(_native, "STREAM_MAX_OPS", None)
    if native is None:
        pytest.skip("this build has no weight stream")
    assert native == STREAM_MAX_OPS


def test_symmetric_and_asymmetric_weights_do_not_mix(fake: Any, no_cuda: str) -> None:
    data = fake(
        (w4_packed_bytes(D, F, asymmetric=True),), dtype="torch.uint8", pointer=POINTERS["down"]
    )
    ops = changed(layer(fake), 8, weight=PackedW4(data, D, F, asymmetric=True))
    with pytest.raises(INVALID, match=r"of ops\[8\] is asymmetric and that of ops\[2\] is not"):
        call(fake, ops)


def test_a_residual_with_an_interleaved_weight(fake: Any, no_cuda: str) -> None:
    residual = fake((8, F), dtype=FULL, pointer=1 << 33)
    with pytest.raises(INVALID, match=r"ops\[7\].residual is given with an interleaved weight"):
        call(fake, changed(layer(fake), 7, residual=residual))
    with pytest.raises(DTYPE, match=r"ops\[8\].residual has dtype float16"):
        call(fake, changed(layer(fake), 8, residual=fake((8, D), pointer=1 << 33)))


@pytest.mark.parametrize("index", [2, 3], ids=["product", "gates"])
def test_what_multiplies_normed_rows_needs_a_norm(fake: Any, no_cuda: str, index: int) -> None:
    op = layer(fake)[index]
    with pytest.raises(INVALID, match=r"ops\[0\] multiplies the rows of a norm, and there is none"):
        call(fake, [op])
    wide = StreamNorm(fake((8, 512), dtype=FULL), fake((512,), dtype=FULL, pointer=1 << 33))
    message = r"ops\[1\] multiplies rows of 256 elements; expected 512, the D of ops\[0\].x"
    with pytest.raises(SHAPE, match=message):
        call(fake, [wide, op])


def test_a_residual_of_the_launch_needs_a_norm_that_waits_for_it(fake: Any, no_cuda: str) -> None:
    ops = layer(fake)
    t = tensors_of(fake)
    other = StreamNorm(t["x"], t["norm_2"])
    with pytest.raises(LAYOUT, match=r"ops\[5\].out overlaps ops\[8\].residual .* a StreamNorm of"):
        call(fake, [*ops[:6], other, *ops[7:]])
    with pytest.raises(LAYOUT, match="a residual that is there before the op"):
        call(fake, changed(ops, 5, residual=ops[5].out))


def test_results_are_not_read_before_they_are_written(fake: Any, no_cuda: str) -> None:
    ops = layer(fake)
    with pytest.raises(LAYOUT, match=r"ops\[4\].out overlaps ops\[3\].rows.a .* a later one"):
        call(fake, [*ops[:3], ops[4], ops[3]])


def test_a_replay_comes_once_and_before_its_step(fake: Any, no_cuda: str) -> None:
    ops = layer(fake)
    message = "have the same state; expected one StreamReplay of it, before the step"
    for wrong in (
        [ops[0], *ops],
        [*ops[1:], ops[0]],
        changed(ops, 4, eps=1e-6),
        changed(ops, 4, num_accepted=fake((1,), dtype=INT, pointer=1 << 33)),
    ):
        with pytest.raises(INVALID, match=message):
            call(fake, wrong)
    with pytest.raises(CudaUnavailableError):
        call(fake, ops[1:])  # an earlier launch has replayed
    with pytest.raises(CudaUnavailableError):
        call(fake, ops[:1])


def test_sound_arguments_without_cuda_name_the_reason(fake: Any, no_cuda: str) -> None:
    with pytest.raises(CudaUnavailableError, match=f"weight_stream: .*{no_cuda}"):
        call(fake, layer(fake))
    with pytest.raises(CudaUnavailableError, match=f"weight_stream: .*{no_cuda}"):
        StreamProgram(layer(fake))
    for size in (weight_stream_workspace_bytes, lambda: weight_stream_slots(1, D, asymmetric=True)):
        with pytest.raises(CudaUnavailableError, match=no_cuda):
            size()


@pytest.mark.usefixtures("pretend_cuda")
@pytest.mark.parametrize("name", [*TENSORS, *PARTS])
def test_one_device_for_all(fake: Any, name: str) -> None:
    for device, where in (("cpu", "on the host"), ("cuda:1", "on cuda:1")):
        with pytest.raises(UnsupportedDeviceError, match=where):
            call(fake, layer(fake, **{name: {"device": device}}))


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
        "weight_stream": lambda ops, **keywords: seen.append((ops, keywords)),
        "weight_stream_workspace_bytes": lambda num_sms: WORKSPACE_BYTES,
        "weight_stream_slots": lambda rows, d, asymmetric, device: 8 if rows * d < 8 * 5000 else 0,
    }
    for name, function in replaced.items():
        monkeypatch.setattr(_native, name, function, raising=False)
    return seen


def test_what_the_kernel_gets(fake: Any, launched: Launches) -> None:
    ops = layer(
        fake,
        x={"strides": (D + 4, 1)},
        behind={"strides": (D + 3, 1)},
        pending_qkv={"strides": (C + 2, 1)},
    )
    clock = fake((9, 4, 132), dtype="torch.int64", pointer=1 << 35)
    call(fake, ops, rows=5, clock=clock, stream=7)
    ((native, keywords),) = launched
    assert keywords == {
        "rows": 5,
        "workspace": 1 << 34,
        "clock": 1 << 35,
        "device": 0,
        "stream": 7,
    }
    p = POINTERS
    delta = {
        "current": (p["projected"], p["gates"], p["gates"] + 2 * HV),
        "pending": (p["pending_qkv"], p["pending_a"], p["pending_b"]),
        "z": p["projected"] + 2 * C,
        "out": p["mixed"],
        "num_accepted": p["num_accepted"],
        "conv_weight": p["conv"],
        "a_log": p["a_log"],
        "dt_bias": p["dt_bias"],
        "norm_weight": p["norm"],
        "conv_window": p["conv_window"],
        "state": p["recurrent"],
        "pending_rows": P,
        "row_strides": (C + VALUES, 2 * HV, 2 * HV),
        "pending_row_strides": (C + 2, HV, HV),
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
    program = StreamProgram(iter(ops))
    assert program.ops == tuple(ops) and program.device == 0
    for name in ("stream_norm", "stream_gates", "stream_product", "stream_gated_delta"):
        monkeypatch.setattr(_native, name, None)  # none is asked again
    call(fake, program, rows=1, stream=5)
    program.run(rows=2, workspace=workspace_of(fake), stream=5)
    assert [keywords["rows"] for _, keywords in launched] == [1, 2]
    assert launched[0][0] == launched[1][0] and len(launched[0][0]) == len(ops)
    assert launched[0][1]["clock"] == 0
    with pytest.raises(INVALID, match="rows is 9"):
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
