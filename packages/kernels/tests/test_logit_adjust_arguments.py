"""What logit_adjust and history_append refuse, and what they hand over: no GPU needed."""

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
    _native,
    history_append,
    logit_adjust,
)

R, N = 3, 100
FAR = 1 << 24  # an address that no other fake tensor reaches
FIELDS = {
    "logits": {"shape": (R, N), "dtype": "float32"},
    "out": {"shape": (R, N), "dtype": "float32"},
    "settings": {"shape": (4,), "dtype": "float64"},
    "seen": {"shape": (N,), "dtype": "uint8"},
    "counts": {"shape": (N,), "dtype": "int32"},
    "generated": {"shape": (1,), "dtype": "int32"},
    "drafts": {"shape": (R - 1,), "dtype": "int32"},
    "bias_ids": {"shape": (5,), "dtype": "int32"},
    "bias_values": {"shape": (5,), "dtype": "float32"},
    "banned_ids": {"shape": (6,), "dtype": "int32"},
    "end_ids": {"shape": (7,), "dtype": "int32"},
}
POINTERS = tuple(FAR * (1 + i) for i in range(len(FIELDS)))


def arguments(fake: Any, **changes: Any) -> dict[str, Any]:
    """Make fake tensors; a change of None leaves a tensor out."""
    tensors = {}
    for (name, field), pointer in zip(FIELDS.items(), POINTERS, strict=True):
        change = changes.get(name, {})
        made = {"pointer": pointer, **field, **(change or {})}
        made["dtype"] = f"torch.{made['dtype']}"
        tensors[name] = None if change is None else fake(**made)
    return tensors


def call(tensors: dict[str, Any], **keywords: Any) -> Any:
    tensors = dict(tensors)
    return logit_adjust(tensors.pop("logits"), tensors.pop("settings"), **tensors, **keywords)


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("logits", {"dtype": "float16"}, UnsupportedDtypeError, "logits has dtype float16"),
        ("logits", {"shape": (33, N)}, UnsupportedShapeError, "R up to 32"),
        ("logits", {"strides": (1, R)}, UnsupportedLayoutError, "contiguous"),
        ("out", {"dtype": "bfloat16"}, UnsupportedDtypeError, "out has dtype bfloat16"),
        ("out", {"shape": (R, N + 1)}, UnsupportedShapeError, "the shape of logits"),
        ("out", {"strides": (50, 1)}, UnsupportedLayoutError, "so they overlap"),
        ("out", {"pointer": FAR + 4}, UnsupportedLayoutError, "out overlaps logits"),
        ("out", {"pointer": 4 * FAR}, UnsupportedLayoutError, "out overlaps seen"),
        ("settings", {"shape": (3,)}, UnsupportedShapeError, r"expected \(4\)"),
        ("seen", {"dtype": "bool"}, UnsupportedDtypeError, "seen has dtype bool; expected uint8"),
        ("counts", {"shape": (N + 1,)}, UnsupportedShapeError, r"expected \(100\)"),
        ("generated", {"shape": (2,)}, UnsupportedShapeError, "generated has shape"),
        ("drafts", {"shape": (R,)}, UnsupportedShapeError, r"expected \(2\)"),
        ("bias_values", {"shape": (4,)}, UnsupportedShapeError, "the shape of bias_ids"),
        ("bias_values", None, InvalidArgumentError, "both or neither"),
        ("bias_ids", None, InvalidArgumentError, "both or neither"),
        ("banned_ids", {"dtype": "int64"}, UnsupportedDtypeError, "banned_ids has dtype int64"),
        ("end_ids", {"strides": (2,)}, UnsupportedLayoutError, "end_ids of shape"),
    ],
)
def test_refused_on_any_machine(
    fake: Any,
    no_cuda: str,
    name: str,
    change: dict[str, Any] | None,
    error: type[KernelError],
    message: str,
) -> None:
    with pytest.raises(error, match=f"logit_adjust: .*{message}"):
        call(arguments(fake, **{name: change}))


def test_machine(fake: Any, no_cuda: str) -> None:
    with pytest.raises(CudaUnavailableError, match=f"logit_adjust: .*{no_cuda}"):
        call(arguments(fake))


def test_devices(fake: Any, pretend_cuda: None) -> None:
    with pytest.raises(UnsupportedDeviceError, match="seen on the host"):
        call(arguments(fake, seen={"device": "cpu"}))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, pretend_cuda: None) -> list[Any]:
    seen: list[Any] = []
    for op in ("logit_adjust", "history_append"):
        monkeypatch.setattr(
            _native, op, lambda *pointers, **sizes: seen.append((pointers, sizes)), raising=False
        )
    return seen


def test_what_reaches_the_kernel(fake: Any, launches: list[Any]) -> None:
    tensors = arguments(fake, logits={"strides": (128, 1)})
    assert call(tensors, allow_minus_infinity=True, stream=5) is tensors["out"]
    names = list(FIELDS)[3:]
    in_place = arguments(fake, out={"pointer": FAR}, **dict.fromkeys(names))
    call(in_place)
    sizes = {
        "rows": R,
        "n": N,
        "row_stride": 128,
        "out_row_stride": N,
        "num_bias": 5,
        "num_banned": 6,
        "num_end": 7,
        "allow_minus_infinity": True,
        "device": 0,
        "stream": 5,
    }
    none = {"num_bias": 0, "num_banned": 0, "num_end": 0, "allow_minus_infinity": False}
    assert launches == [
        (POINTERS, sizes),
        (
            (FAR, FAR, POINTERS[2], *[0] * 8),
            {**sizes, **none, "row_stride": N, "stream": 0},
        ),
    ]


def test_history(fake: Any, launches: list[Any]) -> None:
    ids = fake((5,), dtype="torch.int32")
    count = fake((1,), dtype="torch.int32", pointer=FAR)
    seen = fake((N,), dtype="torch.uint8", pointer=2 * FAR)
    counts = fake((N,), dtype="torch.int32", pointer=3 * FAR)
    history_append(ids, count, seen=seen, counts=counts, stream=5)
    history_append(ids, counts=counts)
    sizes = {"capacity": 5, "n": N, "device": 0, "stream": 5}
    assert launches == [
        ((1 << 20, FAR, 2 * FAR, 3 * FAR), sizes),
        ((1 << 20, 0, 0, 3 * FAR), {**sizes, "stream": 0}),
    ]
    with pytest.raises(InvalidArgumentError, match="neither seen nor counts"):
        history_append(ids)
    with pytest.raises(UnsupportedShapeError, match=r"counts has shape \(99,\)"):
        history_append(ids, seen=seen, counts=fake((N - 1,), dtype="torch.int32", pointer=3 * FAR))
    with pytest.raises(UnsupportedShapeError, match=r"num_ids has shape \(2,\)"):
        history_append(ids, fake((2,), dtype="torch.int32", pointer=FAR), seen=seen)
    with pytest.raises(UnsupportedDtypeError, match="ids has dtype int64"):
        history_append(fake((5,), dtype="torch.int64"), seen=seen)
    with pytest.raises(UnsupportedLayoutError, match="counts overlaps ids"):
        history_append(ids, counts=fake((N,), dtype="torch.int32"))
