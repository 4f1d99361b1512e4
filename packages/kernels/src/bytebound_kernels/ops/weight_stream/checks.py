"""What a weight stream asks of a single op: that its tensors fit each other and the kernel."""

from dataclasses import dataclass
from typing import Any

from bytebound_kernels._check import (
    check_finite,
    check_kind,
    packed_view,
    row_stride,
    workspace_view,
)
from bytebound_kernels._matvec import EPILOGUES, check_scale
from bytebound_kernels._tensor import DTYPE_CODES, TensorView, view
from bytebound_kernels.errors import (
    InvalidArgumentError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    UnsupportedTensorError,
)
from bytebound_kernels.ops.attention_decode import attention_decode_workspace_bytes
from bytebound_kernels.ops.attention_decode.caches import (
    cache_views,
    frequencies_view,
    head_stride,
    norm_views,
    scale_views,
)
from bytebound_kernels.ops.gdn_step import (
    GdnPending,
    GdnRows,
    GdnState,
    GdnWeights,
    gdn_updates_width,
)
from bytebound_kernels.ops.w4_matvec import PackedW4
from bytebound_kernels.ops.weight_stream.records import (
    MAX_ROWS,
    StreamAttention,
    StreamEmbedding,
    StreamGatedDelta,
    StreamGates,
    StreamNorm,
    StreamOp,
    StreamProduct,
    StreamReplay,
)

__all__ = ["OP", "CheckedOp", "check_op"]

OP = "weight_stream"
_HALF = ("float16",)
_PART = 128  # columns: a group of a packed matrix, half of what a warp has of a norm
_MAX_D = 8192  # kNormMaxD in csrc/cuda/stream_norm.cuh
_MAX_GATES = 4096  # as of rms_norm_project
_HEAD_DIM = 128  # K and V
_MAX_RATIO = 16  # value heads of one key head, as of gdn_step
_MAX_HEADS = 1 << 14
_QUAD_BYTES = 16
_PAIR_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedOp:
    """An op whose own tensors are sound, and what it does with memory."""

    name: str  # "ops[3]"
    record: StreamOp
    maker: str  # the function of _native that makes the native op
    arguments: dict[str, Any]  # of the maker
    reads: tuple[TensorView, ...] = ()  # handed over, or from before the launch
    residual: TensorView | None = None
    constants: tuple[TensorView, ...]  # that no op of the launch writes
    results: tuple[TensorView, ...] = ()
    state: TensorView | None = None  # recurrent: a replay writes it, a step reads it
    kept: tuple[TensorView, ...] = ()  # that the op alone writes and reads: caches, counters
    workspace: TensorView | None = None  # of attention
    multiplies: int | None = None  # columns of the rows of the last norm

    @property
    def tensors(self) -> tuple[TensorView, ...]:
        """All that the op touches."""
        others = (one for one in (self.residual, self.state, self.workspace) if one is not None)
        return (*self.reads, *self.constants, *self.kept, *self.results, *others)


def check_op(index: int, op: StreamOp) -> CheckedOp:
    """Check op number ``index`` of a launch by itself."""
    name = f"ops[{index}]"
    match op:
        case StreamNorm():
            return _norm(name, op)
        case StreamGates():
            return _gates(name, op)
        case StreamProduct():
            return _product(name, op)
        case StreamReplay():
            check_kind(OP, f"{name}.delta", op.delta, StreamGatedDelta)
            return _gated_delta(f"{name}.delta", op.delta, op)
        case StreamGatedDelta():
            return _gated_delta(name, op, op)
        case StreamEmbedding():
            return _embedding(name, op)
        case StreamAttention():
            return _attention(name, op)
    raise UnsupportedTensorError(
        f"{OP}: {name} is a {type(op).__qualname__}; expected a StreamEmbedding, "
        f"StreamNorm, StreamGates, StreamProduct, StreamReplay, StreamGatedDelta or StreamAttention"
    )


def _rows(
    name: str,
    tensor: Any,
    dtypes: tuple[str, ...],
    width: int | None = None,
    *,
    alignment: int = 1,
) -> TensorView:
    """Describe rows that are read: [MAX_ROWS, width], None for any width."""
    found = view(OP, name, tensor, dtypes)
    if len(found.shape) != 2 or found.shape[0] != MAX_ROWS or width not in (None, found.shape[1]):
        wanted = "any" if width is None else width
        raise UnsupportedShapeError(
            f"{OP}: {name} has shape {found.shape}; expected ({MAX_ROWS}, {wanted})"
        )
    distance = row_stride(OP, found) * found.itemsize
    if found.pointer % alignment or distance % alignment:
        raise UnsupportedLayoutError(
            f"{OP}: {name} starts at {found.pointer:#x} with rows at a distance of {distance} "
            f"bytes; expected multiples of {alignment}"
        )
    return found


def _result(
    name: str, tensor: Any, dtypes: tuple[str, ...], width: int, *, alignment: int = 1
) -> TensorView:
    found = _rows(name, tensor, dtypes, width, alignment=alignment)
    if row_stride(OP, found) < width:
        raise UnsupportedLayoutError(
            f"{OP}: {name} has rows of {width} elements at a distance of "
            f"{row_stride(OP, found)}, so they overlap; expected a distance of {width} or more"
        )
    return found


def _constant(
    name: str, tensor: Any, dtype: str, shape: tuple[int | None, ...], *, alignment: int = 1
) -> TensorView:
    found = packed_view(OP, name, tensor, dtype, shape)
    if found.pointer % alignment:
        raise UnsupportedLayoutError(
            f"{OP}: {name} starts at {found.pointer:#x}; expected a multiple of {alignment} bytes"
        )
    return found


def _norm(name: str, op: StreamNorm) -> CheckedOp:
    x = _rows(f"{name}.x", op.x, ("float32",), alignment=_QUAD_BYTES)
    d = x.shape[1]
    if not _PART <= d <= _MAX_D or d % _PART:
        raise UnsupportedShapeError(
            f"{OP}: {x.name} has shape {x.shape}; expected D a multiple of {_PART} up to {_MAX_D}"
        )
    weight = _constant(f"{name}.weight", op.weight, "float32", (d,), alignment=_QUAD_BYTES)
    out = None
    if op.out is not None:
        out = _result(f"{name}.out", op.out, _HALF, d, alignment=8)
    check_finite(OP, f"{name}.eps", op.eps, not_negative=True)
    return CheckedOp(
        name=name,
        record=op,
        maker="stream_norm",
        arguments={
            "x": x.pointer,
            "weight": weight.pointer,
            "out": 0 if out is None else out.pointer,
            "x_row_stride": row_stride(OP, x),
            "out_row_stride": 0 if out is None else row_stride(OP, out),
            "d": d,
            "eps": op.eps,
        },
        reads=(x,),
        constants=(weight,),
        results=() if out is None else (out,),
    )


def _gates(name: str, op: StreamGates) -> CheckedOp:
    weight = _constant(f"{name}.weight", op.weight, "float16", (None, None), alignment=_QUAD_BYTES)
    n, d = weight.shape
    if not 1 <= n <= _MAX_GATES:
        raise UnsupportedShapeError(
            f"{OP}: {weight.name} has shape {weight.shape}; expected [N, D] with N from 1 to "
            f"{_MAX_GATES}"
        )
    out = _result(f"{name}.out", op.out, _HALF, n)
    return CheckedOp(
        name=name,
        record=op,
        maker="stream_gates",
        arguments={
            "weight": weight.pointer,
            "out": out.pointer,
            "weight_row_stride": d,
            "out_row_stride": row_stride(OP, out),
            "n": n,
            "d": d,
        },
        constants=(weight,),
        results=(out,),
        multiplies=d,
    )


def _product(name: str, op: StreamProduct) -> CheckedOp:
    check_kind(OP, f"{name}.weight", op.weight, PackedW4)
    weight = op.weight
    data = weight.check(f"{OP}: {name}")
    out = _result(f"{name}.out", op.out, ("float16", "float32"), weight.n)
    x = None
    if op.x is not None:
        x = _rows(f"{name}.x", op.x, _HALF, weight.k, alignment=_QUAD_BYTES)
    epilogue = "swiglu" if weight.interleaved else "store"
    residual = None
    if op.residual is not None:
        if weight.interleaved:
            raise InvalidArgumentError(
                f"{OP}: {name}.residual is given with an interleaved weight; expected one of the "
                f"two"
            )
        epilogue = "add_residual"
        residual = _rows(f"{name}.residual", op.residual, ("float32",), weight.n)
        if out.dtype != "float32":
            raise UnsupportedDtypeError(
                f"{OP}: {out.name} has dtype {out.dtype}; expected float32, the dtype of residual"
            )
    return CheckedOp(
        name=name,
        record=op,
        maker="stream_product",
        arguments={
            "weight": data.pointer,
            "x": 0 if x is None else x.pointer,
            "out": out.pointer,
            "residual": 0 if residual is None else residual.pointer,
            "x_row_stride": 0 if x is None else row_stride(OP, x),
            "out_row_stride": row_stride(OP, out),
            "residual_row_stride": 0 if residual is None else row_stride(OP, residual),
            "n": weight.n,
            "k": weight.k,
            "scale_dtype": DTYPE_CODES[weight.scale_dtype],
            "asymmetric": weight.asymmetric,
            "float_out": out.dtype == "float32",
            "epilogue": EPILOGUES[epilogue],
            "scale": check_scale(f"{OP}: {name}", op.scale),
        },
        reads=() if x is None else (x,),
        residual=residual,
        constants=(data,),
        results=(out,),
        multiplies=weight.k if x is None else None,
    )


def _gdn_rows(name: str, rows: GdnRows, hv: int) -> tuple[TensorView, TensorView, TensorView]:
    qkv = _rows(f"{name}.qkv", rows.qkv, _HALF, alignment=_PAIR_BYTES)
    a, b = (
        _rows(f"{name}.{field}", tensor, _HALF, hv)
        for field, tensor in (("a", rows.a), ("b", rows.b))
    )
    return qkv, a, b


def _key_heads(qkv: TensorView, hv: int) -> int:
    channels = qkv.shape[1]
    h, rest = divmod(channels - hv * _HEAD_DIM, 2 * _HEAD_DIM)
    if h < 1 or rest:
        raise UnsupportedShapeError(
            f"{OP}: {qkv.name} has {channels} channels; expected (2 H + {hv}) * {_HEAD_DIM} for "
            f"the HV = {hv} of state.recurrent"
        )
    if hv % h or hv // h > _MAX_RATIO:
        raise UnsupportedShapeError(
            f"{OP}: {qkv.name} has H = {h} key heads for HV = {hv}; expected HV = H times 1 to "
            f"{_MAX_RATIO}"
        )
    return h


def _pending(name: str, pending: GdnPending, h: int, hv: int) -> tuple[TensorView, TensorView]:
    found = view(OP, f"{name}.pending.qkv", pending.qkv, _HALF)
    if len(found.shape) != 2 or not 1 <= found.shape[0] <= MAX_ROWS:
        raise UnsupportedShapeError(
            f"{OP}: {found.name} has shape {found.shape}; expected [P, C] with P from 1 to "
            f"{MAX_ROWS}"
        )
    rows, channels = found.shape[0], (2 * h + hv) * _HEAD_DIM
    qkv = _constant(
        f"{name}.pending.qkv", pending.qkv, "float16", (rows, channels), alignment=_PAIR_BYTES
    )
    updates = _constant(
        f"{name}.pending.updates",
        pending.updates,
        "float32",
        (rows, gdn_updates_width(h, hv)),
        alignment=_QUAD_BYTES,
    )
    return qkv, updates


def _gated_delta(name: str, op: StreamGatedDelta, record: StreamOp) -> CheckedOp:
    for field, kind in (
        ("rows", GdnRows),
        ("weights", GdnWeights),
        ("state", GdnState),
        ("pending", GdnPending),
    ):
        check_kind(OP, f"{name}.{field}", getattr(op, field), kind)
    state = _constant(
        f"{name}.state.recurrent",
        op.state.recurrent,
        "float32",
        (None, _HEAD_DIM, _HEAD_DIM),
        alignment=_QUAD_BYTES,
    )
    hv = state.shape[0]
    if not 1 <= hv <= _MAX_HEADS:
        raise UnsupportedShapeError(f"{OP}: {state.name} has HV = {hv}; expected 1 to {_MAX_HEADS}")
    current = _gdn_rows(f"{name}.rows", op.rows, hv)
    h, channels = _key_heads(current[0], hv), current[0].shape[1]
    pending = _pending(name, op.pending, h, hv)
    width = hv * _HEAD_DIM
    z = _rows(f"{name}.z", op.z, _HALF, width, alignment=_PAIR_BYTES)
    out = _result(f"{name}.out", op.out, _HALF, width, alignment=_PAIR_BYTES)
    updates = _result(
        f"{name}.updates",
        op.updates,
        ("float32",),
        gdn_updates_width(h, hv),
        alignment=_QUAD_BYTES,
    )
    accepted = _constant(f"{name}.num_accepted", op.num_accepted, "int32", (1,))
    weights = f"{name}.weights"
    conv = _constant(
        f"{weights}.conv", op.weights.conv, "float16", (channels, 4), alignment=_QUAD_BYTES
    )
    a_log = _constant(f"{weights}.a_log", op.weights.a_log, "float32", (hv,))
    dt_bias = _constant(f"{weights}.dt_bias", op.weights.dt_bias, "float32", (hv,))
    norm = _constant(
        f"{weights}.norm", op.weights.norm, "float32", (_HEAD_DIM,), alignment=_QUAD_BYTES
    )
    window = _constant(f"{name}.state.conv_window", op.state.conv_window, "float16", (channels, 3))
    check_finite(OP, f"{name}.eps", op.eps, not_negative=True)
    replay = isinstance(record, StreamReplay)
    return CheckedOp(
        name=name,
        record=record,
        maker="stream_gated_delta",
        arguments={
            "replay": replay,
            "current": tuple(one.pointer for one in current),
            "pending": tuple(one.pointer for one in pending),
            "z": z.pointer,
            "out": out.pointer,
            "updates": updates.pointer,
            "num_accepted": accepted.pointer,
            "conv_weight": conv.pointer,
            "a_log": a_log.pointer,
            "dt_bias": dt_bias.pointer,
            "norm_weight": norm.pointer,
            "conv_window": window.pointer,
            "state": state.pointer,
            "pending_rows": pending[0].shape[0],
            "row_strides": tuple(row_stride(OP, one) for one in current),
            "z_row_stride": row_stride(OP, z),
            "out_row_stride": row_stride(OP, out),
            "updates_row_stride": row_stride(OP, updates),
            "h": h,
            "hv": hv,
            "eps": op.eps,
        },
        reads=() if replay else (*current, z),
        constants=(*pending, accepted, conv, a_log, dt_bias, norm, window),
        results=() if replay else (out, updates),
        state=state,
    )


def _embedding(name: str, op: StreamEmbedding) -> CheckedOp:
    ids = _constant(f"{name}.ids", op.ids, "int32", (MAX_ROWS,))
    table = _constant(f"{name}.table", op.table, "float16", (None, None), alignment=_QUAD_BYTES)
    n, d = table.shape
    if n < 1 or d < 8 or d % 8:
        raise UnsupportedShapeError(
            f"{OP}: {table.name} has shape {table.shape}; expected [N, D] with N of 1 or more and "
            f"D a multiple of 8"
        )
    out = _result(f"{name}.out", op.out, ("float32",), d, alignment=_QUAD_BYTES)
    return CheckedOp(
        name=name,
        record=op,
        maker="stream_embedding",
        arguments={
            "ids": ids.pointer,
            "table": table.pointer,
            "out": out.pointer,
            "table_row_stride": d,
            "out_row_stride": row_stride(OP, out),
            "n": n,
            "d": d,
        },
        constants=(ids, table),
        results=(out,),
    )


def _attention(name: str, op: StreamAttention) -> CheckedOp:
    prefix = f"{name}."
    caches = cache_views(OP, prefix, op.k_cache, op.v_cache)
    num_kv_heads, positions, width = caches[0].shape
    if positions < MAX_ROWS:
        raise UnsupportedShapeError(
            f"{OP}: {caches[0].name} has {positions} positions; expected {MAX_ROWS} or more"
        )
    q_gate = _rows(f"{name}.q_gate", op.q_gate, _HALF, alignment=_QUAD_BYTES)
    num_heads, rest = divmod(q_gate.shape[1], 2 * width)
    if rest or num_heads < 1 or num_heads % num_kv_heads:
        raise UnsupportedShapeError(
            f"{OP}: {q_gate.name} has rows of {q_gate.shape[1]}; expected NH * 2 * {width}, with "
            f"NH a multiple of the {num_kv_heads} heads of {caches[0].name}"
        )
    k, v = (
        _rows(f"{name}.{field}", tensor, _HALF, num_kv_heads * width, alignment=_QUAD_BYTES)
        for field, tensor in (("k", op.k), ("v", op.v))
    )
    norms = norm_views(OP, prefix, op.q_norm, op.k_norm, "float16")
    inv_freq = frequencies_view(OP, prefix, op.inv_freq)
    position = _constant(f"{name}.position", op.position, "int32", (1,))
    scales = scale_views(OP, prefix, caches[0], op.k_scale, op.v_scale)
    arrived = _constant(f"{name}.arrived", op.arrived, "int32", (1,))
    out = _result(f"{name}.out", op.out, _HALF, num_heads * width)
    check_finite(OP, f"{name}.eps", op.eps, not_negative=True)
    check_finite(OP, f"{name}.scale", op.scale)
    size = attention_decode_workspace_bytes(MAX_ROWS, num_heads, positions)
    workspace = workspace_view(f"{OP}: {name}", op.workspace, size)
    rows = (q_gate, k, v)
    return CheckedOp(
        name=name,
        record=op,
        maker="stream_attention",
        arguments={
            "rows": tuple(one.pointer for one in rows),
            "row_strides": tuple(row_stride(OP, one) for one in rows),
            "q_norm": norms[0].pointer,
            "k_norm": norms[1].pointer,
            "inv_freq": inv_freq.pointer,
            "position": position.pointer,
            "k_cache": caches[0].pointer,
            "v_cache": caches[1].pointer,
            "k_scale": scales[0].pointer if scales else 0,
            "v_scale": scales[1].pointer if scales else 0,
            "workspace": workspace.pointer,
            "arrived": arrived.pointer,
            "out": out.pointer,
            "out_row_stride": row_stride(OP, out),
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "max_positions": positions,
            "rotary_dim": 2 * inv_freq.shape[0],
            "cache_head_stride": head_stride(caches[0]),
            "scale_head_stride": head_stride(scales[0]) if scales else 0,
            "norm_dtype": DTYPE_CODES[norms[0].dtype],
            "cache_dtype": DTYPE_CODES[caches[0].dtype],
            "eps": op.eps,
            "scale": op.scale,
        },
        reads=rows,
        constants=(*norms, inv_freq, position),
        results=(out,),
        kept=(*caches, *scales, arrived),
        workspace=workspace,
    )
