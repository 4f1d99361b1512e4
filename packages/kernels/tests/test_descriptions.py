"""What ops learn of a tensor and of a stream in the short ways that nearly every call takes."""

from types import SimpleNamespace

import pytest
from bytebound_kernels._check import row_stride
from bytebound_kernels._stream import stream_handle
from bytebound_kernels._tensor import TensorView, view

torch = pytest.importorskip("torch")

SIZES, DISTANCES = (0, 1, 2, 5), (0, 1, 5, 8)


def described(shape: tuple[int, ...], strides: tuple[int, ...]) -> TensorView:
    return TensorView("x", 1 << 20, shape, strides, "float16", 2, 0)


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("columns", SIZES)
@pytest.mark.parametrize("distance", DISTANCES)
def test_rows_of_a_matrix_lie_as_those_of_a_batch_of_one(
    rows: int, columns: int, distance: int
) -> None:
    matrix = described((rows, columns), (distance, 1))
    batch = described((1, rows, columns), (9999, distance, 1))
    assert row_stride("op", matrix) == row_stride("op", batch)


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("columns", SIZES)
@pytest.mark.parametrize("distance", DISTANCES)
def test_the_span_of_rows(rows: int, columns: int, distance: int) -> None:
    places = [distance * row + column for row in range(rows) for column in range(columns)]
    expected = 2 * (max(places) + 1) if places else 0
    assert described((rows, columns), (distance, 1)).span_bytes == expected


def test_a_dtype_is_named_whatever_was_named_before() -> None:
    tensors = [torch.zeros(3, dtype=dtype) for dtype in (torch.float16, torch.float32, torch.half)]
    views = [view("op", "x", one) for one in tensors]
    assert [(one.dtype, one.itemsize) for one in views] == [
        ("float16", 2), ("float32", 4), ("float16", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("raw", [True, False])
def test_the_stream_that_is_current_in_pytorch(monkeypatch: pytest.MonkeyPatch, raw: bool) -> None:
    if raw:
        handle_of = {0: 40, 1: 41}.__getitem__
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", handle_of, raising=False)
    else:
        monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream", raising=False)
        monkeypatch.setattr(
            torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=40 + device)
        )
    assert [stream_handle("op", None, torch.zeros(1), device) for device in (0, 1)] == [40, 41]


@pytest.mark.gpu
def test_the_stream_that_is_current_on_a_gpu() -> None:
    x, own = torch.zeros(1, device="cuda"), torch.cuda.Stream()
    assert stream_handle("op", None, x, 0) == torch.cuda.current_stream(0).cuda_stream
    with torch.cuda.stream(own):
        assert stream_handle("op", None, x, 0) == own.cuda_stream
