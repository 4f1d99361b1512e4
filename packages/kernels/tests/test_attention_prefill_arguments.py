"""What attention_prefill refuses before any launch."""

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
from bytebound_kernels.prefill import attention as module  # noqa: E402
from bytebound_kernels.prefill import (  # noqa: E402
    attention_prefill,
    attention_prefill_workspace_bytes,
)

from .on_card import aligned, launched_on, on_card  # noqa: E402

T, NH, NKV, DH, S = 5, 4, 2, 256, 16
HALF, FLOAT8 = torch.bfloat16, torch.float8_e4m3fn
SIZE = attention_prefill_workspace_bytes(T, NH)


def arguments(**changes):
    args = {
        "q_gate": torch.zeros(T, NH * 2 * DH, dtype=HALF),
        "k": torch.zeros(T, NKV * DH, dtype=HALF),
        "v": torch.zeros(T, NKV * DH, dtype=HALF),
        "q_norm": torch.zeros(DH, dtype=HALF),
        "k_norm": torch.zeros(DH),
        "inv_freq": torch.zeros(32),
        "position": 0,
        "k_cache": torch.zeros(NKV, S, DH, dtype=HALF),
        "v_cache": torch.zeros(NKV, S, DH, dtype=HALF),
    }
    return args | changes


def float8_arguments(**changes):
    caches = {name: torch.zeros(NKV, S, DH).to(FLOAT8) for name in ("k_cache", "v_cache")}
    scales = {name: torch.zeros(NKV, S) for name in ("k_scale", "v_scale")}
    return arguments(**(caches | scales | changes))


REFUSED = {
    "q-dtype": ({"q_gate": torch.zeros(T, NH * 512)}, UnsupportedDtypeError, "q_gate has dtype"),
    "q-width": (
        {"q_gate": torch.zeros(T, NH * 512 + 256, dtype=HALF)},
        UnsupportedShapeError,
        r"expected \[T, NH \* 2 \* 256\]",
    ),
    "heads": (
        {"q_gate": torch.zeros(T, 3 * 512, dtype=HALF)},
        UnsupportedShapeError,
        "3 heads and k_cache 2",
    ),
    "k-dtype": (
        {"k": torch.zeros(T, NKV * DH, dtype=torch.float16)},
        UnsupportedDtypeError,
        "expected bfloat16",
    ),
    "v-rows": (
        {"v": torch.zeros(T + 1, NKV * DH, dtype=HALF)},
        UnsupportedShapeError,
        "v has shape",
    ),
    "k-columns": (
        {"k": torch.zeros(NKV * DH, T, dtype=HALF).T},
        UnsupportedLayoutError,
        "last dimension contiguous",
    ),
    "norm-shape": ({"q_norm": torch.zeros(128)}, UnsupportedShapeError, "q_norm has shape"),
    "freq-count": ({"inv_freq": torch.zeros(33)}, UnsupportedShapeError, "a multiple of 8"),
    "freq-dtype": ({"inv_freq": torch.zeros(32, dtype=HALF)}, UnsupportedDtypeError, "inv_freq"),
    "position": ({"position": S - T + 1}, InvalidArgumentError, f"expected 0 to {S - T}"),
    "no-position": ({"position": "1"}, InvalidArgumentError, "position is '1'; expected an int"),
    "half-position": ({"position": 1.5}, InvalidArgumentError, "position is 1.5; expected an int"),
    "no-tensor": ({"k": [1.0]}, UnsupportedTensorError, "k is a list; expected a torch.Tensor"),
    "no-query": ({"q_gate": None}, UnsupportedTensorError, "q_gate is a NoneType"),
    "no-cache": ({"k_cache": None}, UnsupportedTensorError, "k_cache is a NoneType"),
    "workspace-kind": ({"workspace": SIZE}, UnsupportedTensorError, "workspace is a int"),
    "workspace-dtype": (
        {"workspace": torch.zeros(SIZE)},
        UnsupportedDtypeError,
        "workspace has dtype float32; expected uint8",
    ),
    "workspace-size": (
        {"workspace": torch.zeros(T * NH * DH * 2, dtype=torch.uint8)},
        UnsupportedShapeError,
        f"workspace has {T * NH * DH * 2} bytes; expected {T * NH * DH * 2 + 256} or more",
    ),
    "workspace-layout": (
        {"workspace": torch.zeros(2 * SIZE, dtype=torch.uint8)[::2]},
        UnsupportedLayoutError,
        "workspace of shape .* contiguous",
    ),
    "workspace-device": (
        {"workspace": torch.zeros(SIZE, dtype=torch.uint8, device="meta")},
        UnsupportedDeviceError,
        "q_gate is on cpu and workspace on meta; expected one device",
    ),
    "negative-position": ({"position": -1}, InvalidArgumentError, "position is -1"),
    "cache-width": (
        {"k_cache": torch.zeros(NKV, S, 128, dtype=HALF)},
        UnsupportedShapeError,
        r"expected \[NKV, S, 256\]",
    ),
    "cache-dtypes": (
        {"v_cache": torch.zeros(NKV, S, DH, dtype=torch.float16)},
        UnsupportedDtypeError,
        "v_cache has dtype float16; expected bfloat16",
    ),
    "cache-layout": (
        {"k_cache": torch.zeros(S, NKV, DH, dtype=HALF).transpose(0, 1)},
        UnsupportedLayoutError,
        "positions of a head contiguous",
    ),
    "scales-without-float8": ({"k_scale": torch.zeros(NKV, S)}, InvalidArgumentError, "k_scale"),
    "eps": ({"eps": -1.0}, InvalidArgumentError, "eps is -1"),
    "scale": ({"scale": float("inf")}, InvalidArgumentError, "scale is inf"),
    "backend": ({"backend": "flash"}, InvalidArgumentError, "backend is 'flash'"),
    "sdpa-position": ({"backend": "sdpa", "position": 3}, InvalidArgumentError, "position 3"),
    "out": ({"out": torch.zeros(T, NH * DH)}, UnsupportedDtypeError, "out has dtype float32"),
    "host": ({}, UnsupportedDeviceError, "q_gate is on cpu"),
}
REFUSED_FLOAT8 = {
    "missing": ({"v_scale": None}, InvalidArgumentError, "v_scale is missing"),
    "dtype": ({"k_scale": torch.zeros(NKV, S, dtype=HALF)}, UnsupportedDtypeError, "k_scale"),
    "shape": ({"k_scale": torch.zeros(NKV, S + 1)}, UnsupportedShapeError, "k_scale has shape"),
    "sdpa": ({"backend": "sdpa"}, InvalidArgumentError, "float8 cache"),
    "host": ({}, UnsupportedDeviceError, "q_gate is on cpu"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case) -> None:
    changes, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        attention_prefill(**arguments(**changes))


@pytest.mark.parametrize("case", REFUSED_FLOAT8)
def test_refuses_with_a_float8_cache(case) -> None:
    changes, error, message = REFUSED_FLOAT8[case]
    with pytest.raises(error, match=message):
        attention_prefill(**float8_arguments(**changes))


@pytest.mark.parametrize("arguments", [(-1, 4), (1.5, 4), (1, 0), ("1", 4), (1, None)])
def test_the_workspace_is_of_counts(arguments) -> None:
    with pytest.raises(InvalidArgumentError, match=r"attention_prefill_workspace_bytes: .* is"):
        attention_prefill_workspace_bytes(*arguments)


def test_the_workspace_holds_q_and_marks() -> None:
    assert attention_prefill_workspace_bytes(0, 24) == 0
    assert attention_prefill_workspace_bytes(2048, 24) == 2048 * 24 * (256 * 2 + 1)


def within(shared, name):
    """A tensor like the argument of that name at the start of other memory."""
    workspace = torch.zeros(SIZE, dtype=torch.uint8)
    out = torch.zeros(T, NH * DH, dtype=HALF)
    like = float8_arguments(out=out, workspace=workspace)[name]
    return shared[: like.nbytes].view(like.dtype).view(like.shape)


READ = ("q_gate", "k", "v", "q_norm", "k_norm", "inv_freq")
WRITTEN = ("k_cache", "v_cache", "k_scale", "v_scale", "out", "workspace")


@pytest.mark.parametrize(
    ("written", "other"),
    [(one, other) for i, one in enumerate(WRITTEN) for other in (*READ, *WRITTEN[:i])],
)
def test_refuses_results_that_overlap(written, other) -> None:
    shared = torch.zeros(1 << 20, dtype=torch.uint8)
    changes = {name: within(shared, name) for name in (written, other)}
    with pytest.raises(UnsupportedLayoutError, match=f"{written} overlaps {other} in memory"):
        attention_prefill(**float8_arguments(**changes))


def test_rows_between_rows_do_not_overlap() -> None:
    wide = torch.zeros(T, NH * 2 * DH + NH * DH, dtype=HALF)
    q_gate, out = wide.split([NH * 2 * DH, NH * DH], dim=1)
    with pytest.raises(UnsupportedDeviceError, match="q_gate is on cpu"):
        attention_prefill(**arguments(q_gate=q_gate, out=out))


@pytest.mark.usefixtures("pretend_cuda")
@pytest.mark.parametrize("backend", ["triton", "sdpa"])
def test_launches_on_the_device_of_its_tensors(monkeypatch, backend) -> None:
    launches = launched_on(monkeypatch, module)
    monkeypatch.setattr(module, "_tiles", lambda device, float8: (64, 64, 8, 2))
    args = arguments(out=torch.zeros(T, NH * DH, dtype=HALF), workspace=aligned(SIZE))
    args = {name: on_card(x) if torch.is_tensor(x) else x for name, x in args.items()}
    attention_prefill(**args, backend=backend)
    second = "attend_kernel" if backend == "triton" else "gate_kernel"
    assert launches == dict.fromkeys(("append_kernel", second), torch.device("cuda", 0))


@pytest.mark.usefixtures("pretend_cuda")
def test_a_workspace_on_a_card_is_aligned() -> None:
    args = arguments(workspace=aligned(SIZE + 16)[16:])
    args = {name: on_card(x) if torch.is_tensor(x) else x for name, x in args.items()}
    with pytest.raises(UnsupportedLayoutError, match="begins 16 bytes behind a multiple of 256"):
        attention_prefill(**args)
