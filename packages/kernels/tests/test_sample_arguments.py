"""What sample and speculative_sample refuse, and what they hand over: no GPU needed."""

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
    sample,
    sample_workspace_bytes,
    speculative_sample,
    speculative_sample_workspace_bytes,
)

R, N = 3, 100
FAR = 1 << 24  # an address that no other fake tensor reaches
SAMPLE = {
    "logits": {"shape": (R, N), "dtype": "float32"},
    "settings": {"shape": (4,), "dtype": "float64"},
    "seed": {"shape": (1,), "dtype": "int64"},
    "position": {"shape": (1,), "dtype": "int32"},
    "out": {"shape": (R,), "dtype": "int32"},
    "workspace": {"shape": (sample_workspace_bytes(R, N),), "dtype": "uint8"},
    "weights": {"shape": (R, N), "dtype": "float64"},
    "totals": {"shape": (R,), "dtype": "float64"},
}
SPECULATIVE = {
    "weights": {"shape": (R, N), "dtype": "float64"},
    "totals": {"shape": (R,), "dtype": "float64"},
    "drafts": {"shape": (R - 1,), "dtype": "int32"},
    "seed": {"shape": (1,), "dtype": "int64"},
    "cycle": {"shape": (8 + R,), "dtype": "int32"},
    "workspace": {"shape": (24,), "dtype": "uint8"},
    "draft_weights": {"shape": (R - 1, N), "dtype": "float64"},
    "draft_totals": {"shape": (R - 1,), "dtype": "float64"},
    "output": {"shape": (10,), "dtype": "int32"},
}
OPS = {"sample": (sample, SAMPLE, 2), "speculative_sample": (speculative_sample, SPECULATIVE, 3)}


def address(op: str, name: str) -> int:
    return FAR * (1 + list(OPS[op][1]).index(name))


def arguments(fake: Any, op: str, **changes: Any) -> dict[str, Any]:
    """Make fake tensors; a change of None leaves a tensor out."""
    tensors = {}
    for name, field in OPS[op][1].items():
        change = changes.get(name, {})
        made = {"pointer": address(op, name), **field, **(change or {})}
        made["dtype"] = f"torch.{made['dtype']}"
        tensors[name] = None if change is None else fake(**made)
    return tensors


def call(op: str, tensors: dict[str, Any], **keywords: Any) -> Any:
    function, _, positional = OPS[op]
    names = list(tensors)
    first = [tensors[name] for name in names[:positional]]
    return function(*first, **{name: tensors[name] for name in names[positional:]}, **keywords)


@pytest.mark.parametrize(
    ("op", "name", "change", "error", "message"),
    [
        ("sample", "logits", {"dtype": "float16"}, UnsupportedDtypeError, "expected float32"),
        ("sample", "logits", {"shape": (N,)}, UnsupportedShapeError, r"expected \[R, N\]"),
        ("sample", "logits", {"shape": (1, 2**22 + 1)}, UnsupportedShapeError, "from 1 to 4194304"),
        ("sample", "logits", {"strides": (1, R)}, UnsupportedLayoutError, "contiguous"),
        ("sample", "settings", {"dtype": "float32"}, UnsupportedDtypeError, "settings has dtype"),
        ("sample", "settings", {"shape": (3,)}, UnsupportedShapeError, r"expected \(4\)"),
        ("sample", "seed", {"dtype": "int32"}, UnsupportedDtypeError, "seed has dtype int32"),
        ("sample", "position", {"shape": ()}, UnsupportedShapeError, r"position has shape \(\)"),
        ("sample", "out", {"shape": (R + 1,)}, UnsupportedShapeError, r"expected \(3\)"),
        ("sample", "workspace", {"shape": (1000,)}, UnsupportedShapeError, "1000 bytes; expected"),
        ("sample", "weights", {"shape": (R, N + 1)}, UnsupportedShapeError, "weights has shape"),
        ("sample", "weights", {"pointer": FAR}, UnsupportedLayoutError, "weights overlaps logits"),
        ("sample", "totals", {"strides": (2,)}, UnsupportedLayoutError, "totals of shape"),
        ("speculative_sample", "weights", {"dtype": "float32"}, UnsupportedDtypeError, "weights"),
        ("speculative_sample", "weights", {"shape": (33, N)}, UnsupportedShapeError, "got 33 rows"),
        ("speculative_sample", "weights", {"strides": (128, 1)}, UnsupportedLayoutError, "weights"),
        ("speculative_sample", "totals", {"shape": (1,)}, UnsupportedShapeError, "totals"),
        ("speculative_sample", "drafts", {"shape": (R,)}, UnsupportedShapeError, "drafts"),
        ("speculative_sample", "cycle", {"shape": (8,)}, UnsupportedShapeError, r"expected \(11\)"),
        ("speculative_sample", "workspace", {"shape": (23,)}, UnsupportedShapeError, "23 bytes"),
        (
            "speculative_sample",
            "draft_weights",
            {"shape": (R, N)},
            UnsupportedShapeError,
            "draft_w",
        ),
        ("speculative_sample", "draft_weights", None, InvalidArgumentError, "both or neither"),
        ("speculative_sample", "draft_totals", None, InvalidArgumentError, "both or neither"),
        ("speculative_sample", "output", {"shape": (2,)}, UnsupportedShapeError, "output holds 2"),
        ("speculative_sample", "output", {"pointer": FAR}, UnsupportedLayoutError, "overlaps"),
    ],
)
def test_refused_on_any_machine(
    fake: Any,
    no_cuda: str,
    op: str,
    name: str,
    change: dict[str, Any] | None,
    error: type[KernelError],
    message: str,
) -> None:
    with pytest.raises(error, match=f"{op}: .*{message}"):
        call(op, arguments(fake, op, **{name: change}))


def test_numbers_out_of_range(fake: Any, no_cuda: str) -> None:
    for keywords in (
        {"position_offset": -1},
        {"position_offset": "1"},
        {"position_offset": 1.5},
        {"purpose": 4},
        {"purpose": -1},
    ):
        with pytest.raises(InvalidArgumentError, match=next(iter(keywords))):
            call("sample", arguments(fake, "sample"), **keywords)


@pytest.mark.parametrize("op", OPS)
def test_machine(fake: Any, no_cuda: str, op: str) -> None:
    with pytest.raises(CudaUnavailableError, match=f"{op}: .*{no_cuda}"):
        call(op, arguments(fake, op))


@pytest.mark.parametrize("op", OPS)
def test_devices(fake: Any, pretend_cuda: None, op: str) -> None:
    with pytest.raises(UnsupportedDeviceError, match="seed on the host"):
        call(op, arguments(fake, op, seed={"device": "cpu"}))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, pretend_cuda: None) -> list[Any]:
    seen: list[Any] = []
    for op in OPS:
        monkeypatch.setattr(
            _native, op, lambda *pointers, **sizes: seen.append((pointers, sizes)), raising=False
        )
    return seen


def test_what_reaches_the_sampling_kernels(fake: Any, launches: list[Any]) -> None:
    tensors = arguments(fake, "sample", logits={"strides": (128, 1)})
    result = call("sample", tensors, position_offset=4, purpose=1, with_top_k=False, stream=5)
    assert result is tensors["out"]
    call("sample", arguments(fake, "sample", weights=None, totals=None))
    names = ("logits", "settings", "seed", "position", "out", "weights", "totals", "workspace")
    pointers = tuple(address("sample", name) for name in names)
    sizes = {
        "rows": R,
        "n": N,
        "row_stride": 128,
        "position_offset": 4,
        "purpose": 1,
        "with_top_k": False,
        "with_top_p": True,
        "device": 0,
        "stream": 5,
    }
    assert launches[0] == (pointers, sizes)
    assert launches[1][0] == (*pointers[:5], 0, 0, pointers[7])


def test_what_reaches_the_acceptance_kernel(fake: Any, launches: list[Any]) -> None:
    op = "speculative_sample"
    tensors = arguments(fake, op)
    assert call(op, tensors, stream=5) is tensors["cycle"]
    call(op, arguments(fake, op, draft_weights=None, draft_totals=None, output=None))
    names = ("weights", "totals", "drafts", "draft_weights", "draft_totals")
    names += ("seed", "cycle", "output", "workspace")
    pointers = tuple(address(op, name) for name in names)
    sizes = {"rows": R, "n": N, "capacity": 10, "device": 0, "stream": 5}
    assert launches == [
        (pointers, sizes),
        (
            (*pointers[:3], 0, 0, *pointers[5:7], 0, pointers[8]),
            {**sizes, "capacity": 0, "stream": 0},
        ),
    ]


def test_workspaces_are_as_large_as_the_kernels_say() -> None:
    assert speculative_sample_workspace_bytes(2049) == 32
    if _native.built_with_cuda:
        for rows, n in ((1, 1), (3, 2048), (5, 2049), (8, 248320)):
            assert sample_workspace_bytes(rows, n) == _native.sample_workspace_bytes(rows, n)
            assert speculative_sample_workspace_bytes(
                n
            ) == _native.speculative_sample_workspace_bytes(n)
