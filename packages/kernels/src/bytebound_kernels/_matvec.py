"""What the products of a matrix with a few vectors share: checks, the grid, the workspace."""

import ctypes
import math
from typing import Any

from bytebound_kernels._check import check_finite, check_integer, row_stride, workspace_view
from bytebound_kernels._device import device_info
from bytebound_kernels._tensor import TensorView, view
from bytebound_kernels.errors import (
    InvalidArgumentError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
)

__all__ = [
    "EPILOGUES",
    "MAX_ROWS",
    "check_activations",
    "check_blocks",
    "check_residual",
    "check_result",
    "check_scale",
    "check_workspace",
    "matvec_workspace_bytes",
    "most_blocks",
]

MAX_ROWS = 16
_LAUNCH_ROWS = 8  # kMatvecRows in csrc/matvec.h
_ITEM_ROWS = 64
_BLOCKS_PER_SM = 2  # what the registers of a multiprocessor hold
_ALIGNMENT = 16  # bytes
_ACTIVATIONS = ("float16", "bfloat16")

# The numbers of MatvecEpilogue in csrc/matvec.h.
EPILOGUES = {"store": 0, "add_residual": 1, "swiglu": 2}


def most_blocks(device: int, op: str = "matvec_workspace_bytes") -> int:
    """Return the blocks of a grid that fills a device once."""
    return _BLOCKS_PER_SM * device_info(op, device).num_sms


def matvec_workspace_bytes(device: int = 0, *, num_blocks: int | None = None) -> int:
    """Return the bytes of workspace that w4_matvec and dense_matvec need, whatever the matrix.

    One workspace serves all of them, one stream at a time. Fill it with 0xFF bytes once, before its
    first use (torch: ``workspace.fill_(255)``); every call leaves it so.

    Args:
        device: ordinal of the device, for the most blocks that it runs at once.
        num_blocks: the number that is passed to the calls, where it is not the default.

    Raises:
        CudaUnavailableError: no device is visible, and num_blocks is not given.
        InvalidArgumentError: there is no such device, or num_blocks is no integer of 1 or more.
    """
    if num_blocks is None:
        blocks = most_blocks(device)
    else:
        blocks = check_integer("matvec_workspace_bytes", "num_blocks", num_blocks, 1)
    return blocks * _ITEM_ROWS * _LAUNCH_ROWS * 4


def check_blocks(op: str, num_blocks: int | None, device: int) -> int:
    """Return num_blocks, or the most that there may be where it is None.

    More than a device holds at once could wait for ever.
    """
    most = most_blocks(device, op)
    if num_blocks is None:
        return most
    num_blocks = check_integer(op, "num_blocks", num_blocks)
    if not 1 <= num_blocks <= most:
        raise InvalidArgumentError(
            f"{op}: num_blocks is {num_blocks}; expected 1 to {most}, what the device runs at once"
        )
    return num_blocks


def check_activations(op: str, x: Any, k: int) -> TensorView:
    """Check x [R, K]: one to sixteen rows, each aligned to 16 bytes."""
    x_view = view(op, "x", x, _ACTIVATIONS)
    if len(x_view.shape) != 2 or x_view.shape[1] != k or not 1 <= x_view.shape[0] <= MAX_ROWS:
        raise UnsupportedShapeError(
            f"{op}: x has shape {x_view.shape}; expected [R, {k}] with R from 1 to {MAX_ROWS}"
        )
    distance = row_stride(op, x_view) * x_view.itemsize
    if x_view.pointer % _ALIGNMENT or (x_view.shape[0] > 1 and distance % _ALIGNMENT):
        raise UnsupportedLayoutError(
            f"{op}: x starts at {x_view.pointer:#x} with rows at a distance of {distance} bytes; "
            f"expected multiples of {_ALIGNMENT}"
        )
    return x_view


def check_result(op: str, name: str, tensor: Any, x: TensorView, n: int) -> TensorView:
    """Check out or residual [R, N]: the dtype of x or float32, rows that do not overlap."""
    result = view(op, name, tensor, (x.dtype, "float32"))
    if result.shape != (x.shape[0], n):
        raise UnsupportedShapeError(
            f"{op}: {name} has shape {result.shape}; expected ({x.shape[0]}, {n})"
        )
    if row_stride(op, result) < n and x.shape[0] > 1:
        raise UnsupportedLayoutError(
            f"{op}: {name} has rows of {n} elements at a distance of {row_stride(op, result)}, so "
            f"they overlap; expected a distance of {n} or more"
        )
    return result


def check_residual(op: str, residual: Any, out: TensorView, x: TensorView) -> TensorView:
    """Check residual [R, N]: the dtype of out."""
    result = check_result(op, "residual", residual, x, out.shape[1])
    if result.dtype != out.dtype:
        raise UnsupportedDtypeError(
            f"{op}: residual has dtype {result.dtype}; expected {out.dtype}, the dtype of out"
        )
    return result


def check_scale(op: str, scale: Any) -> float:
    """Return the factor of a product as the float32 that the kernel takes.

    Raises:
        InvalidArgumentError: it is no number, or as float32 not finite or not above 0.
    """
    check_finite(op, "scale", scale)
    rounded = ctypes.c_float(scale).value
    if not 0 < rounded < math.inf:
        raise InvalidArgumentError(
            f"{op}: scale is {scale!r}; expected a number above 0 that float32 holds"
        )
    return rounded


def check_workspace(op: str, workspace: Any, num_blocks: int) -> TensorView:
    """Check the workspace for a grid of that many blocks."""
    return workspace_view(op, workspace, num_blocks * _ITEM_ROWS * _LAUNCH_ROWS * 4)
