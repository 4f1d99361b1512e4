"""What weight_stream refuses on any machine: no memory is touched."""

from typing import Any

import pytest
from bytebound_kernels import (
    STREAM_MAX_OPS,
    CudaUnavailableError,
    InvalidArgumentError,
    KernelError,
    PackedW4,
    StreamNorm,
    StreamProgram,
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    UnsupportedTensorError,
    _native,
    w4_packed_bytes,
    weight_stream_slots,
    weight_stream_workspace_bytes,
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
    C,
    D,
    F,
    P,
    W,
    call,
    changed,
    layer,
    tensors_of,
)

DTYPE, SHAPE, LAYOUT = UnsupportedDtypeError, UnsupportedShapeError, UnsupportedLayoutError
INVALID, TENSOR = InvalidArgumentError, UnsupportedTensorError

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
    ("pending_qkv", {"shape": (9, C)}, SHAPE, "pending.qkv has shape .* P from 1 to 8"),
    ("pending_qkv", {"shape": (0, C)}, SHAPE, "pending.qkv has shape .* P from 1 to 8"),
    ("pending_qkv", {"shape": (P, C + 2)}, SHAPE, r"pending.qkv .* expected \(5, 512\)"),
    ("pending_updates", {"shape": (P + 1, W)}, SHAPE, "pending.updates has shape"),
    ("pending_updates", {"pointer": (1 << 30) + 4}, LAYOUT, "pending.updates starts at"),
    ("updates", {"shape": (8, W + 4)}, SHAPE, "updates has shape"),
    ("updates", {"dtype": HALF}, DTYPE, "updates has dtype float16"),
    ("updates", {"strides": (W + 2, 1)}, LAYOUT, "updates starts at .* multiples of 16"),
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
    ("updates", {"pointer": POINTERS["mixed"]}, LAYOUT, r"ops\[4\].out overlaps ops\[4\].updates"),
    ("updates", {"pointer": POINTERS["pending_updates"]}, LAYOUT, "overlaps .*pending.updates"),
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
        (4, {"pending": None}, r"ops\[4\].pending is a NoneType; expected a GdnPending"),
    ],
)
def test_what_is_no_tensor_and_no_record_is_refused(
    fake: Any, no_cuda: str, index: int, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(TENSOR, match=f"weight_stream: {message}"):
        call(fake, changed(layer(fake), index, **fields))
    with pytest.raises(TENSOR, match=r"ops\[1\] is a str; expected a StreamNorm, "):
        call(fake, [layer(fake)[1], "norm"])


@pytest.mark.parametrize("rows", [0, 9, -1, 1.0, True, None])
def test_rows(fake: Any, no_cuda: str, rows: Any) -> None:
    with pytest.raises(INVALID, match="weight_stream: rows is"):
        call(fake, layer(fake), rows=rows)
    with pytest.raises(INVALID, match="weight_stream: rows is"):
        weight_stream_slots(rows, D, asymmetric=False)


@pytest.mark.parametrize("ops", [None, 3])
def test_what_is_no_sequence_of_ops(fake: Any, no_cuda: str, ops: Any) -> None:
    kind = type(ops).__name__
    with pytest.raises(TENSOR, match=f"weight_stream: ops is a {kind}; expected a sequence"):
        call(fake, ops)


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
