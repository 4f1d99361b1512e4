"""What the four-bit ops refuse, before any launch; no GPU."""

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
    matvec_workspace_bytes,
    w4_matvec,
    w4_pack,
    w4_packed_bytes,
)

N, K, R = 96, 256, 3
SCRATCH = 2 * 132 * 64 * 8 * 4
SCALE = float.fromhex("0x1.99999ap-4")  # 0.1 as float32


def call(fake, *, packed: dict[str, Any] | None = None, **changes: Any) -> Any:
    """Call with good arguments far apart in memory, some of them changed."""
    fields = {"asymmetric": False, "interleaved": False, **(packed or {})}
    size = w4_packed_bytes(N, K, asymmetric=fields["asymmetric"], interleaved=fields["interleaved"])
    data = fields.pop("data", fake((size,), "torch.uint8", pointer=2 << 30))
    arguments = {
        "x": fake((R, K), pointer=3 << 30),
        "weight": PackedW4(data, N, K, **fields),
        "out": fake((R, N), pointer=4 << 30),
        "workspace": fake((SCRATCH,), "torch.uint8", pointer=5 << 30),
        **changes,
    }
    return w4_matvec(arguments.pop("x"), arguments.pop("weight"), **arguments)


BAD = [
    ("x", {"shape": (17, K)}, UnsupportedShapeError, r"x has shape \(17, 256\)"),
    ("x", {"shape": (0, K)}, UnsupportedShapeError, "R from 1 to 16"),
    ("x", {"shape": (R, K - 1)}, UnsupportedShapeError, r"expected \[R, 256\]"),
    ("x", {"shape": (K,)}, UnsupportedShapeError, r"expected \[R, 256\]"),
    (
        "x",
        {"shape": (R, K), "dtype": "torch.float32"},
        UnsupportedDtypeError,
        "x has dtype float32",
    ),
    ("x", {"shape": (R, K), "pointer": (3 << 30) + 8}, UnsupportedLayoutError, "multiples of 16"),
    ("x", {"shape": (R, K), "strides": (K + 4, 1)}, UnsupportedLayoutError, "multiples of 16"),
    ("x", {"shape": (R, K), "strides": (K, 2)}, UnsupportedLayoutError, "stride 1"),
    ("x", {"shape": (R, K), "device": "cpu"}, UnsupportedDeviceError, "x on the host"),
    ("x", {"shape": (R, K), "device": "cuda:1"}, UnsupportedDeviceError, "x on cuda:1"),
    ("out", {"shape": (R, N + 1)}, UnsupportedShapeError, "out has shape"),
    ("out", {"shape": (R + 1, N)}, UnsupportedShapeError, "out has shape"),
    ("out", {"shape": (R, N), "dtype": "torch.bfloat16"}, UnsupportedDtypeError, "out has dtype"),
    ("out", {"shape": (R, N), "strides": (N - 1, 1)}, UnsupportedLayoutError, "overlap"),
    ("out", {"shape": (R, N), "pointer": 3 << 30}, UnsupportedLayoutError, "out overlaps x"),
    ("out", {"shape": (R, N), "pointer": 2 << 30}, UnsupportedLayoutError, "out overlaps"),
    ("residual", {"shape": (R, N - 1)}, UnsupportedShapeError, "residual has shape"),
    (
        "residual",
        {"shape": (R, N), "dtype": "torch.float32"},
        UnsupportedDtypeError,
        "residual has dtype float32; expected float16",
    ),
    (
        "residual",
        {"shape": (R, N), "pointer": (4 << 30) + 16},
        UnsupportedLayoutError,
        "out overlaps residual",
    ),
    (
        "workspace",
        {"shape": (SCRATCH - 1,), "dtype": "torch.uint8"},
        UnsupportedShapeError,
        "bytes",
    ),
    ("workspace", {"shape": (SCRATCH,), "dtype": "torch.float16"}, UnsupportedDtypeError, "uint8"),
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
    from bytebound_kernels import _native

    def launched(*_args: Any, **_fields: Any) -> None:
        pytest.fail("launched")

    for name in ("w4_matvec", "w4_pack"):
        monkeypatch.setattr(_native, name, launched, raising=False)


@pytest.mark.parametrize(("name", "tensor", "error", "message"), BAD)
@pytest.mark.usefixtures("pretend_h200")
def test_refuses(fake, name, tensor, error, message) -> None:
    base = {"x": 3, "out": 4, "workspace": 5, "residual": 6}[name] << 30
    with pytest.raises(error, match=message):
        call(fake, **{name: fake(**{"pointer": base, **tensor})})


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        ({"shape": (100,)}, UnsupportedShapeError, "weight.data has shape"),
        (
            {"shape": (16896,), "pointer": (2 << 30) + 8},
            UnsupportedLayoutError,
            "weight.data starts",
        ),
        ({"shape": (16896,), "dtype": "torch.float16"}, UnsupportedDtypeError, "weight.data"),
        ({"shape": (16896,), "device": "cuda:1"}, UnsupportedDeviceError, "weight.data on cuda:1"),
    ],
)
@pytest.mark.usefixtures("pretend_h200")
def test_refuses_weights(fake, tensor, error, message) -> None:
    data = fake(**{"dtype": "torch.uint8", "pointer": 2 << 30, **tensor})
    with pytest.raises(error, match=message):
        call(fake, packed={"data": data})


@pytest.mark.usefixtures("pretend_h200")
def test_refuses_a_residual_with_an_interleaved_weight(fake) -> None:
    with pytest.raises(InvalidArgumentError, match="interleaved"):
        call(fake, packed={"interleaved": True}, residual=fake((R, N), pointer=6 << 30))


@pytest.mark.parametrize("num_blocks", [0, -1, 2 * 132 + 1])
@pytest.mark.usefixtures("pretend_h200")
def test_refuses_more_blocks_than_run_at_once(fake, num_blocks) -> None:
    with pytest.raises(
        InvalidArgumentError, match=f"num_blocks is {num_blocks}; expected 1 to 264"
    ):
        call(fake, num_blocks=num_blocks)


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf"), 1e-60, 1e60, True, "2"])
@pytest.mark.usefixtures("pretend_h200")
def test_refuses_a_scale_that_float32_does_not_hold_above_0(fake, scale) -> None:
    with pytest.raises(
        InvalidArgumentError, match=re.escape(f"w4_matvec: scale is {scale!r}; expected a ")
    ):
        call(fake, scale=scale)


def test_without_cuda_the_reason_is_told(fake, no_cuda) -> None:
    with pytest.raises(CudaUnavailableError, match=no_cuda):
        call(fake)


@pytest.mark.usefixtures("pretend_cuda")
def test_launches_with_what_was_given(fake, monkeypatch) -> None:
    from bytebound_kernels import _native

    seen = {}
    monkeypatch.setattr(
        _native, "w4_matvec", lambda *p, **f: seen.update(f, pointers=p), raising=False
    )
    out = fake((R, N), "torch.float32", strides=(128, 1), pointer=4 << 30)
    x = fake((R, K), "torch.bfloat16", strides=(512, 1), pointer=3 << 30)
    packed = {"asymmetric": True, "scale_dtype": "bfloat16"}
    assert (
        call(fake, packed=packed, x=x, out=out, residual=out, scale=0.1, num_blocks=7, stream=11)
        is out
    )
    assert seen == {
        "pointers": (2 << 30, 3 << 30, 4 << 30, 4 << 30, 5 << 30),
        "x_row_stride": 512,
        "out_row_stride": 128,
        "residual_row_stride": 128,
        "rows": R,
        "n": N,
        "k": K,
        "num_blocks": 7,
        "x_dtype": 1,
        "scale_dtype": 1,
        "asymmetric": True,
        "float_out": True,
        "epilogue": 1,
        "scale": SCALE,
        "beside_weight": 0,
        "beside_out": 0,
        "beside_weight_row_stride": 0,
        "beside_out_row_stride": 0,
        "beside_n": 0,
        "beside_num_blocks": 0,
        "device": 0,
        "stream": 11,
    }
    call(fake, packed={"interleaved": True})
    assert (seen["epilogue"], seen["scale"]) == (2, 1.0)


@pytest.mark.usefixtures("pretend_cuda")
def test_the_native_side_says_how_many_blocks(fake, monkeypatch) -> None:
    from bytebound_kernels import _native

    asked, seen = [], []

    def blocks(items: int, most_blocks: int) -> int:
        asked.append((items, most_blocks))
        return 5

    monkeypatch.setattr(_native, "matvec_blocks", blocks, raising=False)
    monkeypatch.setattr(
        _native, "w4_matvec", lambda *_, **f: seen.append(f["num_blocks"]), raising=False
    )
    call(fake, stream=11)
    call(fake, packed={"interleaved": True}, stream=11)
    assert asked == [(2 * 2, 264), (3 * 2, 264)]  # row blocks by groups
    call(fake, num_blocks=264, stream=11)
    assert seen == [5, 5, 264] and len(asked) == 2


@pytest.mark.usefixtures("pretend_cuda")
def test_the_workspace_is_as_large_as_the_native_side_says() -> None:
    from bytebound_kernels import _native

    assert matvec_workspace_bytes(0) == SCRATCH
    if hasattr(_native, "matvec_workspace_bytes"):
        assert matvec_workspace_bytes(num_blocks=7) == _native.matvec_workspace_bytes(7)


def pack(fake, *, fields: dict[str, Any] | None = None, **changes: Any) -> Any:
    flags = {"asymmetric": False, "interleaved": False, **(fields or {})}
    size = w4_packed_bytes(N, K, asymmetric=flags["asymmetric"], interleaved=flags["interleaved"])
    arguments = {
        "packed": fake((N, K // 8), "torch.int32", pointer=3 << 30),
        "scale": fake((N, K // 128), "torch.float16", pointer=4 << 30),
        "zero_point": None,
        "out": PackedW4(fake((size,), "torch.uint8", pointer=2 << 30), N, K, **flags),
        **changes,
    }
    return w4_pack(
        arguments.pop("packed"), arguments.pop("scale"), arguments.pop("zero_point"), **arguments
    )


@pytest.mark.parametrize(
    ("fields", "changes", "error", "message"),
    [
        ({}, {"first_row": 1}, UnsupportedShapeError, "96 rows from row 1 on do not fit"),
        ({}, {"first_row": -1}, UnsupportedShapeError, "do not fit"),
        ({}, {"part": "gate"}, InvalidArgumentError, "part is 'gate'"),
        ({}, {"part": "down"}, InvalidArgumentError, "part is 'down'"),
        ({"interleaved": True}, {}, InvalidArgumentError, "expected 'gate' or 'up'"),
        ({"interleaved": True}, {"part": "up", "first_row": 8}, UnsupportedShapeError, "at once"),
        ({"asymmetric": True}, {}, InvalidArgumentError, "zero_point is missing"),
        ({"scale_dtype": "bfloat16"}, {}, UnsupportedDtypeError, "scale has dtype float16"),
    ],
)
@pytest.mark.usefixtures("pretend_h200")
def test_packing_refuses(fake, fields, changes, error, message) -> None:
    with pytest.raises(error, match=message):
        pack(fake, fields=fields, **changes)


@pytest.mark.parametrize(
    ("name", "tensor", "error"),
    [
        ("packed", {"shape": (N, K // 8 + 1), "dtype": "torch.int32"}, UnsupportedShapeError),
        ("packed", {"shape": (N, K // 8), "dtype": "torch.int64"}, UnsupportedDtypeError),
        (
            "packed",
            {"shape": (N, K // 8), "dtype": "torch.int32", "strides": (1, N)},
            UnsupportedLayoutError,
        ),
        ("scale", {"shape": (N, 1)}, UnsupportedShapeError),
        ("scale", {"shape": (N - 1, 2)}, UnsupportedShapeError),
        ("zero_point", {"shape": (12, 2), "dtype": "torch.int32"}, InvalidArgumentError),
    ],
)
@pytest.mark.usefixtures("pretend_h200")
def test_packing_refuses_tensors(fake, name, tensor, error) -> None:
    with pytest.raises(error, match=name):
        pack(fake, **{name: fake(**{"pointer": 6 << 30, **tensor})})
