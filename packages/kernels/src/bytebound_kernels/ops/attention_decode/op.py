"""The checked front of the attention decode kernels (csrc/attention_decode.h)."""

import math
from typing import Any, TypeVar

from bytebound_kernels import _native
from bytebound_kernels._check import (
    check_finite,
    check_integer,
    common_device,
    no_overlap,
    packed_view,
    row_stride,
    workspace_view,
)
from bytebound_kernels._device import require_cuda
from bytebound_kernels._stream import stream_handle
from bytebound_kernels._tensor import DTYPE_CODES, TensorView, view
from bytebound_kernels.errors import (
    InvalidArgumentError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
)

__all__ = ["attention_decode", "attention_decode_workspace_bytes"]

_OP = "attention_decode"
_DH = 256
_MAX_ROWS = 8
_MAX_HEADS = 1024
_MAX_POSITIONS = 2**20
_ACTIVATIONS = ("float16", "bfloat16")
_CACHES = ("float16", "bfloat16", "float8_e4m3fn")
_ALIGNMENT = 256  # bytes, of the parts of the workspace

TensorT = TypeVar("TensorT")


def _num_leaves(positions: int) -> int:
    """Count the fixed pieces of a context, as csrc/cuda/attention_leaf.cuh lays them out."""
    leaves, start, end, size = 0, 0, 2048, 64
    while positions > end:
        leaves += (end - start) // size
        start, end, size = end, 4 * end, 2 * size
    return leaves + -(-(positions - start) // size)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def attention_decode_workspace_bytes(rows: int, num_heads: int, max_positions: int) -> int:
    """Return the bytes of workspace for calls of up to so many rows.

    Args:
        rows: R, 1 to 8.
        num_heads: NH.
        max_positions: S of the cache, 1 to 2^20.

    Raises:
        InvalidArgumentError: a number is out of its range.
    """
    counts = []
    for name, value, limit in (
        ("rows", rows, _MAX_ROWS),
        ("num_heads", num_heads, _MAX_HEADS),
        ("max_positions", max_positions, _MAX_POSITIONS),
    ):
        counts.append(check_integer("attention_decode_workspace_bytes", name, value, 1))
        if counts[-1] > limit:
            raise InvalidArgumentError(
                f"attention_decode_workspace_bytes: {name} is {value}; expected 1 to {limit}"
            )
    rows, num_heads, max_positions = counts
    vectors = rows * num_heads
    pieces = vectors * _num_leaves(max_positions)
    return _aligned(pieces * 8) + pieces * _DH * 4


def attention_decode(
    q_gate: Any,
    k: Any,
    v: Any,
    q_norm: Any,
    k_norm: Any,
    inv_freq: Any,
    position: Any,
    k_cache: Any,
    v_cache: Any,
    *,
    out: TensorT,
    workspace: Any,
    k_scale: Any = None,
    v_scale: Any = None,
    eps: float = 1e-6,
    scale: float = _DH**-0.5,
    stream: Any = None,
) -> TensorT:
    """Append up to 8 consecutive rows to a cache and attend to it, with a gate, on the GPU.

    Formula, for row r at position p + r, query head h and its kv head g = h * NKV // NH:
        k_cache[g, p + r] = turn(norm(k[r, g]) * (1 + k_norm), p + r)
        v_cache[g, p + r] = v[r, g]
        q = turn(norm(q_gate[r, h, 0]) * (1 + q_norm), p + r)
        w = softmax(q . k_cache[g, 0 .. p + r] * scale)
        out[r, h] = w . v_cache[g, 0 .. p + r] * sigmoid(q_gate[r, h, 1])
    norm is x * rsqrt(mean(x^2) + eps) over the 256 dims of a head; turn rotates dims i and
    i + rotary_dim / 2 by the angle position * inv_freq[i].

    Args:
        q_gate: [R, NH * 2 * DH], R from 1 to 8, DH = 256, float16 or bfloat16, on a CUDA device:
            per head the query and then the gate. Rows may lie at any one distance, here and in k, v
            and out, as slices of one fused projection do.
        k: [R, NKV * DH], the dtype of q_gate; NH is a multiple of NKV.
        v: [R, NKV * DH], likewise.
        q_norm: [DH], the dtype of q_gate or float32: the stored w, to which 1 is added here.
        k_norm: [DH], the dtype of q_norm.
        inv_freq: float32 [rotary_dim / 2], a multiple of 8 up to 128. Pass the model's own numbers:
            far out, another rounding of them is another angle.
        position: int32 [1], p, in device memory: it is read when the kernel runs, so that one
            captured graph serves every position. Where p < 0 or p + R > S the cache stays as it is
            and out becomes NaN.
        k_cache: [NKV, S, DH], S up to 2^20; float16, bfloat16 or float8_e4m3fn. The positions of a
            head are contiguous and everything is aligned to 16 bytes. What lies beyond p + R does
            not matter. Rows that are rejected later are overwritten by a call with a smaller p.
        v_cache: as k_cache.
        out: [R, NH * DH], the dtype of q_gate.
        workspace: uint8, attention_decode_workspace_bytes(R, NH, S) or more, aligned to 16 bytes.
            Its contents need not be set or kept. Calls that may run at the same time need one each.
        k_scale: float32 [NKV, S] with a float8 cache, else None: max |x| / 448 of each key. Heads
            are aligned to 16 bytes too, so S is a multiple of 4 where they are packed.
        v_scale: likewise of each value.
        eps: of the two norms, 0 or more.
        scale: of the scores.
        stream: a stream handle as an integer, or a PyTorch or CuPy stream. None: the stream that is
            current in the framework of q_gate.

    Returns:
        out. Two kernels are enqueued, not awaited.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        UnsupportedTensorError: an argument is no tensor.
        UnsupportedDtypeError: a dtype, or a combination, has no kernel.
        UnsupportedShapeError: a shape does not fit, such as another head dim than 256, or the
            workspace is too small.
        UnsupportedLayoutError: strides that cannot be expressed, a cache that is not aligned, or a
            result that overlaps another argument.
        UnsupportedDeviceError: host memory, or more than one device.
        InvalidArgumentError: eps, scale or stream, or scales without a float8 cache.
        CudaError: the launch failed.

    Numerics: products on tensor cores in the dtype of the cache (float16 with a float8 cache),
    everything else in float32; the softmax weights are rounded to that dtype too. The positions
    are cut into pieces at fixed places and added in a fixed order, so a row has the same bits
    whether it comes alone or among others. Against the reference in float64 the relative RMS error
    stays below 1e-3 with float16 rows and a float16 or float8 cache, and below 4e-3 where bfloat16
    has a part. What is not finite in a row stays in the rows that see it.

    A float8 cache has a float32 scale for each head and position, because a later token must not
    change an earlier one (so no scale over positions), because heads differ in size, and because a
    float16 would lose digits for small values to save 0.8 % of the bytes. With it values may reach
    1e5; below 1e-4 they lose precision. One number that is not finite makes its whole key or value
    so.

    Source: csrc/attention_decode.cu.
    """
    q_view = view(_OP, "q_gate", q_gate, _ACTIVATIONS)
    if len(q_view.shape) != 2 or not 1 <= q_view.shape[0] <= _MAX_ROWS:
        raise UnsupportedShapeError(
            f"{_OP}: q_gate has shape {q_view.shape}; expected [R, NH * 2 * {_DH}] with R from 1 "
            f"to {_MAX_ROWS}"
        )
    rows, width = q_view.shape
    q_gate_row_stride = row_stride(_OP, q_view)
    num_heads = width // (2 * _DH)
    if width % (2 * _DH) or not 1 <= num_heads <= _MAX_HEADS:
        raise UnsupportedShapeError(
            f"{_OP}: q_gate has rows of {width}; expected NH * 2 * {_DH}, which is a query and a "
            f"gate of head dim {_DH} for each of up to {_MAX_HEADS} heads"
        )
    k_cache_view = _cache(view(_OP, "k_cache", k_cache, _CACHES))
    v_cache_view = _cache(view(_OP, "v_cache", v_cache, _CACHES))
    _same(v_cache_view, k_cache_view)
    num_kv_heads, max_positions, _ = k_cache_view.shape
    if num_heads % num_kv_heads:
        raise UnsupportedShapeError(
            f"{_OP}: q_gate has {num_heads} heads and k_cache {num_kv_heads}; expected a multiple"
        )
    if max_positions < rows:
        raise UnsupportedShapeError(
            f"{_OP}: k_cache has {max_positions} positions; expected at least the {rows} rows"
        )
    k_view, v_view = (
        _rows(view(_OP, name, tensor, (q_view.dtype,)), (rows, num_kv_heads * _DH))
        for name, tensor in (("k", k), ("v", v))
    )
    q_norm_view, k_norm_view = _norms(q_view, q_norm, k_norm)
    inv_freq_view = packed_view(_OP, "inv_freq", inv_freq, "float32", (None,))
    if inv_freq_view.shape[0] % 8 or not 8 <= inv_freq_view.shape[0] <= _DH // 2:
        raise UnsupportedShapeError(
            f"{_OP}: inv_freq has shape {inv_freq_view.shape}; expected half of the dims that "
            f"turn, a multiple of 8 up to {_DH // 2}"
        )
    position_view = packed_view(_OP, "position", position, "int32", (1,))
    scales = _scales(k_cache_view, k_scale, v_scale)
    check_finite(_OP, "eps", eps, not_negative=True)
    check_finite(_OP, "scale", scale)
    workspace_bytes = attention_decode_workspace_bytes(rows, num_heads, max_positions)
    workspace_part = workspace_view(_OP, workspace, workspace_bytes)
    read = [q_view, k_view, v_view, q_norm_view, k_norm_view, inv_freq_view, position_view]
    out_view = _rows(view(_OP, "out", out, (q_view.dtype,)), (rows, num_heads * _DH))
    out_row_stride = row_stride(_OP, out_view)
    if rows > 1 and out_row_stride < num_heads * _DH:
        raise UnsupportedLayoutError(
            f"{_OP}: out has rows at a distance of {out_row_stride}, so they overlap; expected "
            f"{num_heads * _DH} or more"
        )
    written = [out_view, k_cache_view, v_cache_view, *scales, workspace_part]
    _apart(written, read)

    require_cuda(_OP)
    device = common_device(_OP, *read, *written)
    require_cuda(_OP, device)

    k_scale_view, v_scale_view = scales if scales else (None, None)
    _native.attention_decode(
        q_view.pointer,
        k_view.pointer,
        v_view.pointer,
        q_norm_view.pointer,
        k_norm_view.pointer,
        inv_freq_view.pointer,
        position_view.pointer,
        k_cache_view.pointer,
        v_cache_view.pointer,
        0 if k_scale_view is None else k_scale_view.pointer,
        0 if v_scale_view is None else v_scale_view.pointer,
        workspace_part.pointer,
        out_view.pointer,
        rows=rows,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        max_positions=max_positions,
        rotary_dim=2 * inv_freq_view.shape[0],
        q_gate_row_stride=q_gate_row_stride,
        k_row_stride=row_stride(_OP, k_view),
        v_row_stride=row_stride(_OP, v_view),
        out_row_stride=out_row_stride,
        cache_head_stride=_head_stride(k_cache_view),
        scale_head_stride=0 if k_scale_view is None else _head_stride(k_scale_view),
        x_dtype=DTYPE_CODES[q_view.dtype],
        norm_dtype=DTYPE_CODES[q_norm_view.dtype],
        cache_dtype=DTYPE_CODES[k_cache_view.dtype],
        eps=eps,
        scale=scale,
        device=device,
        stream=stream_handle(_OP, stream, q_gate, device),
    )
    return out


def _rows(tensor: TensorView, shape: tuple[int, int]) -> TensorView:
    """Check the shape of an activation and that one distance describes its rows."""
    if tensor.shape != shape:
        raise UnsupportedShapeError(
            f"{_OP}: {tensor.name} has shape {tensor.shape}; expected {shape}"
        )
    row_stride(_OP, tensor)
    return tensor


def _head_stride(tensor: TensorView) -> int:
    """Return the elements from kv head to kv head of a cache or of its scales."""
    # Of a single head it does not matter: one that is aligned.
    packed = -(-math.prod(tensor.shape[1:]) // 4) * 4
    return tensor.strides[0] if tensor.shape[0] > 1 else packed


def _cache(tensor: TensorView) -> TensorView:
    shape = tensor.shape
    fits = len(shape) == 3 and shape[0] >= 1 and 1 <= shape[1] <= _MAX_POSITIONS
    if not fits or shape[2] != _DH:
        raise UnsupportedShapeError(
            f"{_OP}: {tensor.name} has shape {shape}; expected [NKV, S, {_DH}] with S up to "
            f"{_MAX_POSITIONS}"
        )
    positions_packed = shape[1] == 1 or tensor.strides[1] == _DH
    if tensor.strides[2] != 1 or not positions_packed or _head_stride(tensor) < shape[1] * _DH:
        raise UnsupportedLayoutError(
            f"{_OP}: {tensor.name} of shape {shape} has strides {tensor.strides}; expected the "
            f"positions of a head contiguous, and heads that do not overlap"
        )
    _aligned_to_16(tensor)
    return tensor


def _aligned_to_16(tensor: TensorView) -> None:
    for what, num_bytes in (
        ("starts at", tensor.pointer),
        ("has heads at a distance of", _head_stride(tensor) * tensor.itemsize),
    ):
        if num_bytes % 16:
            raise UnsupportedLayoutError(
                f"{_OP}: {tensor.name} {what} {num_bytes} bytes; expected a multiple of 16"
            )


def _same(tensor: TensorView, other: TensorView) -> None:
    """Check that a tensor is like its sibling."""
    if tensor.dtype != other.dtype:
        raise UnsupportedDtypeError(
            f"{_OP}: {tensor.name} has dtype {tensor.dtype}; expected {other.dtype}, as "
            f"{other.name}"
        )
    if tensor.shape != other.shape:
        raise UnsupportedShapeError(
            f"{_OP}: {tensor.name} has shape {tensor.shape}; expected {other.shape}, as "
            f"{other.name}"
        )
    if _head_stride(tensor) != _head_stride(other):
        raise UnsupportedLayoutError(
            f"{_OP}: {tensor.name} has strides {tensor.strides}; expected {other.strides}, as "
            f"{other.name}"
        )


def _norms(q_gate: TensorView, q_norm: Any, k_norm: Any) -> tuple[TensorView, TensorView]:
    first = view(_OP, "q_norm", q_norm, (q_gate.dtype, "float32"))
    return (
        packed_view(_OP, "q_norm", q_norm, first.dtype, (_DH,)),
        packed_view(_OP, "k_norm", k_norm, first.dtype, (_DH,)),
    )


def _scales(k_cache: TensorView, k_scale: Any, v_scale: Any) -> tuple[TensorView, ...]:
    """Check the scales of a float8 cache; return none or both."""
    wanted = k_cache.dtype == "float8_e4m3fn"
    for name, tensor in (("k_scale", k_scale), ("v_scale", v_scale)):
        if (tensor is not None) != wanted:
            raise InvalidArgumentError(
                f"{_OP}: {name} is {'given' if tensor is not None else 'missing'} with a cache of "
                f"{k_cache.dtype}; expected scales with float8_e4m3fn and only then"
            )
    if not wanted:
        return ()
    shape = k_cache.shape[:2]
    views = tuple(
        view(_OP, name, tensor, ("float32",))
        for name, tensor in (("k_scale", k_scale), ("v_scale", v_scale))
    )
    for tensor in views:
        if tensor.shape != shape:
            raise UnsupportedShapeError(
                f"{_OP}: {tensor.name} has shape {tensor.shape}; expected {shape}, one for each "
                f"head and position"
            )
        if (shape[1] > 1 and tensor.strides[1] != 1) or _head_stride(tensor) < shape[1]:
            raise UnsupportedLayoutError(
                f"{_OP}: {tensor.name} has strides {tensor.strides}; expected the positions of a "
                f"head contiguous, and heads that do not overlap"
            )
        _aligned_to_16(tensor)
    _same(views[1], views[0])
    return views


def _apart(written: list[TensorView], read: list[TensorView]) -> None:
    """Refuse results that share memory with each other or with what is read."""
    for i, result in enumerate(written):
        for other in (*read, *written[:i]):
            no_overlap(_OP, result, other)
