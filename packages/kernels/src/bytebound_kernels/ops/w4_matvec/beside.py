"""The checks of a small product in the launch of a four-bit one (csrc/cuda/beside.cuh)."""

from typing import Any

from bytebound_kernels._check import no_overlap, row_stride
from bytebound_kernels._matvec import check_result
from bytebound_kernels._tensor import TensorView, view
from bytebound_kernels.errors import (
    InvalidArgumentError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
)

__all__ = ["check_beside"]

_ALIGNMENT = 16  # bytes
# kMaxBesideN and kMaxBesideK in csrc/matvec.h.
_MAX_N = 4096
_MAX_K = 8192


def check_beside(
    op: str, weight: Any, out: Any, x: TensorView
) -> tuple[TensorView, TensorView] | None:
    """Describe beside_weight and beside_out; None where neither is given.

    Raises:
        InvalidArgumentError: one of them is given without the other.
        UnsupportedDtypeError: a dtype is not that of x.
        UnsupportedShapeError: a shape does not fit.
        UnsupportedLayoutError: strides, alignment, or a result that overlaps what is read.
    """
    if weight is None and out is None:
        return None
    if weight is None or out is None:
        given, missing = ("beside_weight", "beside_out")[:: 1 if out is None else -1]
        raise InvalidArgumentError(
            f"{op}: {given} is given without {missing}; expected both or neither"
        )
    weight_view = view(op, "beside_weight", weight, (x.dtype,))
    k, shape = x.shape[1], weight_view.shape
    if len(shape) != 2 or shape[1] != k or not 1 <= shape[0] <= _MAX_N:
        raise UnsupportedShapeError(
            f"{op}: beside_weight has shape {shape}; expected [N, {k}] with N from 1 to {_MAX_N}"
        )
    if k > _MAX_K:
        raise UnsupportedShapeError(
            f"{op}: beside_weight has shape {shape}; expected K up to {_MAX_K}"
        )
    distance = row_stride(op, weight_view) * weight_view.itemsize
    if weight_view.pointer % _ALIGNMENT or (shape[0] > 1 and distance % _ALIGNMENT):
        raise UnsupportedLayoutError(
            f"{op}: beside_weight starts at {weight_view.pointer:#x} with rows at a distance of "
            f"{distance} bytes; expected multiples of {_ALIGNMENT}"
        )
    out_view = check_result(op, "beside_out", out, x, shape[0])
    if out_view.dtype != x.dtype:
        raise UnsupportedDtypeError(
            f"{op}: beside_out has dtype {out_view.dtype}; expected {x.dtype}, the dtype of x"
        )
    for tensor in (x, weight_view):
        no_overlap(op, out_view, tensor)
    return weight_view, out_view
