"""What gdn_prefill refuses before any launch, and its reference against the runtime's model."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from bytebound_kernels import (  # noqa: E402
    InvalidArgumentError,
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    UnsupportedTensorError,
)
from bytebound_kernels.prefill import gdn as module  # noqa: E402
from bytebound_kernels.prefill import gdn_prefill, gdn_prefill_workspace_bytes  # noqa: E402
from bytebound_kernels.prefill.reference import gdn_prefill_reference  # noqa: E402

from .on_card import aligned, launched_on, on_card  # noqa: E402

T, H, HV, K = 5, 1, 3, 32
C = 2 * H * K + HV * K


def arguments(**changes):
    half, single = torch.bfloat16, torch.float32
    args = {
        "qkv": torch.zeros(T, C, dtype=half),
        "z": torch.zeros(T, HV * K, dtype=half),
        "a": torch.zeros(T, HV, dtype=half),
        "b": torch.zeros(T, HV, dtype=half),
        "conv_weight": torch.zeros(C, 4, dtype=half),
        "a_log": torch.zeros(HV, dtype=single),
        "dt_bias": torch.zeros(HV, dtype=single),
        "norm_weight": torch.zeros(K, dtype=single),
        "conv_window": torch.zeros(C, 3, dtype=single),
        "state": torch.zeros(HV, K, K, dtype=single),
    }
    return args | changes


REFUSED = {
    "qkv-dtype": ({"qkv": torch.zeros(T, C, dtype=torch.float64)}, UnsupportedDtypeError, "qkv"),
    "qkv-rank": ({"qkv": torch.zeros(T * C)}, UnsupportedShapeError, r"expected \[T, C\]"),
    "qkv-width": (
        {"qkv": torch.zeros(T, C + 8, dtype=torch.bfloat16)},
        UnsupportedShapeError,
        f"C = {C + 8} channels",
    ),
    "qkv-columns": (
        {"qkv": torch.zeros(C, T, dtype=torch.bfloat16).T},
        UnsupportedLayoutError,
        "last dimension contiguous",
    ),
    "z-dtype": ({"z": torch.zeros(T, HV * K)}, UnsupportedDtypeError, "expected bfloat16"),
    "z-rows": (
        {"z": torch.zeros(T + 1, HV * K, dtype=torch.bfloat16)},
        UnsupportedShapeError,
        rf"expected \({T}, {HV * K}\)",
    ),
    "a-dtype": (
        {"a": torch.zeros(T, HV, dtype=torch.float16)},
        UnsupportedDtypeError,
        "expected bfloat16 or float32",
    ),
    "b-shape": (
        {"b": torch.zeros(T, HV + 1, dtype=torch.bfloat16)},
        UnsupportedShapeError,
        "b has shape",
    ),
    "conv-taps": (
        {"conv_weight": torch.zeros(C, 3)},
        UnsupportedShapeError,
        rf"expected \({C}, 4\)",
    ),
    "window-layout": (
        {"conv_window": torch.zeros(3, C).T},
        UnsupportedLayoutError,
        "conv_window",
    ),
    "norm-dtype": (
        {"norm_weight": torch.zeros(K, dtype=torch.int32)},
        UnsupportedDtypeError,
        "norm_weight has dtype int32",
    ),
    "state-dtype": (
        {"state": torch.zeros(HV, K, K, dtype=torch.bfloat16)},
        UnsupportedDtypeError,
        "expected float32",
    ),
    "state-width": (
        {"state": torch.zeros(HV, 48, 48)},
        UnsupportedShapeError,
        "16, 32, 64, 128",
    ),
    "state-layout": (
        {"state": torch.zeros(HV, K, K).transpose(1, 2)},
        UnsupportedLayoutError,
        "state",
    ),
    "out-dtype": ({"out": torch.zeros(T, HV * K)}, UnsupportedDtypeError, "out has dtype"),
    "eps": ({"eps": float("nan")}, InvalidArgumentError, "eps is nan"),
    "workspace-size": (
        {"workspace": torch.zeros(64, dtype=torch.uint8)},
        UnsupportedShapeError,
        "workspace has 64 bytes; expected [0-9]+ or more",
    ),
    "no-tensor-qkv": ({"qkv": None}, UnsupportedTensorError, "qkv is a NoneType"),
    "no-tensor-state": ({"state": [1.0]}, UnsupportedTensorError, "state is a list"),
    "no-tensor-workspace": ({"workspace": 64}, UnsupportedTensorError, "workspace is a int"),
    "host": ({}, UnsupportedDeviceError, "qkv is on cpu"),
    "devices": (
        {"state": torch.zeros(HV, K, K, device="meta")},
        UnsupportedDeviceError,
        "expected one device",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case) -> None:
    changes, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        gdn_prefill(**arguments(**changes))


def within(shared, name):
    """A tensor like the argument of that name at the start of other memory."""
    like = arguments(out=arguments()["z"], workspace=torch.zeros(SIZE, dtype=torch.uint8))[name]
    return shared[: like.nbytes].view(like.dtype).view(like.shape)


SIZE = gdn_prefill_workspace_bytes(T, key_heads=H, value_heads=HV, head_dim=K)
WRITTEN = ("conv_window", "state", "out", "workspace")


@pytest.mark.parametrize(
    ("written", "other"),
    [(one, other) for one in WRITTEN for other in arguments() if other not in WRITTEN]
    + [("state", "conv_window"), ("out", "state"), ("workspace", "conv_window")]
    + [("workspace", "state"), ("workspace", "out")],
)
def test_refuses_results_that_overlap(written, other) -> None:
    shared = torch.zeros(1 << 20, dtype=torch.uint8)
    changes = {written: within(shared, written), other: within(shared, other)}
    if (written, other) == ("out", "z"):
        changes["z"] = within(shared[2:], other)  # at the same place it would be in place
    with pytest.raises(UnsupportedLayoutError, match=f"{written} overlaps {other} in memory"):
        gdn_prefill(**arguments(**changes))


def test_rows_between_rows_do_not_overlap() -> None:
    wide = torch.zeros(T, C + 2 * HV * K + HV, dtype=torch.bfloat16)
    qkv, z, out, a = wide.split([C, HV * K, HV * K, HV], dim=1)
    for result in (out, z):  # beside the rows that are read, and in their place
        with pytest.raises(UnsupportedDeviceError, match="qkv is on cpu"):
            gdn_prefill(**arguments(qkv=qkv, z=z, a=a, out=result))
    gates = torch.zeros(T, 512)
    half, a = gates.view(torch.bfloat16), gates[:, -HV:]
    with pytest.raises(UnsupportedDeviceError, match="qkv is on cpu"):
        gdn_prefill(**arguments(a=a, out=half[:, : HV * K]))
    closer = half.view(2 * T, 512)[:T]  # as many elements from row to row, but not as many bytes
    with pytest.raises(UnsupportedLayoutError, match="out overlaps a in memory"):
        gdn_prefill(**arguments(a=a, out=closer[:, : HV * K]))


@pytest.mark.usefixtures("pretend_cuda")
def test_launches_on_the_device_of_its_tensors(monkeypatch) -> None:
    launches = launched_on(monkeypatch, module)
    args = arguments(out=arguments()["z"], workspace=aligned(SIZE))
    gdn_prefill(**{name: on_card(tensor) for name, tensor in args.items()})
    assert launches == dict.fromkeys(
        ("heads_kernel", "window_kernel", "systems_kernel", "states_kernel", "outputs_kernel"),
        torch.device("cuda", 0),
    )


@pytest.mark.usefixtures("pretend_cuda")
def test_a_workspace_on_a_card_is_aligned() -> None:
    args = {n: on_card(x) for n, x in arguments(workspace=aligned(SIZE + 16)[16:]).items()}
    with pytest.raises(UnsupportedLayoutError, match="begins 16 bytes behind a multiple of 256"):
        gdn_prefill(**args)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"tokens": -1}, InvalidArgumentError, "tokens is -1; expected an integer of 0 or more"),
        ({"tokens": "5"}, InvalidArgumentError, "tokens is '5'"),
        ({"key_heads": 0}, InvalidArgumentError, "key_heads is 0; expected an integer of 1"),
        ({"value_heads": -3}, InvalidArgumentError, "value_heads is -3"),
        ({"key_heads": 2}, UnsupportedShapeError, "3 value heads and 2 key heads"),
        ({"head_dim": 48}, UnsupportedShapeError, "head_dim is 48; expected one of 16, 32"),
        ({"dtype": "float16"}, UnsupportedDtypeError, "dtype is float16; expected"),
        ({"dtype": torch.int32}, UnsupportedDtypeError, "dtype is int32; expected float16"),
    ],
)
def test_the_workspace_is_of_what_there_are_kernels_for(changes, error, message) -> None:
    sizes = {"tokens": T, "key_heads": H, "value_heads": HV, "head_dim": K} | changes
    with pytest.raises(error, match=f"gdn_prefill_workspace_bytes: .*{message}"):
        gdn_prefill_workspace_bytes(**sizes)


def test_the_workspace_grows_with_the_tokens_and_holds_every_part() -> None:
    sizes = [
        gdn_prefill_workspace_bytes(t, key_heads=16, value_heads=48) for t in (0, 1, 64, 65, 2048)
    ]
    assert sizes == sorted(sizes) and sizes[0] == 0
    heads, gates, inverse = 2048 * 10240 * 2, 3 * 2048 * 48 * 4, 32 * 48 * 64 * 64 * 2
    assert sizes[-1] == heads + gates + inverse + 32 * 48 * 128 * 128 * 2


def test_the_reference_is_the_runtime_model() -> None:
    gated_delta = pytest.importorskip("bytebound.reference.gated_delta")
    from bytebound.reference.norm import gated_rms_norm, l2_norm

    generator = torch.Generator().manual_seed(0)
    args = {
        name: torch.randn(value.shape, generator=generator) for name, value in arguments().items()
    }
    out, state, window = gdn_prefill_reference(**args, dtype=torch.float32)

    history = torch.cat((args["conv_window"].T, args["qkv"]))
    taps = torch.nn.functional.conv1d(history.T[None], args["conv_weight"][:, None], groups=C)
    q, k, v = torch.nn.functional.silu(taps[0].T).split([H * K, H * K, HV * K], dim=-1)
    inputs = gated_delta.DeltaInputs(
        (l2_norm(q.reshape(T, H, K)) * K**-0.5).repeat_interleave(HV // H, dim=1),
        l2_norm(k.reshape(T, H, K)).repeat_interleave(HV // H, dim=1),
        v.reshape(T, HV, K),
        -args["a_log"].exp() * torch.nn.functional.softplus(args["a"] + args["dt_bias"]),
        torch.sigmoid(args["b"]),
    )
    o, expected_state = gated_delta.delta_chunks(inputs, args["state"])
    y = gated_rms_norm(o, args["z"].view(T, HV, K), args["norm_weight"], 1e-6)
    torch.testing.assert_close(out, y.reshape(T, -1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, expected_state, rtol=1e-4, atol=1e-5)
    assert torch.equal(window, history[T:].T)


def test_says_what_to_install_where_triton_is_missing() -> None:
    code = """
import sys
sys.modules["triton"] = None
try:
    import bytebound_kernels.prefill
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'bytebound-kernels[prefill]'" in done.stdout
