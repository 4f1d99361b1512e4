"""What speculative_accept refuses, and what it hands to the kernel: no GPU needed."""

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
    speculative_accept,
)

R = 5
FAR = 1 << 24  # an address that no other fake tensor reaches


def arguments(fake: Any, **changes: dict[str, Any]) -> dict[str, Any]:
    fields = {
        "ids": {"shape": (R,)},
        "drafts": {"shape": (R - 1,), "pointer": FAR},
        "cycle": {"shape": (8 + R,), "pointer": 2 * FAR},
        "output": {"shape": (100,), "pointer": 3 * FAR},
    }
    return {
        name: fake(**{"dtype": "torch.int32", **field, **changes.get(name, {})})
        for name, field in fields.items()
    }


def call(tensors: dict[str, Any], **keywords: Any) -> Any:
    tensors = dict(tensors)
    return speculative_accept(tensors.pop("ids"), tensors.pop("drafts"), **tensors, **keywords)


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("ids", {"dtype": "torch.int64"}, UnsupportedDtypeError, "ids has dtype int64"),
        ("ids", {"shape": (0,)}, UnsupportedShapeError, "got 0 rows; expected 1 to 32"),
        ("ids", {"shape": (33,)}, UnsupportedShapeError, "got 33 rows"),
        ("ids", {"strides": (2,)}, UnsupportedLayoutError, "contiguous"),
        ("drafts", {"shape": (R,)}, UnsupportedShapeError, r"drafts has shape \(5,\)"),
        ("cycle", {"shape": (7 + R,)}, UnsupportedShapeError, r"expected \(13\)"),
        ("cycle", {"pointer": 1 << 20}, UnsupportedLayoutError, "cycle overlaps ids"),
        ("output", {"shape": (R - 1,)}, UnsupportedShapeError, "output holds 4 ids; expected 5"),
        ("output", {"pointer": 2 * FAR + 4}, UnsupportedLayoutError, "cycle overlaps output"),
        ("output", {"pointer": FAR}, UnsupportedLayoutError, "output overlaps drafts"),
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
    with pytest.raises(error, match=f"speculative_accept: .*{message}"):
        call(arguments(fake, **{name: change}))


def test_without_cuda_the_reason_is_given(fake: Any, no_cuda: str) -> None:
    with pytest.raises(CudaUnavailableError, match=f"speculative_accept: .*{no_cuda}"):
        call(arguments(fake))


def test_devices(fake: Any, pretend_cuda: None) -> None:
    with pytest.raises(UnsupportedDeviceError, match="drafts on the host"):
        call(arguments(fake, drafts={"device": "cpu"}))


def test_what_reaches_the_kernel(
    fake: Any, pretend_cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        _native,
        "speculative_accept",
        lambda *pointers, **sizes: seen.append((pointers, sizes)),
        raising=False,
    )
    tensors = arguments(fake)
    assert call(tensors, stream=5) is tensors["cycle"]
    one = arguments(fake, ids={"shape": (1,)}, cycle={"shape": (9,)})
    call({**one, "drafts": None, "output": None}, stream=5)
    assert seen == [
        (
            (1 << 20, FAR, 2 * FAR, 3 * FAR),
            {"rows": R, "capacity": 100, "device": 0, "stream": 5},
        ),
        ((1 << 20, 0, 2 * FAR, 0), {"rows": 1, "capacity": 0, "device": 0, "stream": 5}),
    ]
