"""What embedding_gather refuses, and what it hands to the kernel: no GPU needed."""

from typing import Any

import pytest
from bytebound_kernels import (
    CudaUnavailableError,
    KernelError,
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    _native,
    embedding_gather,
)

T, N, D = 3, 50, 64
FAR = 1 << 24  # an address that no other fake tensor reaches


def arguments(fake: Any, **changes: dict[str, Any]) -> dict[str, Any]:
    fields = {
        "ids": {"shape": (T,), "dtype": "torch.int32"},
        "table": {"shape": (N, D), "pointer": FAR},
        "out": {"shape": (T, D), "pointer": 2 * FAR},
    }
    return {name: fake(**{**field, **changes.get(name, {})}) for name, field in fields.items()}


def call(tensors: dict[str, Any], **keywords: Any) -> Any:
    return embedding_gather(tensors["ids"], tensors["table"], out=tensors["out"], **keywords)


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("ids", {"dtype": "torch.int64"}, UnsupportedDtypeError, "ids has dtype int64"),
        ("ids", {"shape": (T, 1)}, UnsupportedShapeError, r"ids has shape \(3, 1\)"),
        ("ids", {"strides": (2,)}, UnsupportedLayoutError, "contiguous"),
        ("table", {"dtype": "torch.float32"}, UnsupportedDtypeError, "expected float16, bfloat16"),
        ("table", {"shape": (N, D, 1)}, UnsupportedShapeError, r"expected \[N, D\]"),
        ("table", {"shape": (0, D)}, UnsupportedShapeError, "N from 1"),
        ("table", {"strides": (1, N)}, UnsupportedLayoutError, "last dimension contiguous"),
        ("out", {"dtype": "torch.bfloat16"}, UnsupportedDtypeError, "expected float16 or float32"),
        ("out", {"shape": (T, D - 1)}, UnsupportedShapeError, r"expected \(3, 64\)"),
        ("out", {"strides": (32, 1)}, UnsupportedLayoutError, "so they overlap"),
        ("out", {"pointer": FAR + 128}, UnsupportedLayoutError, "out overlaps table"),
        ("out", {"pointer": 1 << 20}, UnsupportedLayoutError, "out overlaps ids"),
    ],
)
def test_refused_on_any_machine(
    fake: Any,
    no_cuda: str,
    name: str,
    change: dict[str, Any],
    error: type[KernelError],
    message: str,
) -> None:
    with pytest.raises(error, match=f"embedding_gather: .*{message}"):
        call(arguments(fake, **{name: change}))


def test_without_cuda_the_reason_is_given(fake: Any, no_cuda: str) -> None:
    with pytest.raises(CudaUnavailableError, match=f"embedding_gather: .*{no_cuda}"):
        call(arguments(fake))


def test_devices(fake: Any, pretend_cuda: None) -> None:
    with pytest.raises(UnsupportedDeviceError, match="table on the host"):
        call(arguments(fake, table={"device": "cpu"}))


def test_what_reaches_the_kernel(
    fake: Any, pretend_cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        _native,
        "embedding_gather",
        lambda *pointers, **sizes: seen.append((pointers, sizes)),
        raising=False,
    )
    tensors = arguments(
        fake, table={"strides": (80, 1)}, out={"strides": (96, 1), "dtype": "torch.float32"}
    )
    assert call(tensors, stream=5) is tensors["out"]
    sizes = {
        "rows": T,
        "n": N,
        "d": D,
        "table_row_stride": 80,
        "out_row_stride": 96,
        "table_dtype": 0,
        "out_dtype": 2,
        "device": 0,
        "stream": 5,
    }
    assert seen == [((1 << 20, FAR, 2 * FAR), sizes)]
