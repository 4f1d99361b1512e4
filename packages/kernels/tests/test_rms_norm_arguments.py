"""What rms_norm refuses, and what it hands to the kernel: no memory is touched, no GPU needed."""

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
    rms_norm,
)

D = 64
FAR = 1 << 24  # an address that no other fake tensor reaches


@pytest.mark.parametrize(
    ("x", "weight", "keywords", "error", "message"),
    [
        pytest.param(
            {"shape": (2, D), "dtype": "torch.float64"},
            {"shape": (D,)},
            {},
            UnsupportedDtypeError,
            "x has dtype float64; expected float16, bfloat16, float32",
            id="x-dtype",
        ),
        pytest.param(
            {"shape": (2, D)},
            {"shape": (D,), "dtype": "torch.bfloat16"},
            {},
            UnsupportedDtypeError,
            "weight has dtype bfloat16 with x of float16; expected float16 or float32",
            id="weight-dtype",
        ),
        pytest.param(
            {"shape": (2, D)},
            {"shape": (D + 1,)},
            {},
            UnsupportedShapeError,
            r"weight has shape \(65,\); expected \(64,\)",
            id="weight-shape",
        ),
        pytest.param(
            {"shape": (2, D)},
            {"shape": (1, D)},
            {},
            UnsupportedShapeError,
            r"weight has shape \(1, 64\)",
            id="weight-rank",
        ),
        pytest.param(
            {"shape": ()},
            {"shape": (D,)},
            {},
            UnsupportedShapeError,
            r"x has shape \(\)",
            id="rank-0",
        ),
        pytest.param(
            {"shape": (2, 0)}, {"shape": (0,)}, {}, UnsupportedShapeError, "D from 1", id="D-0"
        ),
        pytest.param(
            {"shape": (2**31, D)}, {"shape": (D,)}, {}, UnsupportedShapeError, "rows", id="rows"
        ),
        pytest.param(
            {"shape": (2, D), "strides": (1, 2)},
            {"shape": (D,)},
            {},
            UnsupportedLayoutError,
            r"strides \(1, 2\); expected the last dimension contiguous",
            id="x-transposed",
        ),
        pytest.param(
            {"shape": (2, 3, D), "strides": (1000, 100, 1)},
            {"shape": (D,)},
            {},
            UnsupportedLayoutError,
            "rows at one even distance",
            id="x-uneven-rows",
        ),
        pytest.param(
            {"shape": (2, D)},
            {"shape": (D,), "strides": (2,)},
            {},
            UnsupportedLayoutError,
            "weight has stride 2; expected 1",
            id="weight-stride",
        ),
        pytest.param(
            {"shape": (2, D)}, {"shape": (D,)}, {"eps": -1.0}, InvalidArgumentError, "eps", id="eps"
        ),
        pytest.param(
            {"shape": (2, D)},
            {"shape": (D,)},
            {"eps": float("nan")},
            InvalidArgumentError,
            "eps is nan",
            id="eps-nan",
        ),
    ],
)
def test_refused_on_any_machine(
    fake: Any,
    no_cuda: str,
    x: dict[str, Any],
    weight: dict[str, Any],
    keywords: dict[str, Any],
    error: type[KernelError],
    message: str,
) -> None:
    with pytest.raises(error, match=f"rms_norm: .*{message}"):
        rms_norm(fake(**x), fake(pointer=FAR, **weight), **keywords)


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        pytest.param({"shape": (3, D)}, UnsupportedShapeError, "out has shape", id="shape"),
        pytest.param(
            {"shape": (2, D), "dtype": "torch.float32"}, UnsupportedDtypeError, "out", id="dtype"
        ),
        pytest.param(
            {"shape": (2, D), "strides": (0, 1), "pointer": 2 * FAR},
            UnsupportedLayoutError,
            "so they overlap",
            id="rows-overlap",
        ),
        pytest.param(
            {"shape": (2, D), "pointer": (1 << 20) + 32},
            UnsupportedLayoutError,
            "out overlaps x",
            id="overlaps-x",
        ),
        pytest.param(
            {"shape": (2, D), "pointer": FAR + 64},
            UnsupportedLayoutError,
            "out overlaps weight",
            id="overlaps-weight",
        ),
    ],
)
def test_out_refused_on_any_machine(
    fake: Any, no_cuda: str, out: dict[str, Any], error: type[KernelError], message: str
) -> None:
    with pytest.raises(error, match=message):
        rms_norm(fake((2, D)), fake((D,), pointer=FAR), out=fake(**out))


def test_what_is_no_tensor_is_refused(fake: Any) -> None:
    with pytest.raises(UnsupportedTensorError, match="weight is a list; expected a tensor"):
        rms_norm(fake((2, D)), [0.0] * D)


def test_a_numpy_array_gets_the_reason_that_matters(
    fake: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    numpy = pytest.importorskip("numpy")
    x, weight = numpy.ones((2, D), numpy.float16), numpy.ones(D, numpy.float32)
    request.getfixturevalue("pretend_cuda")
    with pytest.raises(UnsupportedDeviceError, match="x on the host, weight on the host"):
        rms_norm(x, weight)
    request.getfixturevalue("no_cuda")
    with pytest.raises(CudaUnavailableError, match="rms_norm: CUDA is not usable"):
        rms_norm(x, weight)


@pytest.mark.usefixtures("pretend_cuda")
def test_devices_must_agree_and_have_code(fake: Any) -> None:
    x, weight = fake((2, D)), fake((D,), pointer=FAR)
    with pytest.raises(UnsupportedDeviceError, match="got x on cuda:0, weight on cuda:1, out"):
        rms_norm(x, fake((D,), device="cuda:1", pointer=FAR), out=x)
    with pytest.raises(UnsupportedDeviceError, match="out on the host"):
        rms_norm(x, weight, out=fake((2, D), device="cpu", pointer=2 * FAR))
    on_card_1 = fake((2, D), device="cuda:1")
    with pytest.raises(CudaUnavailableError, match="no code for card 1"):
        rms_norm(on_card_1, fake((D,), device="cuda:1", pointer=FAR), out=on_card_1)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, pretend_cuda: None) -> list[dict[str, Any]]:
    """Record what would reach the kernel."""
    seen: list[dict[str, Any]] = []

    def record(x: int, weight: int, out: int, **sizes: Any) -> None:
        seen.append({"x": x, "weight": weight, "out": out, **sizes})

    monkeypatch.setattr(_native, "rms_norm", record, raising=False)
    return seen


class ForeignStream:
    """A stream by the protocol that several frameworks share."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 77)


def test_in_place_on_a_slice(fake: Any, launches: list[dict[str, Any]]) -> None:
    x = fake((2, 3, D), strides=(300, 100, 1), dtype="torch.bfloat16")
    weight = fake((D,), dtype="torch.float32", pointer=FAR)
    assert rms_norm(x, weight, eps=1e-5, out=x, stream=5) is x
    assert launches == [
        {
            "x": x.pointer,
            "weight": FAR,
            "out": x.pointer,
            "rows": 6,
            "d": D,
            "x_row_stride": 100,
            "out_row_stride": 100,
            "x_dtype": 1,
            "weight_dtype": 2,
            "out_dtype": 1,
            "eps": 1e-5,
            "device": 0,
            "stream": 5,
        }
    ]


@pytest.mark.parametrize(("name", "code"), [("float16", 0), ("bfloat16", 1)])
def test_float32_may_be_rounded_to_16_bits(
    fake: Any, launches: list[dict[str, Any]], name: str, code: int
) -> None:
    x, weight = fake((2, D), "torch.float32"), fake((D,), "torch.float32", pointer=FAR)
    out = fake((2, D), f"torch.{name}", pointer=2 * FAR)
    rms_norm(x, weight, out=out)
    assert (launches[0]["x_dtype"], launches[0]["out_dtype"]) == (2, code)
    with pytest.raises(UnsupportedLayoutError, match="out overlaps x"):
        rms_norm(x, weight, out=fake((2, D), f"torch.{name}", pointer=x.pointer))


@pytest.mark.parametrize("offset", [-D, D, D + 8], ids=lambda offset: f"offset{offset}")
def test_x_and_out_may_be_columns_of_one_tensor(
    fake: Any, launches: list[dict[str, Any]], offset: int
) -> None:
    x = fake((5, D), strides=(3 * D, 1))
    out = fake((5, D), strides=(3 * D, 1), pointer=x.pointer + 2 * offset)
    rms_norm(x, fake((D,), pointer=FAR), out=out)
    assert launches[0]["out"] == out.pointer


@pytest.mark.parametrize(
    "offset", [1, D - 1, 2 * D + 1, 1 - D], ids=lambda offset: f"offset{offset}"
)
def test_x_and_out_must_not_be_overlapping_columns(fake: Any, no_cuda: str, offset: int) -> None:
    x = fake((5, D), strides=(3 * D, 1))
    out = fake((5, D), strides=(3 * D, 1), pointer=x.pointer + 2 * offset)
    with pytest.raises(UnsupportedLayoutError, match="out overlaps x"):
        rms_norm(x, fake((D,), pointer=FAR), out=out)


@pytest.mark.parametrize(
    ("shape", "strides", "rows", "row_stride"),
    [
        pytest.param((D,), (1,), 1, D, id="one-row"),
        pytest.param((1, D), (7, 1), 1, D, id="stride-of-a-single-row-is-ignored"),
        pytest.param((4, 1, D), (80, 3, 1), 4, 80, id="single-middle"),
        pytest.param((4, D), (0, 1), 4, 0, id="one-row-repeated"),
        pytest.param((0, D), (D, 1), 0, D, id="no-rows"),
        pytest.param((3, 1), (5, 9), 3, 5, id="D-1"),
    ],
)
def test_rows_as_the_kernel_sees_them(
    fake: Any,
    launches: list[dict[str, Any]],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    rows: int,
    row_stride: int,
) -> None:
    x = fake(shape, strides=strides)
    rms_norm(x, fake((shape[-1],), pointer=FAR), out=fake(shape, pointer=2 * FAR), stream=0)
    assert (launches[0]["rows"], launches[0]["x_row_stride"]) == (rows, row_stride)


def test_streams_of_any_kind(fake: Any, launches: list[dict[str, Any]]) -> None:
    class Torch:
        cuda_stream = 11

    class Cupy:
        ptr = 22

    x, weight = fake((2, D)), fake((D,), pointer=FAR)
    for stream in (Torch(), Cupy(), ForeignStream(), 0, None):
        rms_norm(x, weight, out=x, stream=stream)
    assert [launch["stream"] for launch in launches] == [11, 22, 77, 0, 0]
    for wrong in ("main", True, -1):
        with pytest.raises(InvalidArgumentError, match="stream is"):
            rms_norm(x, weight, out=x, stream=wrong)


class InterfaceArray:
    """A device array as Numba shows it: no dtype object, strides in bytes, no device."""

    def __init__(self, shape: tuple[int, ...], pointer: int, strides: Any = None) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "<f4",
            "data": (pointer, False),
            "strides": strides,
            "version": 3,
        }


def test_array_interface(launches: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "pointer_device", lambda pointer: 0)
    x = InterfaceArray((2, D), 1 << 20, (4 * 100, 4))
    out = InterfaceArray((2, D), 2 * FAR)
    weight = InterfaceArray((D,), FAR)
    rms_norm(x, weight, out=out)
    launch = launches[0]
    assert (launch["x_dtype"], launch["x_row_stride"], launch["out_row_stride"]) == (2, 100, D)
    with pytest.raises(UnsupportedTensorError, match=r"allocate a InterfaceArray.*pass out="):
        rms_norm(x, weight)
