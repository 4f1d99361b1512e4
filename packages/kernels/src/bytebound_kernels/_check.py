"""Checks that several ops share. Each raises with what was got and what was expected."""

import math
import operator
from itertools import pairwise
from numbers import Real
from typing import Any

from bytebound_kernels._tensor import HOST, TensorView, view
from bytebound_kernels.errors import (
    InvalidArgumentError,
    UnsupportedDeviceError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    UnsupportedTensorError,
)

__all__ = [
    "check_finite",
    "check_integer",
    "check_kind",
    "common_device",
    "no_overlap",
    "overlap",
    "packed_view",
    "row_stride",
    "workspace_view",
]


def check_integer(op: str, name: str, value: Any, least: int | None = None) -> int:
    """Return an integer argument as an int; NumPy's integers are welcome.

    Raises:
        InvalidArgumentError: it is no integer, or below ``least``.
    """
    expected = "an integer" if least is None else f"an integer of {least} or more"
    refused = InvalidArgumentError(f"{op}: {name} is {value!r}; expected {expected}")
    if isinstance(value, bool):
        raise refused
    try:
        number = operator.index(value)
    except TypeError:
        raise refused from None
    if least is not None and number < least:
        raise refused
    return number


def check_finite(op: str, name: str, value: Any, *, not_negative: bool = False) -> None:
    """Refuse what is no finite number.

    Raises:
        InvalidArgumentError: it is no number, not finite, or below 0 where it must not be.
    """
    is_number = type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))
    if not is_number or not _is_finite(value) or (not_negative and value < 0):
        expected = "a finite number" + (" of 0 or more" if not_negative else "")
        raise InvalidArgumentError(f"{op}: {name} is {value!r}; expected {expected}")


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False


def check_kind(op: str, name: str, value: Any, kind: type) -> None:
    """Refuse a tensor, or anything else, in place of one of this package's records of tensors.

    Raises:
        UnsupportedTensorError: it is of another type.
    """
    if not isinstance(value, kind):
        raise UnsupportedTensorError(
            f"{op}: {name} is a {type(value).__qualname__}; expected a {kind.__qualname__}"
        )


def row_stride(op: str, tensor: TensorView) -> int:
    """Return the distance between rows in elements, for a tensor [..., D] taken as rows of D.

    Raises:
        UnsupportedLayoutError: the elements of a row are not adjacent, or the leading dimensions
            are not evenly spaced, so that no single distance describes the rows.
    """
    shape, strides = tensor.shape, tensor.strides
    if len(shape) == 2 and strides[1] == 1 and strides[0] >= 0:  # nearly always
        return strides[0] if shape[0] > 1 and shape[1] else shape[1]
    described = f"{op}: {tensor.name} of shape {tensor.shape} has strides {tensor.strides}"
    if tensor.strides[-1] != 1 and tensor.shape[-1] > 1:
        raise UnsupportedLayoutError(
            f"{described}; expected the last dimension contiguous (stride 1). Use .contiguous()."
        )
    # Dimensions of size 1 are never stepped along, so their strides mean nothing.
    leading = [
        (n, s) for n, s in zip(tensor.shape[:-1], tensor.strides[:-1], strict=True) if n != 1
    ]
    if not leading or 0 in tensor.shape:
        return tensor.shape[-1]
    for (_, outer_stride), (inner_size, inner_stride) in pairwise(leading):
        if outer_stride != inner_size * inner_stride:
            raise UnsupportedLayoutError(
                f"{described}; expected rows at one even distance, that is, leading dimensions "
                f"that .view(-1, {tensor.shape[-1]}) would accept. Use .contiguous()."
            )
    if leading[-1][1] < 0:
        raise UnsupportedLayoutError(f"{described}; expected strides of 0 or more")
    return leading[-1][1]


def overlap(one: TensorView, other: TensorView, *, common_row_stride: int = 0) -> bool:
    """Whether two tensors share memory.

    Args:
        one: a tensor.
        other: another one.
        common_row_stride: in elements, where both are rows at this distance: then the rows of one
            may lie between the rows of the other, as two column ranges of a wider tensor do.
    """
    apart = (
        one.pointer + one.span_bytes <= other.pointer
        or other.pointer + other.span_bytes <= one.pointer
    )
    if apart:
        return False
    stride = common_row_stride * one.itemsize  # in bytes from here on
    row, other_row = (tensor.shape[-1] * tensor.itemsize for tensor in (one, other))
    return not (stride and row <= (other.pointer - one.pointer) % stride <= stride - other_row)


def no_overlap(
    op: str, written: TensorView, read: TensorView, *, common_row_stride: int = 0
) -> None:
    """Refuse a result that shares memory with an argument that is read.

    Args:
        op: for messages.
        written: the result.
        read: the argument.
        common_row_stride: as in ``overlap``.

    Raises:
        UnsupportedLayoutError: they do.
    """
    if overlap(written, read, common_row_stride=common_row_stride):
        raise UnsupportedLayoutError(
            f"{op}: {written.name} overlaps {read.name} in memory; expected separate tensors"
        )


def common_device(op: str, *tensors: TensorView) -> int:
    """Return the ordinal of the device that holds all of the tensors.

    Raises:
        UnsupportedDeviceError: one is in host memory, or they are on different devices.
    """
    ordinals = [tensor.resolve_device() for tensor in tensors]
    if ordinals[0] == HOST or ordinals.count(ordinals[0]) < len(ordinals):
        got = ", ".join(
            f"{tensor.name} on {'the host' if ordinal == HOST else f'cuda:{ordinal}'}"
            for tensor, ordinal in zip(tensors, ordinals, strict=True)
        )
        raise UnsupportedDeviceError(f"{op}: got {got}; expected all on one CUDA device")
    return ordinals[0]


def packed_view(
    op: str, name: str, tensor: Any, dtype: str, shape: tuple[int | None, ...]
) -> TensorView:
    """Describe a contiguous tensor of one dtype and of a shape in which None fits any size.

    Raises:
        UnsupportedTensorError: it is no tensor.
        UnsupportedDtypeError: its element type is another one.
        UnsupportedShapeError: its shape is another one.
        UnsupportedLayoutError: it is not contiguous.
    """
    tensor_view = view(op, name, tensor, (dtype,))
    got = tensor_view.shape
    if got != shape and not _fits(got, shape):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise UnsupportedShapeError(f"{op}: {name} has shape {got}; expected ({wanted})")
    step, strides = 1, tensor_view.strides
    for i in range(len(got) - 1, -1, -1):
        n = got[i]
        if n > 1 and strides[i] != step:
            raise UnsupportedLayoutError(
                f"{op}: {name} of shape {got} has strides {tensor_view.strides}; expected a "
                f"contiguous tensor. Use .contiguous()."
            )
        step *= n
    return tensor_view


def _fits(got: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    return len(got) == len(shape) and all(
        want in (None, n) for n, want in zip(got, shape, strict=True)
    )


def workspace_view(op: str, workspace: Any, num_bytes: int) -> TensorView:
    """Describe a workspace: uint8, contiguous, aligned to 16 bytes, ``num_bytes`` or more.

    Raises:
        UnsupportedShapeError: it is too small.
        UnsupportedLayoutError: it is not contiguous or not aligned.
    """
    tensor_view = packed_view(op, "workspace", workspace, "uint8", (None,))
    if tensor_view.shape[0] < num_bytes:
        raise UnsupportedShapeError(
            f"{op}: workspace has {tensor_view.shape[0]} bytes; expected {num_bytes} or more"
        )
    if tensor_view.pointer % 16:
        raise UnsupportedLayoutError(
            f"{op}: workspace starts at {tensor_view.pointer:#x}; expected a multiple of 16"
        )
    return tensor_view
