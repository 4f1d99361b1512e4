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
from bytebound_kernels.prefill import (  # noqa: E402
    attention_prefill,
    attention_prefill_workspace_bytes,
)

T, NH, NKV, DH, S = 5, 4, 2, 256, 16
HALF, FLOAT8 = torch.bfloat16, torch.float8_e4m3fn


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


def test_the_workspace_holds_q_and_marks() -> None:
    assert attention_prefill_workspace_bytes(0, 24) == 0
    assert attention_prefill_workspace_bytes(2048, 24) == 2048 * 24 * (256 * 2 + 1)
