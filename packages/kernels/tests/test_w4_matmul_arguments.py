"""What w4_matmul and w4_unpack refuse, before any launch, and what they hand over; no GPU."""

import re
from typing import Any

import pytest
from bytebound_kernels import (
    CudaUnavailableError,
    InvalidArgumentError,
    PackedW4,
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    _native,
    w4_matmul,
    w4_matmul_workspace_bytes,
    w4_packed_bytes,
    w4_unpack,
)

N, K, M = 96, 256, 70
SCRATCH = 132 * (65536 + 16)
SCALE = float.fromhex("0x1.99999ap-4")  # 0.1 as float32


def weight_of(fake, **fields: Any) -> PackedW4:
    flags = {name: fields.get(name, False) for name in ("asymmetric", "interleaved")}
    data = fields.pop("data", None) or fake(
        (w4_packed_bytes(N, K, **flags),), "torch.uint8", pointer=2 << 30
    )
    return PackedW4(data, N, K, **fields)


def call(fake, *, packed: dict[str, Any] | None = None, **changes: Any) -> Any:
    """Call with good arguments far apart in memory, some of them changed."""
    arguments = {
        "x": fake((M, K), pointer=3 << 30),
        "out": fake((M, N), pointer=4 << 30),
        "workspace": fake((SCRATCH,), "torch.uint8", pointer=5 << 30),
        **changes,
    }
    return w4_matmul(arguments.pop("x"), weight_of(fake, **(packed or {})), **arguments)


BAD = [
    ("x", {"shape": (M, K - 1)}, UnsupportedShapeError, r"expected \[M, 256\]"),
    ("x", {"shape": (K,)}, UnsupportedShapeError, r"x has shape \(256,\)"),
    ("x", {"shape": (2**30 + 1, K)}, UnsupportedShapeError, "M up to 1073741824"),
    ("x", {"shape": (M, K), "dtype": "torch.float32"}, UnsupportedDtypeError, "x has dtype"),
    ("x", {"shape": (M, K), "pointer": (3 << 30) + 8}, UnsupportedLayoutError, "multiples of 16"),
    ("x", {"shape": (M, K), "strides": (K + 4, 1)}, UnsupportedLayoutError, "multiples of 16"),
    ("x", {"shape": (M, K), "strides": (K, 2)}, UnsupportedLayoutError, "stride 1"),
    ("x", {"shape": (M, K), "device": "cpu"}, UnsupportedDeviceError, "x on the host"),
    ("out", {"shape": (M, N + 1)}, UnsupportedShapeError, "out has shape"),
    ("out", {"shape": (M, N), "dtype": "torch.bfloat16"}, UnsupportedDtypeError, "out has dtype"),
    ("out", {"shape": (M, N), "strides": (N - 1, 1)}, UnsupportedLayoutError, "overlap"),
    ("out", {"shape": (M, N), "pointer": 3 << 30}, UnsupportedLayoutError, "out overlaps x"),
    ("out", {"shape": (M, N), "pointer": 2 << 30}, UnsupportedLayoutError, "out overlaps"),
    ("residual", {"shape": (M, N - 1)}, UnsupportedShapeError, "residual has shape"),
    (
        "residual",
        {"shape": (M, N), "dtype": "torch.float32"},
        UnsupportedDtypeError,
        "residual has dtype float32; expected float16",
    ),
    (
        "residual",
        {"shape": (M, N), "pointer": (4 << 30) + 16},
        UnsupportedLayoutError,
        "out overlaps residual",
    ),
    (
        "workspace",
        {"shape": (SCRATCH - 1,), "dtype": "torch.uint8"},
        UnsupportedShapeError,
        "bytes",
    ),
    (
        "workspace",
        {"shape": (SCRATCH,), "dtype": "torch.uint8", "pointer": (5 << 30) + 8},
        UnsupportedLayoutError,
        "multiple of 16",
    ),
    (
        "workspace",
        {"shape": (SCRATCH,), "dtype": "torch.uint8", "pointer": 3 << 30},
        UnsupportedLayoutError,
        "workspace overlaps x",
    ),
    (
        "workspace",
        {"shape": (SCRATCH,), "dtype": "torch.uint8", "device": "cuda:1"},
        UnsupportedDeviceError,
        "workspace on cuda:1",
    ),
]


@pytest.fixture
def pretend_h200(pretend_cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices appear; nothing may be launched on them."""

    def launched(*_args: Any, **_fields: Any) -> None:
        pytest.fail("launched")

    for name in ("w4_matmul", "w4_unpack"):
        monkeypatch.setattr(_native, name, launched, raising=False)


@pytest.fixture
def seen(pretend_cuda, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a launcher was called with."""
    arguments: dict[str, Any] = {}

    def launcher(*pointers: int, **fields: Any) -> None:
        arguments.update(fields, pointers=pointers)

    for name in ("w4_matmul", "w4_unpack"):
        monkeypatch.setattr(_native, name, launcher, raising=False)
    return arguments


@pytest.mark.parametrize(("name", "tensor", "error", "message"), BAD)
@pytest.mark.usefixtures("pretend_h200")
def test_refuses(fake, name, tensor, error, message) -> None:
    base = {"x": 3, "out": 4, "workspace": 5, "residual": 6}[name] << 30
    with pytest.raises(error, match=message):
        call(fake, **{name: fake(**{"pointer": base, **tensor})})


@pytest.mark.usefixtures("pretend_h200")
def test_refuses_weights_of_another_size(fake) -> None:
    data = fake((100,), "torch.uint8", pointer=2 << 30)
    with pytest.raises(UnsupportedShapeError, match=r"w4_matmul: weight\.data has shape"):
        call(fake, packed={"data": data})


@pytest.mark.usefixtures("pretend_h200")
def test_refuses_a_residual_with_an_interleaved_weight(fake) -> None:
    with pytest.raises(InvalidArgumentError, match="interleaved"):
        call(fake, packed={"interleaved": True}, residual=fake((M, N), pointer=6 << 30))


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf"), 1e-60, 1e60, True, "2"])
@pytest.mark.usefixtures("pretend_h200")
def test_refuses_a_scale_that_float32_does_not_hold_above_0(fake, scale) -> None:
    with pytest.raises(
        InvalidArgumentError, match=re.escape(f"w4_matmul: scale is {scale!r}; expected a ")
    ):
        call(fake, scale=scale)


def test_without_cuda_the_reason_is_told(fake, no_cuda) -> None:
    with pytest.raises(CudaUnavailableError, match=no_cuda):
        call(fake)
    with pytest.raises(CudaUnavailableError, match=no_cuda):
        w4_unpack(weight_of(fake), out=fake((N, K), pointer=4 << 30))


def test_launches_with_what_was_given(fake, seen) -> None:
    out = fake((M, N), "torch.float32", strides=(128, 1), pointer=4 << 30)
    x = fake((M, K), "torch.bfloat16", strides=(512, 1), pointer=3 << 30)
    packed = {"asymmetric": True, "scale_dtype": "bfloat16"}
    assert call(fake, packed=packed, x=x, out=out, residual=out, scale=0.1, stream=11) is out
    assert seen == {
        "pointers": (2 << 30, 3 << 30, 4 << 30, 4 << 30, 5 << 30),
        "x_row_stride": 512,
        "out_row_stride": 128,
        "residual_row_stride": 128,
        "rows": M,
        "n": N,
        "k": K,
        "num_sms": 132,
        "x_dtype": 1,
        "scale_dtype": 1,
        "asymmetric": True,
        "float_out": True,
        "epilogue": 1,
        "scale": SCALE,
        "device": 0,
        "stream": 11,
    }
    call(fake, packed={"interleaved": True})
    assert (seen["epilogue"], seen["scale"]) == (2, 1.0)


@pytest.mark.usefixtures("pretend_cuda")
def test_the_workspace_is_as_large_as_the_native_side_says() -> None:
    assert w4_matmul_workspace_bytes(0) == SCRATCH
    if hasattr(_native, "w4_matmul_workspace_bytes"):
        assert _native.w4_matmul_workspace_bytes(132) == SCRATCH


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        ({"shape": (N, K + 128)}, UnsupportedShapeError, r"out has shape \(96, 384\)"),
        ({"shape": (2 * N, K)}, UnsupportedShapeError, r"expected \(96, 256\)"),
        ({"shape": (N, K), "dtype": "torch.float32"}, UnsupportedDtypeError, "out has dtype"),
        ({"shape": (N, K), "strides": (K - 8, 1)}, UnsupportedLayoutError, "overlap"),
        ({"shape": (N, K), "strides": (K + 4, 1)}, UnsupportedLayoutError, "multiples of 16"),
        ({"shape": (N, K), "strides": (1, N)}, UnsupportedLayoutError, "stride 1"),
        ({"shape": (N, K), "pointer": (4 << 30) + 2}, UnsupportedLayoutError, "multiples of 16"),
        ({"shape": (N, K), "pointer": 2 << 30}, UnsupportedLayoutError, "out overlaps"),
        ({"shape": (N, K), "device": "cpu"}, UnsupportedDeviceError, "out on the host"),
    ],
)
@pytest.mark.usefixtures("pretend_h200")
def test_unpacking_refuses(fake, tensor, error, message) -> None:
    with pytest.raises(error, match=f"w4_unpack: .*{message}"):
        w4_unpack(weight_of(fake), out=fake(**{"pointer": 4 << 30, **tensor}))


def test_unpacking_launches_with_what_was_given(fake, seen) -> None:
    out = fake((2 * N, K), "torch.bfloat16", strides=(512, 1), pointer=4 << 30)
    weight = weight_of(fake, interleaved=True, asymmetric=True)
    assert w4_unpack(weight, out=out, stream=11) is out
    assert seen == {
        "pointers": (2 << 30, 4 << 30),
        "out_row_stride": 512,
        "n": N,
        "k": K,
        "out_dtype": 1,
        "scale_dtype": 0,
        "asymmetric": True,
        "interleaved": True,
        "device": 0,
        "stream": 11,
    }
