"""What argmax refuses, and what it hands to the kernel: no memory is touched, no GPU needed."""

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
    argmax,
    argmax_workspace_bytes,
)

R, N = 3, 100
FAR = 1 << 24  # an address that no other fake tensor reaches


def arguments(fake: Any, **changes: dict[str, Any]) -> dict[str, Any]:
    fields = {
        "logits": {"shape": (R, N), "dtype": "torch.float32"},
        "out": {"shape": (R,), "dtype": "torch.int32", "pointer": FAR},
        "workspace": {"shape": (64,), "dtype": "torch.uint8", "pointer": 2 * FAR},
        "id_map": {"shape": (N,), "dtype": "torch.int32", "pointer": 3 * FAR},
    }
    return {name: fake(**{**field, **changes.get(name, {})}) for name, field in fields.items()}


def call(tensors: dict[str, Any], **keywords: Any) -> Any:
    tensors = dict(tensors)
    return argmax(tensors.pop("logits"), **tensors, **keywords)


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("logits", {"dtype": "torch.float64"}, UnsupportedDtypeError, "logits has dtype float64"),
        ("logits", {"shape": (N,)}, UnsupportedShapeError, r"expected \[R, N\]"),
        ("logits", {"shape": (R, 0)}, UnsupportedShapeError, "N from 1"),
        ("logits", {"shape": (65536, N)}, UnsupportedShapeError, "R up to 65535"),
        ("logits", {"strides": (1, R)}, UnsupportedLayoutError, "last dimension contiguous"),
        ("out", {"dtype": "torch.int64"}, UnsupportedDtypeError, "out has dtype int64"),
        (
            "out",
            {"shape": (R + 1,)},
            UnsupportedShapeError,
            r"out has shape \(4,\); expected \(3\)",
        ),
        ("out", {"strides": (2,)}, UnsupportedLayoutError, "expected a contiguous tensor"),
        ("out", {"pointer": (1 << 20) + 4}, UnsupportedLayoutError, "out overlaps logits"),
        ("out", {"pointer": 2 * FAR + 4}, UnsupportedLayoutError, "out overlaps workspace"),
        ("workspace", {"dtype": "torch.int32"}, UnsupportedDtypeError, "workspace has dtype"),
        ("workspace", {"shape": (47,)}, UnsupportedShapeError, "47 bytes; expected 48 or more"),
        ("workspace", {"pointer": 2 * FAR + 8}, UnsupportedLayoutError, "a multiple of 16"),
        ("workspace", {"pointer": 3 * FAR}, UnsupportedLayoutError, "workspace overlaps id_map"),
        ("id_map", {"shape": (N - 1,)}, UnsupportedShapeError, r"id_map has shape \(99,\)"),
        ("id_map", {"dtype": "torch.int64"}, UnsupportedDtypeError, "id_map has dtype int64"),
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
    with pytest.raises(error, match=f"argmax: .*{message}"):
        call(arguments(fake, **{name: change}))


def test_without_cuda_the_reason_is_given(fake: Any, no_cuda: str) -> None:
    with pytest.raises(CudaUnavailableError, match=f"argmax: .*{no_cuda}"):
        call(arguments(fake))


def test_devices(fake: Any, pretend_cuda: None) -> None:
    with pytest.raises(UnsupportedDeviceError, match="id_map on the host"):
        call(arguments(fake, id_map={"device": "cpu"}))
    with pytest.raises(UnsupportedDeviceError, match="workspace on cuda:1"):
        call(arguments(fake, workspace={"device": "cuda:1"}))


def test_what_reaches_the_kernel(
    fake: Any, pretend_cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        _native, "argmax", lambda *pointers, **sizes: seen.append((pointers, sizes)), raising=False
    )
    tensors = arguments(fake, logits={"strides": (128, 1), "dtype": "torch.bfloat16"})
    assert call(tensors, stream=5) is tensors["out"]
    call({**tensors, "id_map": None}, stream=5)
    sizes = {"rows": R, "n": N, "row_stride": 128, "dtype": 1, "device": 0, "stream": 5}
    assert seen == [
        ((1 << 20, 3 * FAR, FAR, 2 * FAR), sizes),
        ((1 << 20, 0, FAR, 2 * FAR), sizes),
    ]


def test_the_workspace_is_as_large_as_the_kernel_says() -> None:
    assert argmax_workspace_bytes(5) == 80
    if _native.built_with_cuda:
        assert _native.argmax_workspace_bytes(5) == 80
