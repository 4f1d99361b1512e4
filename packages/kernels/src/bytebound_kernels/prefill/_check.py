"""Checks that the passes share. Each raises with what was got and what was expected."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch

from bytebound_kernels._check import check_finite, no_overlap
from bytebound_kernels._device import require_cuda
from bytebound_kernels._tensor import DTYPE_CODES, TensorView, view
from bytebound_kernels.errors import (
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    UnsupportedTensorError,
)

__all__ = [
    "carve",
    "check_apart",
    "check_contiguous",
    "check_dtype",
    "check_eps",
    "check_one_device",
    "check_rows",
    "check_shape",
    "check_workspace",
    "on_device",
    "parts_bytes",
]

_ALIGNMENT = 256  # bytes, of every buffer in a workspace


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


def check_apart(op: str, written: dict[str, torch.Tensor], read: dict[str, torch.Tensor]) -> None:
    """Refuse results that share memory with each other or with what is read.

    Rows at one distance may be column ranges of one wider tensor.
    """
    results, others = (
        [view(op, name, tensor, tuple(DTYPE_CODES)) for name, tensor in tensors.items()]
        for tensors in (written, read)
    )
    for i, result in enumerate(results):
        for other in (*others, *results[:i]):
            no_overlap(op, result, other, common_row_stride=_common_row_stride(result, other))


def _common_row_stride(one: TensorView, other: TensorView) -> int:
    """Return the distance between rows, in elements of ``one``; 0 where it is not the same."""
    if any(len(tensor.shape) != 2 or tensor.shape[0] < 2 for tensor in (one, other)):
        return 0
    same = one.strides[0] * one.itemsize == other.strides[0] * other.itemsize
    return one.strides[0] if same else 0


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


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a card current for a while: Triton launches on the current one and on its stream."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def parts_bytes(parts: list[tuple[int, torch.dtype]]) -> int:
    """Return the bytes of a workspace of parts of the given lengths and dtypes."""
    return sum(_aligned_bytes(length, dtype) for length, dtype in parts)


def _aligned_bytes(length: int, dtype: torch.dtype) -> int:
    return -(-length * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT


def check_workspace(op: str, workspace: torch.Tensor, num_bytes: int) -> None:
    """Refuse what is not uint8, contiguous, on the card aligned, or is too small."""
    check_dtype(op, "workspace", workspace, torch.uint8)
    check_contiguous(op, "workspace", workspace)
    if workspace.numel() < num_bytes:
        raise UnsupportedShapeError(
            f"{op}: workspace has {workspace.numel()} bytes; expected {num_bytes} or more"
        )
    if workspace.data_ptr() % _ALIGNMENT and workspace.device.type == "cuda":
        raise UnsupportedLayoutError(
            f"{op}: workspace begins {workspace.data_ptr() % _ALIGNMENT} bytes behind a multiple "
            f"of {_ALIGNMENT}; expected a multiple"
        )


def carve(
    workspace: torch.Tensor | None, device: torch.device, parts: list[tuple[int, torch.dtype]]
) -> list[torch.Tensor]:
    """Return flat tensors of the given lengths and dtypes, out of the workspace or a new one."""
    if workspace is None:
        workspace = torch.empty(parts_bytes(parts), dtype=torch.uint8, device=device)
    flat = workspace.view(-1)
    pieces, start = [], 0
    for length, dtype in parts:
        pieces.append(flat[start : start + length * dtype.itemsize].view(dtype))
        start += _aligned_bytes(length, dtype)
    return pieces
