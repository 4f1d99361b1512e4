"""The checked front of the kernel that moves conv windows and pending rows on (csrc/gdn_keep.h)."""

from typing import Any

from bytebound_kernels import _native
from bytebound_kernels._check import common_device, no_overlap, packed_view
from bytebound_kernels._device import require_cuda
from bytebound_kernels._stream import stream_handle
from bytebound_kernels._tensor import TensorView, view
from bytebound_kernels.errors import UnsupportedLayoutError, UnsupportedShapeError

__all__ = ["gdn_keep"]

_OP = "gdn_keep"
_DTYPES = ("float16", "bfloat16")
_MAX_ROWS = 8
_MAX_LAYERS = 65535  # of a grid
_PAIR_BYTES = 4  # the kernel moves two channels at once
_QUAD_BYTES = 16  # and four updates


def gdn_keep(
    projected: Any,
    updates: Any,
    *,
    pending_qkv: Any,
    pending_updates: Any,
    windows: Any,
    num_accepted: Any,
    stream: Any = None,
) -> None:
    """Take the accepted pending rows into the conv windows, then make this pass's rows pending.

    Formula, for each layer and channel:
        window <- the last 3 of (window, the first num_accepted pending rows)
        pending[r] <- projected[r], and the updates likewise, r < R

    The recurrent states have taken in the accepted rows already: ``weight_stream`` does that, as
    ``gdn_step`` does, which moves its window itself.

    Args:
        projected: [R, L, C] of this pass, R from 1 to 8, float16 or bfloat16: the channels before
            the convolution. As with the other tensors of rows, the elements of a row of a layer are
            adjacent and rows and layers lie at any distance, all multiples of 4 bytes.
        updates: [R, L, W] float32 of this pass, W a multiple of 4: see ``GdnPending``. Rows and
            layers lie at multiples of 16 bytes.
        pending_qkv: [8, L, C], written in its first R rows.
        pending_updates: [8, L, W], likewise.
        windows: [L, C, 3] contiguous, oldest input first, written.
        num_accepted: int32 of one element, on the device; values beyond 0 and 8 count as the
            nearest of the two.
        stream: a stream handle as an integer, or a PyTorch or CuPy stream. None: the stream that is
            current in the framework of projected.

    The kernel is enqueued, not awaited.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        UnsupportedTensorError: an argument is no tensor.
        UnsupportedDtypeError: a dtype has no kernel, or two do not fit.
        UnsupportedShapeError: a shape does not fit.
        UnsupportedLayoutError: strides, alignment, or tensors that overlap.
        UnsupportedDeviceError: host memory, or more than one device.
        CudaError: the launch failed.

    Numerics: bits are moved, nothing is computed.

    Source: csrc/gdn_keep.cu.
    """
    projected_view = view(_OP, "projected", projected, _DTYPES)
    dtype = projected_view.dtype
    if len(projected_view.shape) != 3 or not 1 <= projected_view.shape[0] <= _MAX_ROWS:
        raise UnsupportedShapeError(
            f"{_OP}: projected has shape {projected_view.shape}; expected [R, L, C] with R from 1 "
            f"to {_MAX_ROWS}"
        )
    rows, layers, channels = projected_view.shape
    if not 1 <= layers <= _MAX_LAYERS:
        raise UnsupportedShapeError(f"{_OP}: L is {layers}; expected 1 to {_MAX_LAYERS}")
    updates_view = view(_OP, "updates", updates, ("float32",))
    if updates_view.shape[:2] != (rows, layers) or len(updates_view.shape) != 3:
        raise UnsupportedShapeError(
            f"{_OP}: updates has shape {updates_view.shape}; expected ({rows}, {layers}, any)"
        )
    width = updates_view.shape[2]
    kept = view(_OP, "pending_qkv", pending_qkv, (dtype,))
    kept_updates = view(_OP, "pending_updates", pending_updates, ("float32",))
    for tensor, size in ((kept, channels), (kept_updates, width)):
        if tensor.shape != (_MAX_ROWS, layers, size):
            raise UnsupportedShapeError(
                f"{_OP}: {tensor.name} has shape {tensor.shape}; expected "
                f"({_MAX_ROWS}, {layers}, {size})"
            )
    window = packed_view(_OP, "windows", windows, dtype, (layers, channels, 3))
    accepted = packed_view(_OP, "num_accepted", num_accepted, "int32", (1,))
    if channels % 2 or width % 4 or not channels or not width:
        raise UnsupportedShapeError(
            f"{_OP}: got {channels} channels and {width} updates; expected multiples of 2 and 4 "
            f"above 0"
        )
    strides = [
        _distances(tensor, unit)
        for tensor, unit in (
            (projected_view, _PAIR_BYTES),
            (updates_view, _QUAD_BYTES),
            (kept, _PAIR_BYTES),
            (kept_updates, _QUAD_BYTES),
        )
    ]
    _check_apart(kept)
    _check_apart(kept_updates)
    for written in (kept, kept_updates, window):
        for other in (projected_view, updates_view, accepted, kept, kept_updates, window):
            if other is not written:
                no_overlap(_OP, written, other)

    require_cuda(_OP)
    device = common_device(_OP, projected_view, updates_view, kept, kept_updates, window, accepted)
    require_cuda(_OP, device)
    _native.gdn_keep(
        projected_view.pointer,
        updates_view.pointer,
        kept.pointer,
        kept_updates.pointer,
        window.pointer,
        accepted.pointer,
        projected_strides=strides[0],
        updates_strides=strides[1],
        pending_strides=strides[2],
        pending_updates_strides=strides[3],
        layers=layers,
        channels=channels,
        width=width,
        rows=rows,
        device=device,
        stream=stream_handle(_OP, stream, projected, device),
    )


def _distances(tensor: TensorView, unit: int) -> tuple[int, int]:
    """From row to row and from layer to layer, in elements."""
    row, layer, element = tensor.strides
    fits = not any(stride * tensor.itemsize % unit for stride in (row, layer))
    if element != 1 or tensor.pointer % unit or not fits or min(row, layer) < 0:
        raise UnsupportedLayoutError(
            f"{_OP}: {tensor.name} starts at {tensor.pointer:#x} with strides {tensor.strides}; "
            f"expected adjacent elements, and all else at multiples of {unit} bytes"
        )
    return row, layer


def _check_apart(tensor: TensorView) -> None:
    """Refuse rows that are written and share memory."""
    counts, (*strides, _) = tensor.shape, tensor.strides
    needed = counts[2]
    for stride, count in sorted(zip(strides, counts[:2], strict=True)):
        if count > 1 and stride < needed:
            raise UnsupportedLayoutError(
                f"{_OP}: {tensor.name} of shape {tensor.shape} has strides {tensor.strides}, so "
                f"that rows overlap; expected separate ones"
            )
        needed += (count - 1) * stride
