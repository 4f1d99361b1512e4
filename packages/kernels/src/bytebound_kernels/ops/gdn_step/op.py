"""The checked front of the Gated DeltaNet step (csrc/gdn_step.h)."""

from typing import Any, NamedTuple

from bytebound_kernels import _native
from bytebound_kernels._check import (
    check_finite,
    check_integer,
    check_kind,
    common_device,
    no_overlap,
    packed_view,
    row_stride,
)
from bytebound_kernels._device import require_cuda
from bytebound_kernels._stream import stream_handle
from bytebound_kernels._tensor import DTYPE_CODES, TensorView, new_like, view
from bytebound_kernels.errors import (
    InvalidArgumentError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
)

__all__ = ["GdnPending", "GdnRows", "GdnState", "GdnWeights", "gdn_step", "gdn_updates_width"]

_OP = "gdn_step"
_DTYPES = ("float16", "bfloat16")
_HEAD_DIM = 128  # K and V
_MAX_ROWS = 8
_MAX_RATIO = 16  # value heads of one key head
_MAX_HEADS = 1 << 16
_PAIR_BYTES = 4  # the kernel reads and writes two elements at once
_QUAD_BYTES = 16  # four of the state, or all taps of two channels


class GdnRows(NamedTuple):
    """What the recurrence eats of one pass, as the projections leave it.

    Attributes:
        qkv: [R, C] of C = 2 H 128 + HV 128 channels, before the convolution.
        a: [R, HV], the input of the decay.
        b: [R, HV], the input of beta.
    """

    qkv: Any
    a: Any
    b: Any


class GdnPending(NamedTuple):
    """What a verify pass keeps of its rows for the next pass to replay, contiguous.

    A row then is ``S <- decay S + k delta^T``: no convolution, no norm and no sum is done twice.

    Attributes:
        qkv: [P, C] of the dtype of the rows, before the convolution: the next window.
        updates: [P, W] float32, W = ``gdn_updates_width(H, HV)``. A row is k [H, K] behind the
            convolution and not normalised, delta [HV, V], which is d times what normalises k, and
            decay [HV], in this order, filled up to whole units of 16 bytes.
    """

    qkv: Any
    updates: Any


class GdnWeights(NamedTuple):
    """The constants of a layer, contiguous.

    Attributes:
        conv: [C, 4] of the dtype of the rows, oldest tap first.
        a_log: [HV] float32.
        dt_bias: [HV] float32.
        norm: [V] float32, as stored: there is no 1 to add.
    """

    conv: Any
    a_log: Any
    dt_bias: Any
    norm: Any


class GdnState(NamedTuple):
    """The state of a layer, contiguous, written in place.

    Attributes:
        conv_window: [C, 3] of the dtype of the rows, the last inputs of each channel, oldest first.
        recurrent: [HV, K, V] float32.
    """

    conv_window: Any
    recurrent: Any


class _RowViews(NamedTuple):
    qkv: TensorView
    a: TensorView
    b: TensorView

    def pointers(self) -> tuple[int, int, int]:
        return self.qkv.pointer, self.a.pointer, self.b.pointer

    def strides(self) -> tuple[int, int, int]:
        return row_stride(_OP, self.qkv), row_stride(_OP, self.a), row_stride(_OP, self.b)


def gdn_updates_width(h: int, hv: int) -> int:
    """Return the floats of a row of ``GdnPending.updates`` for H key heads and HV value heads.

    Raises:
        InvalidArgumentError: one of them is no integer of 1 or more.
    """
    h = check_integer("gdn_updates_width", "h", h, 1)
    hv = check_integer("gdn_updates_width", "hv", hv, 1)
    return (h + hv) * _HEAD_DIM + -(-hv // 4) * 4


def gdn_step(
    rows: GdnRows,
    z: Any,
    weights: GdnWeights,
    state: GdnState,
    *,
    commit: bool,
    pending: GdnPending | None = None,
    num_accepted: Any = None,
    pending_rows: int | None = None,
    eps: float = 1e-6,
    out: Any = None,
    state_settled: bool = False,
    stream: Any = None,
) -> Any:
    """Take up to 8 rows through a Gated DeltaNet layer, from its projections to its gated norm.

    Formula, per row, with S [K, V] of each value head and its key head i // (HV / H):
        m = silu(causal_conv(window, qkv)); q, k, v = split(m)
        q = q * rsqrt(sum(q^2) + 1e-6) * K^-0.5;  k = k * rsqrt(sum(k^2) + 1e-6)
        decay = exp(-exp(a_log) * softplus(a + dt_bias));  beta = sigmoid(b)
        S <- decay * S;  d = beta * (v - S^T k);  S <- S + k d^T;  o = S^T q
        out = norm * o * rsqrt(mean(o^2) + eps) * silu(z)

    Three forms:
        step, ``commit=True``: state and window take in all rows.
        verify, ``commit=False``: state and window are read and not written.
        replay, ``commit=False`` with ``pending`` and ``num_accepted``: the first ``num_accepted``
            rows of the pass before are taken into state and window, the rows of this pass are
            verified upon that, and then take the place of the pending ones. One cycle of
            speculative decoding so reads and writes the state once. With 0 accepted rows state and
            window are not written. There may be no rows in ``rows``: then the replay is all that is
            done, and the pending rows stay.

    Args:
        rows: qkv [R, C], a and b [R, HV], R from 0 to 8, float16 or bfloat16, on a CUDA device.
            Like z and out they may be slices of wider tensors: the rows of each lie at one even
            distance. qkv, z and out start at a multiple of 4 bytes, and so does each of their rows.
        z: [R, HV * V], the dtype of qkv.
        weights: see GdnWeights; conv starts at a multiple of 16 bytes.
        state: see GdnState; conv_window starts at a multiple of 4 bytes, recurrent of 16.
        commit: whether state and window take in ``rows``.
        pending: see GdnPending, of P rows, 1 to 8 and no fewer than R; read, then written. updates
            start at a multiple of 16 bytes, qkv of 4.
        num_accepted: int32 of one element, on the device, so that a captured graph fits any count.
            Values beyond 0 and ``pending_rows`` count as the nearest of the two.
        pending_rows: how many rows the pass before had at most, 0 to P: no more are read. None: P.
        eps: of the norm; 0 or more.
        out: [R, HV * V] like z, with a row distance of its own. None: a new tensor.
        state_settled: promises that state, window and pending had been written to their end before
            this kernel can start, so that it may read them while the previous one still runs; see
            csrc/gdn_step.h. It holds where an ordinary launch, without overlap, lies in between.
        stream: a stream handle as an integer, or a PyTorch or CuPy stream. None: the stream that is
            current in the framework of qkv.

    Returns:
        out. The kernel is enqueued, not awaited.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        UnsupportedTensorError: an argument is no tensor, or out is needed for such a tensor.
        UnsupportedDtypeError: a dtype has no kernel, or two do not fit.
        UnsupportedShapeError: a shape does not fit, or K or V is not 128.
        UnsupportedLayoutError: strides, alignment, or what is written overlaps another argument.
        UnsupportedDeviceError: host memory, or more than one device.
        InvalidArgumentError: eps, stream, pending_rows, or a combination of commit, pending and
            num_accepted.
        CudaError: the launch failed.

    Numerics: float32 throughout, one cast at the end, to nearest even. Every sum has a fixed order
    per row: a row of out and the state that it leaves have the same bits in all three forms, and
    beside any number of other rows. Against the reference in float64 the relative RMS error stays
    below 1e-3 for float16 and 5e-3 for bfloat16, that of the state below 1e-5. A NaN in a row
    stays in its heads, and appears in the rows after it, which see the state it leaves.

    Source: csrc/gdn_step.cu.
    """
    if commit and pending is not None:
        raise InvalidArgumentError(f"{_OP}: commit is True with pending rows; expected False")
    if (pending is None) != (num_accepted is None):
        raise InvalidArgumentError(
            f"{_OP}: got only one of pending and num_accepted; expected both or none"
        )
    check_finite(_OP, "eps", eps, not_negative=True)
    check_kind(_OP, "rows", rows, GdnRows)
    check_kind(_OP, "weights", weights, GdnWeights)
    check_kind(_OP, "state", state, GdnState)
    if pending is not None:
        check_kind(_OP, "pending", pending, GdnPending)

    recurrent = packed_view(_OP, "state.recurrent", state.recurrent, "float32", (None, None, None))
    hv = _check_heads(recurrent)
    current = _view_rows("rows", rows, hv)
    dtype, num_rows, channels = current.qkv.dtype, current.qkv.shape[0], current.qkv.shape[1]
    h = _key_heads(channels, hv)
    kept: list[TensorView] = []
    accepted = None
    if pending is not None:
        kept = _view_pending(pending, num_rows, dtype, (h, hv))
        accepted = packed_view(_OP, "num_accepted", num_accepted, "int32", (1,))
    most_replayed = _check_pending_rows(pending_rows, kept[0].shape[0] if kept else 0)
    z_view = _view_values("z", z, dtype, (num_rows, hv * _HEAD_DIM))
    constants = (
        packed_view(_OP, "weights.conv", weights.conv, dtype, (channels, 4)),
        packed_view(_OP, "weights.a_log", weights.a_log, "float32", (hv,)),
        packed_view(_OP, "weights.dt_bias", weights.dt_bias, "float32", (hv,)),
        packed_view(_OP, "weights.norm", weights.norm, "float32", (_HEAD_DIM,)),
    )
    window = packed_view(_OP, "state.conv_window", state.conv_window, dtype, (channels, 3))
    _check_alignment(constants[0], _QUAD_BYTES)
    _check_alignment(recurrent, _QUAD_BYTES)
    _check_alignment(window, _PAIR_BYTES)

    inputs = [*current, z_view, *constants]
    if accepted is not None:
        inputs.append(accepted)
    written = [recurrent, window, *kept]
    for i, one in enumerate(written):
        for other in (*inputs, *written[i + 1 :]):
            no_overlap(_OP, one, other)
    out_view = None
    if out is not None:
        out_view = _view_values("out", out, dtype, z_view.shape)
        stride = row_stride(_OP, out_view)
        for read in (*inputs, *written):
            # Rows at one distance may be column ranges of one wider tensor.
            is_beside = num_rows > 1 and len(read.shape) == 2 and read.strides[0] == stride
            no_overlap(_OP, out_view, read, common_row_stride=stride if is_beside else 0)

    require_cuda(_OP)
    tensors = [*inputs, *written] + ([] if out_view is None else [out_view])
    device = common_device(_OP, *tensors)
    require_cuda(_OP, device)
    if out is None or out_view is None:
        out = new_like(_OP, z)
        out_view = view(_OP, "out", out)

    _native.gdn_step(
        current.pointers(),
        tuple(one.pointer for one in kept) if kept else (0, 0),
        z=z_view.pointer,
        out=out_view.pointer,
        num_accepted=0 if accepted is None else accepted.pointer,
        conv_weight=constants[0].pointer,
        a_log=constants[1].pointer,
        dt_bias=constants[2].pointer,
        norm_weight=constants[3].pointer,
        conv_window=window.pointer,
        state=recurrent.pointer,
        rows=num_rows,
        pending_rows=most_replayed,
        row_strides=current.strides(),
        z_row_stride=row_stride(_OP, z_view),
        out_row_stride=row_stride(_OP, out_view),
        h=h,
        hv=hv,
        dtype=DTYPE_CODES[dtype],
        eps=eps,
        commit=bool(commit),
        state_settled=bool(state_settled),
        device=device,
        stream=stream_handle(_OP, stream, rows.qkv, device),
    )
    return out


def _check_heads(recurrent: TensorView) -> int:
    hv, k, v = recurrent.shape
    if (k, v) != (_HEAD_DIM, _HEAD_DIM):
        raise UnsupportedShapeError(
            f"{_OP}: state.recurrent has K = {k} and V = {v}; expected {_HEAD_DIM} for both"
        )
    if not 1 <= hv <= _MAX_HEADS:
        raise UnsupportedShapeError(f"{_OP}: HV is {hv}; expected 1 to {_MAX_HEADS}")
    return hv


def _key_heads(channels: int, hv: int) -> int:
    h, rest = divmod(channels - hv * _HEAD_DIM, 2 * _HEAD_DIM)
    if h < 1 or rest:
        raise UnsupportedShapeError(
            f"{_OP}: rows.qkv has {channels} channels; expected (2 H + {hv}) * {_HEAD_DIM} for "
            f"the HV = {hv} of state.recurrent"
        )
    if hv % h or hv // h > _MAX_RATIO:
        raise UnsupportedShapeError(
            f"{_OP}: H is {h} and HV {hv}; expected HV = H times 1 to {_MAX_RATIO}"
        )
    return h


def _view_pending(
    pending: GdnPending, num_rows: int, dtype: str, heads: tuple[int, int]
) -> list[TensorView]:
    h, hv = heads
    channels = (2 * h + hv) * _HEAD_DIM
    qkv = view(_OP, "pending.qkv", pending.qkv, (dtype,))
    fewest = max(num_rows, 1)
    if len(qkv.shape) != 2 or not fewest <= qkv.shape[0] <= _MAX_ROWS or qkv.shape[1] != channels:
        raise UnsupportedShapeError(
            f"{_OP}: {qkv.name} has shape {qkv.shape}; expected [P, {channels}] with P from "
            f"{fewest} to {_MAX_ROWS}"
        )
    rows = qkv.shape[0]
    kept = [
        packed_view(_OP, "pending.qkv", pending.qkv, dtype, (rows, channels)),
        packed_view(
            _OP, "pending.updates", pending.updates, "float32", (rows, gdn_updates_width(h, hv))
        ),
    ]
    _check_alignment(kept[0], _PAIR_BYTES)
    _check_alignment(kept[1], _QUAD_BYTES)
    return kept


def _check_pending_rows(pending_rows: int | None, most: int) -> int:
    if pending_rows is None:
        return most
    pending_rows = check_integer(_OP, "pending_rows", pending_rows)
    if not 0 <= pending_rows <= most:
        raise InvalidArgumentError(
            f"{_OP}: pending_rows is {pending_rows}; expected 0 to {most}, the rows of pending"
        )
    return pending_rows


def _view_rows(name: str, rows: GdnRows, hv: int) -> _RowViews:
    qkv = view(_OP, f"{name}.qkv", rows.qkv, _DTYPES)
    if len(qkv.shape) != 2 or not 0 <= qkv.shape[0] <= _MAX_ROWS:
        raise UnsupportedShapeError(
            f"{_OP}: {qkv.name} has shape {qkv.shape}; expected [R, C] with R from 0 to {_MAX_ROWS}"
        )
    _check_pair_rows(qkv)
    gates = []
    for gate_name, tensor in (("a", rows.a), ("b", rows.b)):
        gate = view(_OP, f"{name}.{gate_name}", tensor, _DTYPES)
        _check_like_rows(gate, qkv.dtype, (qkv.shape[0], hv))
        row_stride(_OP, gate)
        gates.append(gate)
    return _RowViews(qkv, gates[0], gates[1])


def _view_values(name: str, tensor: Any, dtype: str, shape: tuple[int, ...]) -> TensorView:
    values = view(_OP, name, tensor, _DTYPES)
    _check_like_rows(values, dtype, shape)
    _check_pair_rows(values)
    if name == "out" and shape[0] > 1 and row_stride(_OP, values) < shape[1]:
        raise UnsupportedLayoutError(
            f"{_OP}: out has rows of {shape[1]} elements at a distance of "
            f"{row_stride(_OP, values)}, so they overlap"
        )
    return values


def _check_like_rows(tensor: TensorView, dtype: str, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype:
        raise UnsupportedDtypeError(
            f"{_OP}: {tensor.name} has dtype {tensor.dtype}; expected {dtype}, as rows.qkv"
        )
    if tensor.shape != shape:
        raise UnsupportedShapeError(
            f"{_OP}: {tensor.name} has shape {tensor.shape}; expected {shape}"
        )


def _check_pair_rows(tensor: TensorView) -> None:
    stride = row_stride(_OP, tensor)
    if tensor.shape[0] > 1 and stride % 2:
        raise UnsupportedLayoutError(
            f"{_OP}: {tensor.name} has rows {stride} elements apart; expected an even number"
        )
    _check_alignment(tensor, _PAIR_BYTES)


def _check_alignment(tensor: TensorView, num_bytes: int) -> None:
    if tensor.pointer % num_bytes:
        raise UnsupportedLayoutError(
            f"{_OP}: {tensor.name} starts at {tensor.pointer:#x}; expected a multiple of "
            f"{num_bytes} bytes"
        )
