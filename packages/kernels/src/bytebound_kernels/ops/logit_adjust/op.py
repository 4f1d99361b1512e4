"""The checked front of the logit adjustment kernel (csrc/logit_adjust.h)."""

from typing import Any, TypeVar

from bytebound_kernels import _native
from bytebound_kernels._check import common_device, no_overlap, packed_view, row_stride
from bytebound_kernels._device import require_cuda
from bytebound_kernels._stream import stream_handle
from bytebound_kernels._tensor import TensorView, view
from bytebound_kernels.errors import (
    InvalidArgumentError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
)

__all__ = ["logit_adjust"]

_OP = "logit_adjust"
_MAX_ROWS = 32  # those of a cycle
_MAX_N = 2**30
_SETTINGS = 4

TensorT = TypeVar("TensorT")


def logit_adjust(
    logits: Any,
    settings: Any,
    *,
    out: TensorT,
    seen: Any = None,
    counts: Any = None,
    generated: Any = None,
    drafts: Any = None,
    bias_ids: Any = None,
    bias_values: Any = None,
    banned_ids: Any = None,
    end_ids: Any = None,
    allow_minus_infinity: bool = False,
    stream: Any = None,
) -> TensorT:
    """Add biases, apply penalties and mask ids in rows of logits, on the GPU.

    Formula, in this order for row r:
        x[bias_ids[i]] += bias_values[i]                            float32
        x = x / repetition where x > 0 else x * repetition          where seen; float64
        x = x - presence where counts > 0                           float64
        x = x - counts * frequency                                  product in float32
        x = x bounded to -1e30 .. 1e30, rounded to float32          if there is any penalty
        x[banned_ids] = -infinity
        x[end_ids] = -infinity while generated + r < min_tokens

    Row r of a speculative cycle sees the drafts in front of it, drafts[0 .. r-1], as if they were
    in seen and counts already. Everything that changes from token to token, and the settings, are
    in device memory, so that one captured graph serves all requests. An id outside 0 .. N-1 in a
    list is skipped: pad the lists with -1.

    Args:
        logits: float32 [R, N], on a CUDA device, R up to 32; rows at any one distance.
        settings: float64 [4]: repetition penalty, presence penalty, frequency penalty, min_tokens.
            1, 0, 0, 0 change nothing.
        out: float32 [R, N], rows at any one distance of N or more; it may be logits itself.
        seen: uint8 [N], 1 for every id of prompt and completion; None: none was seen.
        counts: int32 [N], occurrences in the completion; None: none. Exact up to 2^24.
        generated: int32 [1], the ids of the completion so far; None: 0.
        drafts: int32 [R - 1]; None: no row sees a draft.
        bias_ids: int32 [any], distinct; None: no bias.
        bias_values: float32, the shape of bias_ids.
        banned_ids: int32 [any], or None.
        end_ids: int32 [any], or None.
        allow_minus_infinity: leave -infinity in logits as it is: an id that a draft cannot propose.
        stream: a stream handle as an integer, or a PyTorch or CuPy stream. None: the stream that is
            current in the framework of out.

    Returns:
        out. The kernel is enqueued, not awaited.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        UnsupportedTensorError: an argument is no tensor.
        UnsupportedDtypeError: a dtype has no kernel.
        UnsupportedShapeError: a shape does not fit.
        UnsupportedLayoutError: strides that no row distance describes, a tensor that is not
            contiguous, or out overlaps an input.
        UnsupportedDeviceError: host memory, or more than one device.
        InvalidArgumentError: a bias without values or the reverse; stream.
        CudaError: the launch failed.

    Numerics: as the formula says, each operation rounded to nearest. A logit that is NaN or
    infinite becomes NaN and is not masked, so that argmax and sample answer with -1.

    Source: csrc/logit_adjust.cu.
    """
    x = view(_OP, "logits", logits, ("float32",))
    if len(x.shape) != 2 or x.shape[0] > _MAX_ROWS or not 1 <= x.shape[1] <= _MAX_N:
        raise UnsupportedShapeError(
            f"{_OP}: logits has shape {x.shape}; expected [R, N] with R up to {_MAX_ROWS} and N "
            f"from 1 to {_MAX_N}"
        )
    rows, n = x.shape
    if (bias_ids is None) != (bias_values is None):
        raise InvalidArgumentError(
            f"{_OP}: got one of bias_ids and bias_values; expected both or neither"
        )
    named = {"settings": packed_view(_OP, "settings", settings, "float64", (_SETTINGS,))}
    for name, tensor, dtype, shape in (
        ("seen", seen, "uint8", (n,)),
        ("counts", counts, "int32", (n,)),
        ("generated", generated, "int32", (1,)),
        ("drafts", drafts, "int32", (max(rows - 1, 0),)),
        ("bias_ids", bias_ids, "int32", (None,)),
        ("bias_values", bias_values, "float32", (None,)),
        ("banned_ids", banned_ids, "int32", (None,)),
        ("end_ids", end_ids, "int32", (None,)),
    ):
        if tensor is not None:
            named[name] = packed_view(_OP, name, tensor, dtype, shape)
    if bias_ids is not None and named["bias_ids"].shape != named["bias_values"].shape:
        raise UnsupportedShapeError(
            f"{_OP}: bias_values has shape {named['bias_values'].shape}; expected "
            f"{named['bias_ids'].shape}, the shape of bias_ids"
        )
    x_row_stride = row_stride(_OP, x)
    o = view(_OP, "out", out, ("float32",))
    _check_out(o, x, x_row_stride)
    for tensor_view in named.values():
        no_overlap(_OP, o, tensor_view)

    require_cuda(_OP)
    device = common_device(_OP, x, o, *named.values())
    require_cuda(_OP, device)

    def pointer(name: str) -> int:
        return named[name].pointer if name in named else 0

    def size(name: str) -> int:
        return named[name].shape[0] if name in named else 0

    _native.logit_adjust(
        x.pointer,
        o.pointer,
        pointer("settings"),
        pointer("seen"),
        pointer("counts"),
        pointer("generated"),
        pointer("drafts"),
        pointer("bias_ids"),
        pointer("bias_values"),
        pointer("banned_ids"),
        pointer("end_ids"),
        rows=rows,
        n=n,
        row_stride=x_row_stride,
        out_row_stride=row_stride(_OP, o),
        num_bias=size("bias_ids"),
        num_banned=size("banned_ids"),
        num_end=size("end_ids"),
        allow_minus_infinity=bool(allow_minus_infinity),
        device=device,
        stream=stream_handle(_OP, stream, out, device),
    )
    return out


def _check_out(out: TensorView, x: TensorView, x_row_stride: int) -> None:
    rows, n = x.shape
    if out.shape != x.shape:
        raise UnsupportedShapeError(
            f"{_OP}: out has shape {out.shape}; expected {x.shape}, the shape of logits"
        )
    out_row_stride = row_stride(_OP, out)
    if out_row_stride < n and rows > 1:
        raise UnsupportedLayoutError(
            f"{_OP}: out has rows of {n} elements at a distance of {out_row_stride}, so they "
            f"overlap; expected a distance of {n} or more"
        )
    same_stride = out_row_stride == x_row_stride
    if not (same_stride and out.pointer == x.pointer):
        no_overlap(_OP, out, x, common_row_stride=x_row_stride if same_stride else 0)
