"""Checks that the passes share. Each raises with what was got and what was expected."""

import os

import torch

from bytebound_kernels._check import check_finite
from bytebound_kernels._device import require_cuda
from bytebound_kernels.errors import (
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    UnsupportedTensorError,
)

__all__ = [
    "ALIGNMENT",
    "carve",
    "check_contiguous",
    "check_dtype",
    "check_eps",
    "check_one_device",
    "check_rows",
    "check_shape",
]

ALIGNMENT = 256  # bytes, of every buffer in a workspace


def check_shape(op: str, name: str, tensor: torch.Tensor, expected: tuple[int, ...]) -> None:
    """Refuse another shape."""
    if tuple(tensor.shape) != expected:
        raise UnsupportedShapeError(
            f"{op}: {name} has shape {tuple(tensor.shape)}; expected {expected}"
        )


def check_dtype(op: str, name: str, tensor: torch.Tensor, *expected: torch.dtype) -> None:
    """Refuse what is no tensor, and a dtype that is not among the expected ones."""
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedTensorError(
            f"{op}: {name} is a {type(tensor).__qualname__}; expected a torch.Tensor"
        )
    if tensor.dtype not in expected:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in expected)
        got = str(tensor.dtype).removeprefix("torch.")
        raise UnsupportedDtypeError(f"{op}: {name} has dtype {got}; expected {wanted}")


def check_contiguous(op: str, name: str, tensor: torch.Tensor) -> None:
    """Refuse gaps between elements."""
    if not tensor.is_contiguous():
        raise UnsupportedLayoutError(
            f"{op}: {name} of shape {tuple(tensor.shape)} has strides {tensor.stride()}; "
            f"expected a contiguous tensor. Use .contiguous()."
        )


def check_rows(op: str, name: str, tensor: torch.Tensor, expected: tuple[int, int]) -> int:
    """Refuse another shape, or rows whose elements are apart; return the distance between rows."""
    check_shape(op, name, tensor, expected)
    if tensor.stride(1) != 1 and expected[1] > 1:
        raise UnsupportedLayoutError(
            f"{op}: {name} of shape {tuple(tensor.shape)} has strides {tensor.stride()}; "
            f"expected the last dimension contiguous (stride 1). Use .contiguous()."
        )
    if tensor.stride(0) < expected[1] and expected[0] > 1:
        raise UnsupportedLayoutError(
            f"{op}: {name} has rows of {expected[1]} elements at a distance of "
            f"{tensor.stride(0)}; expected {expected[1]} or more"
        )
    return tensor.stride(0) if expected[0] > 1 else expected[1]


def check_eps(op: str, eps: float) -> None:
    """Refuse what is not a finite number of 0 or more."""
    check_finite(op, "eps", eps, not_negative=True)


def check_one_device(op: str, tensors: dict[str, torch.Tensor]) -> torch.device:
    """Refuse mixed devices, host memory unless Triton interprets the kernels, an unknown card."""
    (first, tensor), *others = tensors.items()
    for name, other in others:
        if other.device != tensor.device:
            raise UnsupportedDeviceError(
                f"{op}: {first} is on {tensor.device} and {name} on {other.device}; "
                f"expected one device"
            )
    if tensor.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise UnsupportedDeviceError(
            f"{op}: {first} is on {tensor.device}; expected a CUDA device (or TRITON_INTERPRET=1 "
            f"before the import of Triton, which interprets the kernels on the CPU)"
        )
    if tensor.device.type == "cuda":
        require_cuda(op, tensor.device.index)
    return tensor.device


def carve(
    op: str,
    workspace: torch.Tensor | None,
    device: torch.device,
    parts: list[tuple[int, torch.dtype]],
) -> list[torch.Tensor]:
    """Return flat tensors of the given lengths and dtypes, out of the workspace or a new one."""
    sizes = [-(-length * dtype.itemsize // ALIGNMENT) * ALIGNMENT for length, dtype in parts]
    if workspace is None:
        workspace = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    check_dtype(op, "workspace", workspace, torch.uint8)
    check_contiguous(op, "workspace", workspace)
    if workspace.numel() < sum(sizes):
        raise UnsupportedShapeError(
            f"{op}: workspace has {workspace.numel()} bytes; expected {sum(sizes)} or more"
        )
    if workspace.data_ptr() % ALIGNMENT and device.type == "cuda":
        raise UnsupportedLayoutError(
            f"{op}: workspace begins {workspace.data_ptr() % ALIGNMENT} bytes behind a multiple of "
            f"{ALIGNMENT}; expected a multiple"
        )
    flat = workspace.view(-1)
    pieces, start = [], 0
    for (length, dtype), size in zip(parts, sizes, strict=True):
        pieces.append(flat[start : start + length * dtype.itemsize].view(dtype))
        start += size
    return pieces
