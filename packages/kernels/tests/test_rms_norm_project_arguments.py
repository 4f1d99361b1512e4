"""What rms_norm_project refuses, and what it hands to the kernel: no memory is touched."""

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
    rms_norm_project,
)

R, N, D = 3, 50, 128
FAR = 1 << 24  # an address that no other fake tensor reaches


def arguments(fake: Any, **changes: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, dict[str, Any]] = {
        "x": {"shape": (R, D), "dtype": "torch.float32"},
        "weight": {"shape": (D,), "dtype": "torch.float32", "pointer": FAR},
        "projection": {"shape": (N, D), "pointer": 2 * FAR},
        "out": {"shape": (R, D), "pointer": 3 * FAR},
        "projected": {"shape": (R, N), "pointer": 4 * FAR},
    }
    return {name: fake(**{**field, **changes.get(name, {})}) for name, field in fields.items()}


def call(tensors: dict[str, Any], **keywords: Any) -> Any:
    tensors = dict(tensors)
    inputs = [tensors.pop(name) for name in ("x", "weight", "projection")]
    return rms_norm_project(*inputs, **tensors, **keywords)


REFUSED: list[tuple[str, dict[str, Any], type[KernelError], str]] = [
    ("x", {"dtype": "torch.float16"}, UnsupportedDtypeError, "x has dtype float16"),
    ("x", {"shape": (D,)}, UnsupportedShapeError, r"expected \[R, D\] with R from 1 to 16"),
    ("x", {"shape": (0, D)}, UnsupportedShapeError, "R from 1 to 16"),
    ("x", {"shape": (17, D)}, UnsupportedShapeError, "R from 1 to 16"),
    ("x", {"shape": (R, 96)}, UnsupportedShapeError, "D a multiple of 64"),
    ("x", {"shape": (R, 0)}, UnsupportedShapeError, "D a multiple of 64"),
    ("x", {"shape": (R, 2**30 + 64)}, UnsupportedShapeError, "D a multiple of 64 up to"),
    ("x", {"strides": (1, R)}, UnsupportedLayoutError, "last dimension contiguous"),
    ("x", {"strides": (D + 2, 1)}, UnsupportedLayoutError, "at a distance of 520 bytes"),
    ("x", {"pointer": (1 << 20) + 8}, UnsupportedLayoutError, "x starts at 0x100008"),
    ("weight", {"dtype": "torch.bfloat16"}, UnsupportedDtypeError, "weight has dtype bfloat16"),
    ("weight", {"shape": (D + 1,)}, UnsupportedShapeError, r"weight has shape \(129,\)"),
    ("weight", {"strides": (2,)}, UnsupportedLayoutError, "expected a contiguous tensor"),
    ("weight", {"pointer": FAR + 4}, UnsupportedLayoutError, "weight starts at 0x1000004"),
    ("projection", {"dtype": "torch.float32"}, UnsupportedDtypeError, "projection has dtype"),
    ("projection", {"shape": (D,)}, UnsupportedShapeError, r"expected \[N, 128\]"),
    ("projection", {"shape": (N, D + 64)}, UnsupportedShapeError, r"expected \[N, 128\]"),
    ("projection", {"shape": (0, D)}, UnsupportedShapeError, "N from 1 to 4096"),
    ("projection", {"shape": (4097, D)}, UnsupportedShapeError, "N from 1 to 4096"),
    ("projection", {"strides": (1, N)}, UnsupportedLayoutError, "last dimension contiguous"),
    ("projection", {"strides": (D + 4, 1)}, UnsupportedLayoutError, "distance of 264 bytes"),
    ("projection", {"pointer": 2 * FAR + 2}, UnsupportedLayoutError, "projection starts at"),
    (
        "out",
        {"dtype": "torch.bfloat16"},
        UnsupportedDtypeError,
        "out has dtype bfloat16; expected float16, the dtype of projection",
    ),
    ("out", {"dtype": "torch.float32"}, UnsupportedDtypeError, "out has dtype float32"),
    ("out", {"shape": (R + 1, D)}, UnsupportedShapeError, r"out has shape .*expected \(3, 128\)"),
    ("out", {"strides": (D - 8, 1)}, UnsupportedLayoutError, "so they overlap"),
    ("out", {"strides": (D + 4, 1)}, UnsupportedLayoutError, "out starts at"),
    ("out", {"pointer": 1 << 20}, UnsupportedLayoutError, "out overlaps x"),
    ("out", {"pointer": FAR}, UnsupportedLayoutError, "out overlaps weight"),
    ("out", {"pointer": 2 * FAR}, UnsupportedLayoutError, "out overlaps projection"),
    ("projected", {"dtype": "torch.float32"}, UnsupportedDtypeError, "projected has dtype"),
    ("projected", {"shape": (R, N + 1)}, UnsupportedShapeError, r"expected \(3, 50\)"),
    ("projected", {"strides": (N - 1, 1)}, UnsupportedLayoutError, "so they overlap"),
    ("projected", {"pointer": (1 << 20) + 2}, UnsupportedLayoutError, "projected overlaps x"),
    ("projected", {"pointer": 3 * FAR}, UnsupportedLayoutError, "projected overlaps out"),
]


@pytest.mark.parametrize(("name", "change", "error", "message"), REFUSED)
def test_refused_on_any_machine(
    fake: Any,
    no_cuda: str,
    name: str,
    change: dict[str, Any],
    error: type[KernelError],
    message: str,
) -> None:
    with pytest.raises(error, match=f"rms_norm_project: .*{message}"):
        call(arguments(fake, **{name: change}))


@pytest.mark.parametrize("name", ["x", "weight", "projection", "out", "projected"])
def test_what_is_no_tensor_is_refused(fake: Any, name: str) -> None:
    with pytest.raises(UnsupportedTensorError, match=f"{name} is a list; expected a tensor"):
        call({**arguments(fake), name: [0.0]})


@pytest.mark.parametrize("eps", [-1e-6, float("nan"), float("inf"), "1e-6"])
def test_eps(fake: Any, eps: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="rms_norm_project: eps is"):
        call(arguments(fake), eps=eps)


def test_without_cuda_the_reason_is_given(fake: Any, no_cuda: str) -> None:
    with pytest.raises(CudaUnavailableError, match=f"rms_norm_project: .*{no_cuda}"):
        call(arguments(fake))


@pytest.mark.usefixtures("pretend_cuda")
@pytest.mark.parametrize("name", ["x", "weight", "projection", "out", "projected"])
def test_devices(fake: Any, name: str) -> None:
    for device, where in (("cpu", "on the host"), ("cuda:1", "on cuda:1")):
        with pytest.raises(UnsupportedDeviceError, match=f"{name} {where}"):
            call(arguments(fake, **{name: {"device": device}}))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, pretend_cuda: None) -> list[tuple[Any, Any]]:
    """Record what would reach the kernel."""
    seen: list[tuple[Any, Any]] = []
    monkeypatch.setattr(
        _native,
        "rms_norm_project",
        lambda *pointers, **sizes: seen.append((pointers, sizes)),
        raising=False,
    )
    return seen


def test_what_reaches_the_kernel(fake: Any, launched: list[tuple[Any, Any]]) -> None:
    tensors = arguments(
        fake,
        x={"strides": (D + 4, 1)},
        projection={"strides": (2 * D, 1), "dtype": "torch.bfloat16"},
        out={"strides": (D + 8, 1), "dtype": "torch.bfloat16"},
        projected={"strides": (N + 1, 1), "dtype": "torch.bfloat16"},
    )
    out, projected = call(tensors, eps=0.5, stream=5)
    assert out is tensors["out"] and projected is tensors["projected"]
    sizes = {
        "x_row_stride": D + 4,
        "projection_row_stride": 2 * D,
        "out_row_stride": D + 8,
        "projected_row_stride": N + 1,
        "rows": R,
        "n": N,
        "d": D,
        "dtype": 1,
        "eps": 0.5,
        "device": 0,
        "stream": 5,
    }
    assert launched == [((1 << 20, FAR, 2 * FAR, 3 * FAR, 4 * FAR), sizes)]


def test_one_row_may_have_any_distance(fake: Any, launched: list[tuple[Any, Any]]) -> None:
    call(
        arguments(
            fake,
            x={"shape": (1, D), "strides": (D + 1, 1)},
            projection={"shape": (1, D), "strides": (3, 1)},
            out={"shape": (1, D), "strides": (1, 1)},
            projected={"shape": (1, 1), "strides": (7, 9)},
        ),
        stream=5,
    )
    ((_, sizes),) = launched
    assert (sizes["rows"], sizes["n"], sizes["dtype"]) == (1, 1, 0)
