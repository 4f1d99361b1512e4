"""What logprobs refuses, and what it hands to the kernel: no GPU needed."""

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
    logprobs,
    logprobs_workspace_bytes,
)

R, N = 3, 100
FAR = 1 << 24  # an address that no other fake tensor reaches
FIELDS = {
    "logits": {"shape": (R, N), "dtype": "float32"},
    "ids": {"shape": (R,), "dtype": "int32"},
    "out_values": {"shape": (R, 6), "dtype": "float64"},
    "out_ids": {"shape": (R, 6), "dtype": "int32"},
    "workspace": {"shape": (216,), "dtype": "uint8"},
}
POINTERS = tuple(FAR * (1 + i) for i in range(len(FIELDS)))


def arguments(fake: Any, **changes: dict[str, Any]) -> dict[str, Any]:
    tensors = {}
    for (name, field), pointer in zip(FIELDS.items(), POINTERS, strict=True):
        made = {"pointer": pointer, **field, **changes.get(name, {})}
        made["dtype"] = f"torch.{made['dtype']}"
        tensors[name] = fake(**made)
    return tensors


def call(tensors: dict[str, Any], **keywords: Any) -> Any:
    tensors = dict(tensors)
    return logprobs(tensors.pop("logits"), tensors.pop("ids"), **tensors, **keywords)


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("logits", {"dtype": "bfloat16"}, UnsupportedDtypeError, "logits has dtype bfloat16"),
        ("logits", {"shape": (R, 0)}, UnsupportedShapeError, r"expected \[R, N\]"),
        ("logits", {"strides": (1, R)}, UnsupportedLayoutError, "contiguous"),
        ("ids", {"shape": (R + 1,)}, UnsupportedShapeError, r"ids has shape \(4,\)"),
        ("out_values", {"dtype": "float32"}, UnsupportedDtypeError, "expected float64"),
        ("out_values", {"shape": (R, 22)}, UnsupportedShapeError, "n from 0 to 20"),
        ("out_values", {"shape": (R, 0)}, UnsupportedShapeError, "n from 0 to 20"),
        ("out_ids", {"shape": (R, 5)}, UnsupportedShapeError, r"expected \(3, 6\)"),
        ("out_ids", {"pointer": 3 * FAR}, UnsupportedLayoutError, "out_ids overlaps out_values"),
        ("workspace", {"shape": (215,)}, UnsupportedShapeError, "215 bytes; expected 216"),
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
    with pytest.raises(error, match=f"logprobs: .*{message}"):
        call(arguments(fake, **{name: change}))


def test_machine(fake: Any, no_cuda: str) -> None:
    with pytest.raises(CudaUnavailableError, match=f"logprobs: .*{no_cuda}"):
        call(arguments(fake))


def test_devices(fake: Any, pretend_cuda: None) -> None:
    with pytest.raises(UnsupportedDeviceError, match="ids on the host"):
        call(arguments(fake, ids={"device": "cpu"}))


def test_what_reaches_the_kernel(
    fake: Any, pretend_cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        _native,
        "logprobs",
        lambda *pointers, **sizes: seen.append((pointers, sizes)),
        raising=False,
    )
    tensors = arguments(fake, logits={"strides": (128, 1)})
    assert call(tensors, stream=5) is tensors["out_values"]
    sizes = {"rows": R, "n": N, "row_stride": 128, "num_top": 5, "device": 0, "stream": 5}
    assert seen == [(POINTERS, sizes)]


def test_the_workspace_is_as_large_as_the_kernel_says() -> None:
    assert logprobs_workspace_bytes(R, N, 5) == 216
    if _native.built_with_cuda:
        for sizes in ((1, 1, 0), (3, 2049, 5), (8, 248320, 20)):
            assert logprobs_workspace_bytes(*sizes) == _native.logprobs_workspace_bytes(*sizes)
