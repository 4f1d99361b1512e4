"""The checked front of the weight stream (csrc/weight_stream.h)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from bytebound_kernels import _native
from bytebound_kernels._check import (
    check_integer,
    check_kind,
    common_device,
    row_stride,
    workspace_view,
)
from bytebound_kernels._device import device_info, require_cuda
from bytebound_kernels._matvec import EPILOGUES, check_scale
from bytebound_kernels._stream import stream_handle
from bytebound_kernels._tensor import DTYPE_CODES, TensorView, view
from bytebound_kernels.errors import InvalidArgumentError
from bytebound_kernels.ops.gdn_step import GdnRows, GdnState, GdnWeights
from bytebound_kernels.ops.w4_matvec import PackedW4

__all__ = [
    "StreamGatedDelta",
    "StreamGates",
    "StreamNorm",
    "StreamOp",
    "StreamProduct",
    "StreamReplay",
    "weight_stream",
    "weight_stream_slots",
    "weight_stream_workspace_bytes",
]

_OP = "weight_stream"
MAX_ROWS = 8


class StreamNorm(NamedTuple):
    """RMSNorm of a residual; the products behind it multiply the result.

    Attributes:
        x: [8, D] float32.
        weight: [D] float32, the factor is 1 + weight.
        out: [8, D] float16, or None where only the products want it.
        eps: 0 or more.
    """

    x: Any
    weight: Any
    out: Any = None
    eps: float = 1e-6


class StreamGates(NamedTuple):
    """A small 16-bit matrix times the rows of the norm before, as of ``rms_norm_project``.

    Attributes:
        weight: [N, D] float16.
        out: [8, N] float16.
    """

    weight: Any
    out: Any


class StreamProduct(NamedTuple):
    """A product as of ``w4_matvec``.

    Attributes:
        weight: PackedW4.
        out: [8, N] float16 or float32.
        x: [8, K] float16; None: the rows of the norm before.
        residual: [8, N] float32 that is complete when the op begins: the input of an earlier norm.
        scale: as in ``w4_matvec``.
    """

    weight: Any
    out: Any
    x: Any = None
    residual: Any = None
    scale: float = 1.0


class StreamGatedDelta(NamedTuple):
    """A Gated DeltaNet step as of ``gdn_step``, behind the ``StreamReplay`` of its pending rows.

    Attributes:
        rows: of this pass, float16, each [8, ...].
        z: [8, HV * V].
        weights, state, pending, num_accepted, eps: as in ``gdn_step``.
        out: [8, HV * V] float16.
    """

    rows: GdnRows
    z: Any
    weights: GdnWeights
    state: GdnState
    pending: GdnRows
    num_accepted: Any
    out: Any
    eps: float = 1e-6


class StreamReplay(NamedTuple):
    """Takes the accepted pending rows of a Gated DeltaNet step into its state; not into its window.

    It needs nothing of this pass: placed before a norm, it runs while blocks wait for its rows.

    Attributes:
        delta: the step.
    """

    delta: StreamGatedDelta


StreamOp = StreamNorm | StreamGates | StreamProduct | StreamReplay | StreamGatedDelta


def weight_stream_workspace_bytes(device: int = 0) -> int:
    """Return the bytes of workspace; fill it with 0xFF once, each call leaves it so."""
    sms = device_info(_OP, device).num_sms
    return int(_native.weight_stream_workspace_bytes(sms))


def weight_stream_slots(rows: int, d: int, *, asymmetric: bool, device: int = 0) -> int:
    """Return how many items of weights a warp has under way; 0: the device cannot run it."""
    return int(_native.weight_stream_slots(rows, d, asymmetric, device))


def weight_stream(
    ops: Sequence[StreamOp],
    *,
    rows: int,
    workspace: Any,
    clock: Any = None,
    stream: Any = None,
) -> None:
    """Run the ops in order on the first ``rows`` rows of their tensors, in one kernel."""
    if not 1 <= check_integer(_OP, "rows", rows) <= MAX_ROWS:
        raise InvalidArgumentError(f"{_OP}: rows is {rows}; expected 1 to {MAX_ROWS}")
    require_cuda(_OP)
    device = common_device(_OP, workspace_view(_OP, workspace, 0))
    require_cuda(_OP, device)
    scratch = workspace_view(_OP, workspace, weight_stream_workspace_bytes(device))
    _native.weight_stream(
        [_native_op(op) for op in ops],
        rows=rows,
        workspace=scratch.pointer,
        clock=0 if clock is None else view(_OP, "clock", clock).pointer,
        device=device,
        stream=stream_handle(_OP, stream, workspace, device),
    )


def _native_op(op: StreamOp) -> Any:
    if isinstance(op, StreamNorm):
        return _norm(op)
    if isinstance(op, StreamGates):
        return _gates(op)
    if isinstance(op, StreamProduct):
        return _product(op)
    if isinstance(op, StreamReplay):
        return _gated_delta(op.delta, replay=True)
    return _gated_delta(op, replay=False)


def _optional(name: str, tensor: Any) -> tuple[int, int]:
    """Pointer and row distance; zeros where there is no tensor."""
    if tensor is None:
        return 0, 0
    found = view(_OP, name, tensor)
    return found.pointer, row_stride(_OP, found)


def _norm(op: StreamNorm) -> Any:
    x = view(_OP, "x", op.x, ("float32",))
    out, out_stride = _optional("out", op.out)
    return _native.stream_norm(
        x=x.pointer,
        weight=view(_OP, "weight", op.weight, ("float32",)).pointer,
        out=out,
        x_row_stride=row_stride(_OP, x),
        out_row_stride=out_stride,
        d=x.shape[1],
        eps=op.eps,
    )


def _gates(op: StreamGates) -> Any:
    weight = view(_OP, "weight", op.weight, ("float16",))
    out = view(_OP, "out", op.out, ("float16",))
    return _native.stream_gates(
        weight=weight.pointer,
        out=out.pointer,
        weight_row_stride=row_stride(_OP, weight),
        out_row_stride=row_stride(_OP, out),
        n=weight.shape[0],
        d=weight.shape[1],
    )


def _product(op: StreamProduct) -> Any:
    out = view(_OP, "out", op.out, ("float16", "float32"))
    x, x_stride = _optional("x", op.x)
    residual, residual_stride = _optional("residual", op.residual)
    check_kind(_OP, "weight", op.weight, PackedW4)
    epilogue = "store" if op.residual is None else "add_residual"
    return _native.stream_product(
        weight=op.weight.check(_OP).pointer,
        x=x,
        out=out.pointer,
        residual=residual,
        x_row_stride=x_stride,
        out_row_stride=row_stride(_OP, out),
        residual_row_stride=residual_stride,
        n=op.weight.n,
        k=op.weight.k,
        scale_dtype=DTYPE_CODES[op.weight.scale_dtype],
        asymmetric=op.weight.asymmetric,
        float_out=out.dtype == "float32",
        epilogue=EPILOGUES["swiglu" if op.weight.interleaved else epilogue],
        scale=check_scale(_OP, op.scale),
    )


def _rows(name: str, rows: GdnRows) -> tuple[TensorView, TensorView, TensorView]:
    qkv, a, b = (
        view(_OP, f"{name}.{field}", tensor, ("float16",))
        for field, tensor in zip(rows._fields, rows, strict=True)
    )
    return qkv, a, b


def _gated_delta(op: StreamGatedDelta, *, replay: bool) -> Any:
    current, pending = _rows("rows", op.rows), _rows("pending", op.pending)
    state = view(_OP, "state.recurrent", op.state.recurrent, ("float32",))
    hv = state.shape[0]
    z = view(_OP, "z", op.z, ("float16",))
    out = view(_OP, "out", op.out, ("float16",))
    keys = current[0].shape[1] - z.shape[1]
    return _native.stream_gated_delta(
        replay=replay,
        current=tuple(one.pointer for one in current),
        pending=tuple(one.pointer for one in pending),
        z=z.pointer,
        out=out.pointer,
        num_accepted=view(_OP, "num_accepted", op.num_accepted, ("int32",)).pointer,
        conv_weight=view(_OP, "weights.conv", op.weights.conv, ("float16",)).pointer,
        a_log=view(_OP, "weights.a_log", op.weights.a_log, ("float32",)).pointer,
        dt_bias=view(_OP, "weights.dt_bias", op.weights.dt_bias, ("float32",)).pointer,
        norm_weight=view(_OP, "weights.norm", op.weights.norm, ("float32",)).pointer,
        conv_window=view(_OP, "state.conv_window", op.state.conv_window, ("float16",)).pointer,
        state=state.pointer,
        pending_rows=pending[0].shape[0],
        row_strides=tuple(row_stride(_OP, one) for one in current),
        pending_row_strides=tuple(row_stride(_OP, one) for one in pending),
        z_row_stride=row_stride(_OP, z),
        out_row_stride=row_stride(_OP, out),
        h=keys // (2 * state.shape[1]),
        hv=hv,
        eps=op.eps,
    )
