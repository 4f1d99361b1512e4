"""What attention_decode refuses, and what it hands to the kernels: no memory is touched."""

from typing import Any

import pytest
from bytebound_kernels import (
    CudaUnavailableError,
    InvalidArgumentError,
    KernelError,
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    UnsupportedTensorError,
    _native,
    attention_decode,
    attention_decode_workspace_bytes,
)

R, NH, NKV, S, DH = 3, 4, 2, 100, 256
NAMES = (
    *("q_gate", "k", "v", "q_norm", "k_norm", "inv_freq", "position", "k_cache", "v_cache"),
    *("k_scale", "v_scale", "out", "workspace"),
)
# Addresses that no other argument reaches.
AT = {name: (i + 1) << 28 for i, name in enumerate(NAMES)}
WORKSPACE = attention_decode_workspace_bytes(R, NH, S)
FLOAT8 = "torch.float8_e4m3fn"
SCALE = {"shape": (NKV, S), "dtype": "torch.float32"}


def arguments(fake: Any, **changes: dict[str, Any] | None) -> dict[str, Any]:
    """Return good arguments, with changes; a change of None leaves the argument out."""
    tensors: dict[str, dict[str, Any]] = {
        "q_gate": {"shape": (R, NH * 2 * DH)},
        "k": {"shape": (R, NKV * DH)},
        "v": {"shape": (R, NKV * DH)},
        "q_norm": {"shape": (DH,)},
        "k_norm": {"shape": (DH,)},
        "inv_freq": {"shape": (32,), "dtype": "torch.float32"},
        "position": {"shape": (1,), "dtype": "torch.int32"},
        "k_cache": {"shape": (NKV, S, DH)},
        "v_cache": {"shape": (NKV, S, DH)},
        "out": {"shape": (R, NH * DH)},
        "workspace": {"shape": (WORKSPACE,), "dtype": "torch.uint8"},
    }
    for name, change in changes.items():
        tensors[name] = tensors.get(name, {}) | (change or {})
    return {name: fake(**({"pointer": AT[name]} | t)) for name, t in tensors.items()}


def call(arguments: dict[str, Any], **keywords: Any) -> Any:
    names = NAMES[:9]
    rest = {name: tensor for name, tensor in arguments.items() if name not in names}
    return attention_decode(*(arguments[name] for name in names), **rest, **keywords)


@pytest.mark.parametrize(
    ("changes", "keywords", "error", "message"),
    [
        pytest.param(
            {"q_gate": {"dtype": "torch.float32"}},
            {},
            UnsupportedDtypeError,
            "q_gate has dtype float32; expected float16, bfloat16",
            id="dtype",
        ),
        pytest.param(
            {"k": {"dtype": "torch.bfloat16"}},
            {},
            UnsupportedDtypeError,
            "k has dtype bfloat16; expected float16",
            id="k-dtype",
        ),
        pytest.param(
            {"q_norm": {"dtype": "torch.bfloat16"}},
            {},
            UnsupportedDtypeError,
            "q_norm has dtype bfloat16; expected float16, float32",
            id="norm-dtype",
        ),
        pytest.param(
            {"q_norm": {"dtype": "torch.float32"}},
            {},
            UnsupportedDtypeError,
            "k_norm has dtype float16; expected float32",
            id="norms-differ",
        ),
        pytest.param(
            {"position": {"dtype": "torch.int64"}},
            {},
            UnsupportedDtypeError,
            "position has dtype int64; expected int32",
            id="position-dtype",
        ),
        pytest.param(
            {"k_cache": {"dtype": "torch.float32"}},
            {},
            UnsupportedDtypeError,
            "k_cache has dtype float32; expected float16, bfloat16, float8_e4m3fn",
            id="cache-dtype",
        ),
        pytest.param(
            {"v_cache": {"dtype": "torch.bfloat16"}},
            {},
            UnsupportedDtypeError,
            "v_cache has dtype bfloat16; expected float16, as k_cache",
            id="caches-differ",
        ),
        pytest.param(
            {"q_gate": {"shape": (9, NH * 2 * DH)}},
            {},
            UnsupportedShapeError,
            "q_gate has shape .*R from 1 to 8",
            id="rows",
        ),
        pytest.param(
            {"q_gate": {"shape": (R, NH * 2 * 128 + 256)}},
            {},
            UnsupportedShapeError,
            "rows of 1280; expected NH . 2 . 256",
            id="query-width",
        ),
        pytest.param(
            {"k_cache": {"shape": (NKV, S, 128)}},
            {},
            UnsupportedShapeError,
            r"k_cache has shape \(2, 100, 128\); expected \[NKV, S, 256\]",
            id="head-dim",
        ),
        pytest.param(
            {"k_cache": {"shape": (3, S, DH)}, "v_cache": {"shape": (3, S, DH)}},
            {},
            UnsupportedShapeError,
            "q_gate has 4 heads and k_cache 3; expected a multiple",
            id="heads",
        ),
        pytest.param(
            {"k_cache": {"shape": (NKV, 2, DH)}, "v_cache": {"shape": (NKV, 2, DH)}},
            {},
            UnsupportedShapeError,
            "k_cache has 2 positions; expected at least the 3 rows",
            id="short-cache",
        ),
        pytest.param(
            {"v_cache": {"shape": (NKV, S + 1, DH)}},
            {},
            UnsupportedShapeError,
            "v_cache has shape .* as k_cache",
            id="caches-shape",
        ),
        pytest.param(
            {"v": {"shape": (R, NH * DH)}},
            {},
            UnsupportedShapeError,
            r"v has shape \(3, 1024\); expected \(3, 512\)",
            id="v-shape",
        ),
        pytest.param(
            {"k_norm": {"shape": (128,)}},
            {},
            UnsupportedShapeError,
            r"k_norm has shape \(128,\); expected \(256\)",
            id="norm-shape",
        ),
        pytest.param(
            {"inv_freq": {"shape": (20,)}},
            {},
            UnsupportedShapeError,
            "inv_freq has shape .* a multiple of 8 up to 128",
            id="rotary",
        ),
        pytest.param(
            {"position": {"shape": (2,)}},
            {},
            UnsupportedShapeError,
            "position has shape",
            id="position-shape",
        ),
        pytest.param(
            {"out": {"shape": (R, NH * 2 * DH)}},
            {},
            UnsupportedShapeError,
            r"out has shape \(3, 2048\); expected \(3, 1024\)",
            id="out-shape",
        ),
        pytest.param(
            {"workspace": {"shape": (WORKSPACE - 1,)}},
            {},
            UnsupportedShapeError,
            f"workspace has {WORKSPACE - 1} bytes; expected {WORKSPACE}",
            id="workspace",
        ),
        pytest.param(
            {"workspace": {"pointer": AT["workspace"] + 8}},
            {},
            UnsupportedLayoutError,
            "workspace starts at",
            id="workspace-alignment",
        ),
        pytest.param(
            {"q_gate": {"strides": (1, R)}},
            {},
            UnsupportedLayoutError,
            "q_gate .* expected the last dimension contiguous",
            id="query-transposed",
        ),
        pytest.param(
            {"out": {"strides": (NH * DH - 8, 1)}},
            {},
            UnsupportedLayoutError,
            "out has rows at a distance of 1016, so they overlap",
            id="out-rows-overlap",
        ),
        pytest.param(
            {"k_cache": {"strides": (DH, NKV * DH, 1)}},
            {},
            UnsupportedLayoutError,
            "k_cache .* expected the positions of a head contiguous",
            id="cache-transposed",
        ),
        pytest.param(
            {"v_cache": {"strides": (2 * S * DH, DH, 1)}},
            {},
            UnsupportedLayoutError,
            "v_cache has strides .* as k_cache",
            id="caches-strides",
        ),
        pytest.param(
            {"k_cache": {"pointer": AT["k_cache"] + 8}},
            {},
            UnsupportedLayoutError,
            "k_cache starts at .* bytes; expected a multiple of 16",
            id="cache-alignment",
        ),
        pytest.param(
            {"k_cache": {"strides": (S * DH + 4, DH, 1)}},
            {},
            UnsupportedLayoutError,
            "k_cache has heads at a distance of 51208 bytes; expected a multiple of 16",
            id="head-alignment",
        ),
        pytest.param(
            {"out": {"pointer": AT["q_gate"] + 64}},
            {},
            UnsupportedLayoutError,
            "out overlaps q_gate",
            id="out-on-query",
        ),
        pytest.param(
            {"v_cache": {"pointer": AT["k_cache"] + 1024}},
            {},
            UnsupportedLayoutError,
            "v_cache overlaps k_cache",
            id="cache-on-cache",
        ),
        pytest.param(
            {"workspace": {"pointer": AT["v"] - 16}},
            {},
            UnsupportedLayoutError,
            "workspace overlaps v ",
            id="workspace-on-v",
        ),
        pytest.param(
            {"k_scale": SCALE, "v_scale": SCALE},
            {},
            InvalidArgumentError,
            "k_scale is given with a cache of float16",
            id="scales-without-float8",
        ),
        pytest.param(
            {"k_cache": {"dtype": FLOAT8}, "v_cache": {"dtype": FLOAT8}, "k_scale": SCALE},
            {},
            InvalidArgumentError,
            "v_scale is missing with a cache of float8_e4m3fn",
            id="float8-without-scales",
        ),
        pytest.param(
            {
                "k_cache": {"dtype": FLOAT8},
                "v_cache": {"dtype": FLOAT8},
                "k_scale": SCALE | {"dtype": "torch.float16"},
                "v_scale": SCALE,
            },
            {},
            UnsupportedDtypeError,
            "k_scale has dtype float16; expected float32",
            id="scale-dtype",
        ),
        pytest.param(
            {
                "k_cache": {"dtype": FLOAT8},
                "v_cache": {"dtype": FLOAT8},
                "k_scale": SCALE,
                "v_scale": SCALE | {"shape": (NKV, S - 1)},
            },
            {},
            UnsupportedShapeError,
            r"v_scale has shape \(2, 99\); expected \(2, 100\)",
            id="scale-shape",
        ),
        pytest.param(
            {
                "k_cache": {"dtype": FLOAT8},
                "v_cache": {"dtype": FLOAT8},
                "k_scale": SCALE,
                "v_scale": SCALE | {"strides": (S + 1, 1)},
            },
            {},
            UnsupportedLayoutError,
            "v_scale has heads at a distance of 404 bytes; expected a multiple of 16",
            id="scale-alignment",
        ),
        pytest.param({}, {"eps": -1.0}, InvalidArgumentError, "eps is -1.0", id="eps"),
        pytest.param({}, {"scale": float("inf")}, InvalidArgumentError, "scale is inf", id="scale"),
    ],
)
def test_refused_on_any_machine(
    fake: Any,
    no_cuda: str,
    changes: dict[str, Any],
    keywords: dict[str, Any],
    error: type[KernelError],
    message: str,
) -> None:
    with pytest.raises(error, match=f"attention_decode: .*{message}"):
        call(arguments(fake, **changes), **keywords)


def test_what_is_no_tensor_is_refused(fake: Any) -> None:
    with pytest.raises(UnsupportedTensorError, match="position is a int; expected a tensor"):
        call(arguments(fake) | {"position": 7})


def test_without_cuda_good_arguments_get_the_reason(fake: Any, no_cuda: str) -> None:
    with pytest.raises(CudaUnavailableError, match="attention_decode: CUDA is not usable"):
        call(arguments(fake))


@pytest.mark.usefixtures("pretend_cuda")
def test_devices_must_agree(fake: Any) -> None:
    with pytest.raises(UnsupportedDeviceError, match="position on the host"):
        call(arguments(fake, position={"device": "cpu"}))
    with pytest.raises(UnsupportedDeviceError, match="v_cache on cuda:1"):
        call(arguments(fake, v_cache={"device": "cuda:1"}))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, pretend_cuda: None) -> list[dict[str, Any]]:
    """Record what would reach the kernels."""
    seen: list[dict[str, Any]] = []

    def record(*pointers: int, **sizes: Any) -> None:
        seen.append({"pointers": pointers, **sizes})

    monkeypatch.setattr(_native, "attention_decode", record, raising=False)
    return seen


def test_slices_of_a_fused_projection(fake: Any, launches: list[dict[str, Any]]) -> None:
    widths = (NH * 2 * DH, NKV * DH, NKV * DH)
    strides = (sum(widths), 1)
    start = AT["q_gate"]
    given = arguments(
        fake,
        q_gate={"strides": strides, "dtype": "torch.bfloat16"},
        k={"strides": strides, "dtype": "torch.bfloat16", "pointer": start + 2 * widths[0]},
        v={
            "strides": strides,
            "dtype": "torch.bfloat16",
            "pointer": start + 2 * (widths[0] + widths[1]),
        },
        q_norm={"dtype": "torch.float32"},
        k_norm={"dtype": "torch.float32"},
        k_cache={"dtype": FLOAT8, "strides": (2 * S * DH, DH, 1)},
        v_cache={"dtype": FLOAT8, "strides": (2 * S * DH, DH, 1)},
        k_scale=SCALE | {"strides": (2 * S, 1)},
        v_scale=SCALE | {"strides": (2 * S, 1)},
        out={"dtype": "torch.bfloat16", "strides": (2 * NH * DH, 1)},
    )
    assert call(given, eps=1e-5, scale=0.5, stream=5) is given["out"]
    order = (*NAMES[:11], "workspace", "out")
    assert launches == [
        {
            "pointers": tuple(given[name].pointer for name in order),
            "rows": R,
            "num_heads": NH,
            "num_kv_heads": NKV,
            "max_positions": S,
            "rotary_dim": 64,
            "q_gate_row_stride": sum(widths),
            "k_row_stride": sum(widths),
            "v_row_stride": sum(widths),
            "out_row_stride": 2 * NH * DH,
            "cache_head_stride": 2 * S * DH,
            "scale_head_stride": 2 * S,
            "x_dtype": 1,
            "norm_dtype": 2,
            "cache_dtype": 6,
            "eps": 1e-5,
            "scale": 0.5,
            "device": 0,
            "stream": 5,
        }
    ]


def test_one_row_without_scales(fake: Any, launches: list[dict[str, Any]]) -> None:
    one = {"q_gate": {"shape": (1, 512)}, "k": {"shape": (1, DH)}, "v": {"shape": (1, DH)}}
    cache = {"shape": (1, 1, DH), "strides": (7, 7, 1)}
    given = arguments(fake, **one, k_cache=cache, v_cache=cache, out={"shape": (1, DH)})
    call(given)
    launch = launches[0]
    assert launch["pointers"][9:11] == (0, 0)
    assert (launch["cache_head_stride"], launch["scale_head_stride"]) == (DH, 0)
    assert launch["scale"] == 1 / 16
