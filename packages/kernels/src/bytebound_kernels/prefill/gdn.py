"""The checked front of the chunked Gated DeltaNet (_gdn_kernels.py)."""

import math

import torch
import triton

from bytebound_kernels._check import check_integer
from bytebound_kernels.errors import UnsupportedDtypeError, UnsupportedShapeError
from bytebound_kernels.prefill._check import (
    carve,
    check_apart,
    check_contiguous,
    check_dtype,
    check_eps,
    check_one_device,
    check_rows,
    check_shape,
    check_workspace,
    on_device,
    parts_bytes,
)
from bytebound_kernels.prefill._gdn_kernels import (
    CHUNK,
    CONV_TAPS,
    heads_kernel,
    outputs_kernel,
    states_kernel,
    systems_kernel,
    window_kernel,
)

__all__ = ["gdn_prefill", "gdn_prefill_workspace_bytes"]

_OP = "gdn_prefill"
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_HEAD_DIMS = (16, 32, 64, 128)
_BT = 16  # tokens of one program of the convolution
_BC = 256  # channels of one program of the window
_BV = 32  # columns of one program of the pass over the chunks


def gdn_prefill_workspace_bytes(
    tokens: int,
    *,
    key_heads: int,
    value_heads: int,
    head_dim: int = 128,
    dtype: torch.dtype = torch.bfloat16,
) -> int:
    """Return the bytes of workspace that gdn_prefill needs for a pass over so many tokens.

    Args:
        tokens: T, the rows of the pass. A workspace for more rows serves fewer.
        key_heads: H.
        value_heads: HV.
        head_dim: K and V.
        dtype: of qkv.

    Raises:
        InvalidArgumentError: tokens is no integer of 0 or more, or one of the others none of 1 or
            more.
        UnsupportedShapeError: head_dim is not 16, 32, 64 or 128, or H does not divide HV.
        UnsupportedDtypeError: a dtype without a kernel.
    """
    op = "gdn_prefill_workspace_bytes"
    tokens = check_integer(op, "tokens", tokens, 0)
    key_heads = check_integer(op, "key_heads", key_heads, 1)
    value_heads = check_integer(op, "value_heads", value_heads, 1)
    head_dim = check_integer(op, "head_dim", head_dim, 1)
    if head_dim not in _HEAD_DIMS:
        raise UnsupportedShapeError(
            f"{op}: head_dim is {head_dim}; expected one of {', '.join(map(str, _HEAD_DIMS))}"
        )
    if value_heads % key_heads:
        raise UnsupportedShapeError(
            f"{op}: got {value_heads} value heads and {key_heads} key heads; expected a multiple"
        )
    if dtype not in _FLOATS:
        wanted = ", ".join(str(one).removeprefix("torch.") for one in _FLOATS)
        raise UnsupportedDtypeError(
            f"{op}: dtype is {str(dtype).removeprefix('torch.')}; expected {wanted}"
        )
    return parts_bytes(_workspace_parts(tokens, key_heads, value_heads, head_dim, dtype))


def _workspace_parts(
    tokens: int, key_heads: int, value_heads: int, head_dim: int, dtype: torch.dtype
) -> list[tuple[int, torch.dtype]]:
    """Return length and dtype of: heads, log_decay, beta, inverse, states (_gdn_kernels.py)."""
    operand = torch.float32 if dtype == torch.float32 else torch.float16
    systems = -(-tokens // CHUNK) * value_heads
    return [
        (tokens * (2 * key_heads + value_heads) * head_dim, operand),
        (systems * 2 * CHUNK, torch.float32),
        (systems * CHUNK, torch.float32),
        (systems * CHUNK * CHUNK, operand),
        (systems * head_dim * head_dim, operand),
    ]


def gdn_prefill(
    qkv: torch.Tensor,
    z: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    conv_weight: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    conv_window: torch.Tensor,
    state: torch.Tensor,
    out: torch.Tensor | None = None,
    eps: float = 1e-6,
    *,
    workspace: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run the Gated DeltaNet mixer between its projections over T tokens, and advance its state.

    Formula, token by token and per value head, S [K, V] the state:
        q, k, v = split(silu(causal_conv(qkv)));  q = l2norm(q) K^-0.5;  k = l2norm(k)
        g = -exp(a_log) softplus(a + dt_bias);    beta = sigmoid(b)
        S <- exp(g) S;  d = beta (v - S^T k);  S <- S + k d^T;  o = S^T q
        out = norm_weight * (o * rsqrt(mean(o^2) + eps)) * silu(z)

    Args:
        qkv: [T, C], float16, bfloat16 or float32, C = 2 H K + HV V: the heads of q, of k, of v,
            before the convolution. T is any number of 0 or more. Rows may be apart.
        z: [T, HV V], the dtype of qkv. Rows may be apart.
        a: [T, HV], the dtype of qkv or float32. Rows may be apart.
        b: as a.
        conv_weight: [C, 4], float16, bfloat16 or float32, the newest tap last.
        a_log: [HV], float16, bfloat16 or float32.
        dt_bias: [HV], likewise.
        norm_weight: [V], likewise.
        conv_window: [C, 3], likewise: the rows of qkv before this pass, newest last. Replaced.
        state: [HV, K, V] float32. Advanced in place.
        out: [T, HV V], the dtype of qkv. None: a new tensor. It may be z. Rows may be apart.
        eps: of the gated norm.
        workspace: uint8, at least gdn_prefill_workspace_bytes() of it, 256-byte aligned. None: a
            new one.

    Returns:
        out. The kernels are enqueued on the current stream of the tensors' device, not awaited.

    Raises:
        UnsupportedDtypeError: a dtype has no kernel.
        UnsupportedShapeError: a shape does not fit, K and V differ or are not 16, 32, 64 or 128,
            H does not divide HV, or the workspace is too small.
        UnsupportedLayoutError: strides, alignment, or what is written overlaps another argument.
        UnsupportedDeviceError: host memory, or more than one device.
        UnsupportedTensorError: something is no tensor.
        CudaUnavailableError: this build has no code for the card.
        InvalidArgumentError: eps.

    Numerics: the state is carried in float32. Operands of the matrix products are float16 for
    16-bit activations (convolved values must stay below 65504), float32 in three TF32 products for
    float32 ones; all sums are float32. State and output (before its rounding) stay within 1e-3
    relative RMS error of the step form in float64, within 1e-5 for float32. Where all keys are
    equal and nothing decays, outputs in 16 bits have been seen 1.4e-3 off. The result depends on
    where a prompt is split into passes, within the same tolerance; the same pass has the same bits
    in every run.

    What is not finite stays in the heads that read it: a row of z in its own row, a row of q in the
    4 rows that the convolution gives it to, and one of k, v, a or b takes all of the chunk that it
    falls into, earlier rows included, and what follows. Chunks are the runs of 64 tokens from the
    start of a pass; those before that chunk keep their bits.

    Triton compiles at the first call for a combination of dtypes, head counts and alignments, which
    a stream capture does not allow: make one such call before it. T is no part of it.

    Source: _gdn_kernels.py.
    """
    check_dtype(_OP, "qkv", qkv, *_FLOATS)
    tokens, channels = _two_dimensional(qkv)
    check_dtype(_OP, "state", state, torch.float32)
    check_contiguous(_OP, "state", state)
    key_heads, value_heads, head_dim = _head_counts(channels, state)
    value_dim = value_heads * head_dim
    gates = (qkv.dtype, torch.float32)
    s_qkv = check_rows(_OP, "qkv", qkv, (tokens, channels))
    check_dtype(_OP, "z", z, qkv.dtype)
    s_z = check_rows(_OP, "z", z, (tokens, value_dim))
    check_dtype(_OP, "a", a, *gates)
    s_a = check_rows(_OP, "a", a, (tokens, value_heads))
    check_dtype(_OP, "b", b, *gates)
    s_b = check_rows(_OP, "b", b, (tokens, value_heads))
    constants = {
        "conv_weight": (conv_weight, (channels, CONV_TAPS)),
        "a_log": (a_log, (value_heads,)),
        "dt_bias": (dt_bias, (value_heads,)),
        "norm_weight": (norm_weight, (head_dim,)),
        "conv_window": (conv_window, (channels, CONV_TAPS - 1)),
    }
    for name, (tensor, shape) in constants.items():
        check_dtype(_OP, name, tensor, *_FLOATS)
        check_shape(_OP, name, tensor, shape)
        check_contiguous(_OP, name, tensor)
    check_eps(_OP, eps)
    s_out = value_dim
    if out is not None:
        check_dtype(_OP, "out", out, qkv.dtype)
        s_out = check_rows(_OP, "out", out, (tokens, value_dim))
    parts = _workspace_parts(tokens, key_heads, value_heads, head_dim, qkv.dtype)
    if workspace is not None:
        check_workspace(_OP, workspace, parts_bytes(parts))
    read = {"qkv": qkv, "z": z, "a": a, "b": b}
    read |= {name: tensor for name, (tensor, _) in constants.items()}
    written = {"conv_window": read.pop("conv_window"), "state": state}
    optional = {"out": out, "workspace": workspace}
    written |= {name: tensor for name, tensor in optional.items() if tensor is not None}
    in_place = out is not None and (out.data_ptr(), s_out) == (z.data_ptr(), s_z)
    check_apart(_OP, written, {n: t for n, t in read.items() if n != "z" or not in_place})
    device = check_one_device(_OP, read | written)
    if out is None:
        out = torch.empty((tokens, value_dim), dtype=qkv.dtype, device=device)
    heads, log_decay, beta, inverse, states = carve(workspace, device, parts)
    if tokens == 0:
        return out

    dims = {"H": key_heads, "C": channels, "K": head_dim}
    grid = (triton.cdiv(tokens, _BT), 2 * key_heads + value_heads)
    scale = 1.0 / math.sqrt(head_dim)
    systems = (value_heads, triton.cdiv(tokens, CHUNK))
    wide = qkv.dtype == torch.float32
    # What keeps a block below 99 KiB of shared memory.
    stages, bk = (1, min(32, head_dim)) if wide else (3, min(64, head_dim))
    bv = min(_BV, head_dim)
    with on_device(device):
        heads_kernel[grid](
            qkv, conv_weight, conv_window, heads, tokens, s_qkv, scale, **dims, BT=_BT, num_warps=4
        )
        window_kernel[(triton.cdiv(channels, _BC),)](
            qkv, conv_window, tokens, s_qkv, C=channels, BC=_BC, num_warps=4
        )
        dims["HV"] = value_heads
        systems_kernel[systems](
            heads, a, b, a_log, dt_bias, log_decay, beta, inverse, tokens, s_a, s_b,
            **dims, num_warps=8 if wide else 4,
        )  # fmt: skip
        dims["V"] = head_dim
        states_kernel[(head_dim // bv, value_heads)](
            heads, log_decay, beta, inverse, state, states, tokens,
            **dims, BV=bv, STAGES=stages, num_warps=4,
        )  # fmt: skip
        outputs_kernel[systems](
            heads, log_decay, states, z, norm_weight, out, tokens, s_z, s_out, eps,
            **dims, BK=bk, num_warps=8, num_stages=2,
        )  # fmt: skip
    return out


def _two_dimensional(qkv: torch.Tensor) -> tuple[int, int]:
    if qkv.dim() != 2:
        raise UnsupportedShapeError(f"{_OP}: qkv has shape {tuple(qkv.shape)}; expected [T, C]")
    return qkv.shape[0], qkv.shape[1]


def _head_counts(channels: int, state: torch.Tensor) -> tuple[int, int, int]:
    """Return H, HV and K = V, from C = 2 H K + HV V and the state."""
    if state.dim() != 3 or state.shape[1] != state.shape[2] or state.shape[1] not in _HEAD_DIMS:
        raise UnsupportedShapeError(
            f"{_OP}: state has shape {tuple(state.shape)}; expected [HV, K, V] with K = V one of "
            f"{', '.join(map(str, _HEAD_DIMS))}"
        )
    value_heads, head_dim = state.shape[0], state.shape[1]
    key_heads, rest = divmod(channels - value_heads * head_dim, 2 * head_dim)
    if rest or key_heads < 1 or value_heads % key_heads:
        raise UnsupportedShapeError(
            f"{_OP}: qkv has C = {channels} channels with a state of shape {tuple(state.shape)}; "
            f"expected 2 H {head_dim} + {value_heads} x {head_dim} for an H that divides "
            f"{value_heads}"
        )
    return key_heads, value_heads, head_dim
