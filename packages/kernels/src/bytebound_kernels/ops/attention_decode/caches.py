"""What attention asks of a cache, its scales and its constants, in the kernel and in the stream."""

import math
from typing import Any

from bytebound_kernels._check import packed_view
from bytebound_kernels._tensor import TensorView, view
from bytebound_kernels.errors import (
    InvalidArgumentError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
)

__all__ = ["cache_views", "frequencies_view", "head_stride", "norm_views", "scale_views"]

_DH = 256
_MAX_POSITIONS = 2**20
_CACHES = ("float16", "bfloat16", "float8_e4m3fn")


def head_stride(tensor: TensorView) -> int:
    """Return the elements from kv head to kv head of a cache or of its scales."""
    # Of a single head it does not matter: one that is aligned.
    packed = -(-math.prod(tensor.shape[1:]) // 4) * 4
    return tensor.strides[0] if tensor.shape[0] > 1 else packed


def _cache(op: str, tensor: TensorView) -> TensorView:
    shape = tensor.shape
    fits = len(shape) == 3 and shape[0] >= 1 and 1 <= shape[1] <= _MAX_POSITIONS
    if not fits or shape[2] != _DH:
        raise UnsupportedShapeError(
            f"{op}: {tensor.name} has shape {shape}; expected [NKV, S, {_DH}] with S up to "
            f"{_MAX_POSITIONS}"
        )
    positions_packed = shape[1] == 1 or tensor.strides[1] == _DH
    if tensor.strides[2] != 1 or not positions_packed or head_stride(tensor) < shape[1] * _DH:
        raise UnsupportedLayoutError(
            f"{op}: {tensor.name} of shape {shape} has strides {tensor.strides}; expected the "
            f"positions of a head contiguous, and heads that do not overlap"
        )
    _aligned_to_16(op, tensor)
    return tensor


def _aligned_to_16(op: str, tensor: TensorView) -> None:
    for what, num_bytes in (
        ("starts at", tensor.pointer),
        ("has heads at a distance of", head_stride(tensor) * tensor.itemsize),
    ):
        if num_bytes % 16:
            raise UnsupportedLayoutError(
                f"{op}: {tensor.name} {what} {num_bytes} bytes; expected a multiple of 16"
            )


def _same(op: str, tensor: TensorView, other: TensorView) -> None:
    """Check that a tensor is like its sibling."""
    if tensor.dtype != other.dtype:
        raise UnsupportedDtypeError(
            f"{op}: {tensor.name} has dtype {tensor.dtype}; expected {other.dtype}, as {other.name}"
        )
    if tensor.shape != other.shape:
        raise UnsupportedShapeError(
            f"{op}: {tensor.name} has shape {tensor.shape}; expected {other.shape}, as {other.name}"
        )
    if head_stride(tensor) != head_stride(other):
        raise UnsupportedLayoutError(
            f"{op}: {tensor.name} has strides {tensor.strides}; expected {other.strides}, as "
            f"{other.name}"
        )


def cache_views(op: str, prefix: str, k_cache: Any, v_cache: Any) -> tuple[TensorView, TensorView]:
    """Check keys and values [NKV, S, DH]; ``prefix`` stands before their names."""
    k, v = (
        _cache(op, view(op, f"{prefix}{name}", tensor, _CACHES))
        for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache))
    )
    _same(op, v, k)
    return k, v


def norm_views(
    op: str, prefix: str, q_norm: Any, k_norm: Any, dtype: str
) -> tuple[TensorView, TensorView]:
    """Check the weights of the two norms, float32 or of the rows' dtype."""
    first = view(op, f"{prefix}q_norm", q_norm, (dtype, "float32"))
    return (
        packed_view(op, f"{prefix}q_norm", q_norm, first.dtype, (_DH,)),
        packed_view(op, f"{prefix}k_norm", k_norm, first.dtype, (_DH,)),
    )


def frequencies_view(op: str, prefix: str, inv_freq: Any) -> TensorView:
    """Check the frequencies of the rotary turn."""
    found = packed_view(op, f"{prefix}inv_freq", inv_freq, "float32", (None,))
    if found.shape[0] % 8 or not 8 <= found.shape[0] <= _DH // 2:
        raise UnsupportedShapeError(
            f"{op}: {found.name} has shape {found.shape}; expected half of the dims that turn, a "
            f"multiple of 8 up to {_DH // 2}"
        )
    return found


def scale_views(
    op: str, prefix: str, k_cache: TensorView, k_scale: Any, v_scale: Any
) -> tuple[TensorView, ...]:
    """Check the scales of a float8 cache; return none or both."""
    wanted = k_cache.dtype == "float8_e4m3fn"
    for name, tensor in (("k_scale", k_scale), ("v_scale", v_scale)):
        if (tensor is not None) != wanted:
            raise InvalidArgumentError(
                f"{op}: {prefix}{name} is {'given' if tensor is not None else 'missing'} with a "
                f"cache of {k_cache.dtype}; expected scales with float8_e4m3fn and only then"
            )
    if not wanted:
        return ()
    shape = k_cache.shape[:2]
    views = tuple(
        view(op, f"{prefix}{name}", tensor, ("float32",))
        for name, tensor in (("k_scale", k_scale), ("v_scale", v_scale))
    )
    for tensor in views:
        if tensor.shape != shape:
            raise UnsupportedShapeError(
                f"{op}: {tensor.name} has shape {tensor.shape}; expected {shape}, one for each "
                f"head and position"
            )
        if (shape[1] > 1 and tensor.strides[1] != 1) or head_stride(tensor) < shape[1]:
            raise UnsupportedLayoutError(
                f"{op}: {tensor.name} has strides {tensor.strides}; expected the positions of a "
                f"head contiguous, and heads that do not overlap"
            )
        _aligned_to_16(op, tensor)
    _same(op, views[1], views[0])
    return views
