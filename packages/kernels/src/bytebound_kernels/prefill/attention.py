"""The checked front of gated attention over many rows (_attention_kernels.py)."""

import functools
import math

import torch
import triton
from torch.nn.functional import scaled_dot_product_attention

from bytebound_kernels._check import check_finite, check_integer
from bytebound_kernels.errors import (
    InvalidArgumentError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
)
from bytebound_kernels.prefill._attention_kernels import (
    append_kernel,
    attend_kernel,
    gate_kernel,
)
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

__all__ = ["attention_prefill", "attention_prefill_workspace_bytes"]

_OP = "attention_prefill"
_DH = 256
_ACTIVATIONS = (torch.float16, torch.bfloat16)
_CACHES = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
_MAX_POSITIONS = 2**20
_LOG2_E = math.log2(math.e)
_BT = 8  # rows of one program of the elementwise kernels


def attention_prefill_workspace_bytes(tokens: int, num_heads: int) -> int:
    """Return the bytes of workspace that attention_prefill needs for a pass over so many tokens.

    Args:
        tokens: T, the rows of the pass. A workspace for more rows serves fewer.
        num_heads: NH.

    Raises:
        InvalidArgumentError: tokens is no integer of 0 or more, or num_heads none of 1 or more.
    """
    op = "attention_prefill_workspace_bytes"
    tokens = check_integer(op, "tokens", tokens, 0)
    num_heads = check_integer(op, "num_heads", num_heads, 1)
    # There are at most as many heads of values as of queries.
    return parts_bytes(_workspace_parts(tokens, num_heads, num_heads, torch.float16))


def _workspace_parts(
    tokens: int, num_heads: int, num_kv_heads: int, operand: torch.dtype
) -> list[tuple[int, torch.dtype]]:
    """Return length and dtype of: q, and a mark for each value."""
    return [(tokens * num_heads * _DH, operand), (tokens * num_kv_heads, torch.uint8)]


def attention_prefill(
    q_gate: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    inv_freq: torch.Tensor,
    position: int,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    eps: float = 1e-6,
    scale: float = _DH**-0.5,
    backend: str = "triton",
) -> torch.Tensor:
    """Append T consecutive rows to a cache and attend to all of it, with a gate.

    Formula, for row t at position p + t, query head h and its kv head g = h * NKV // NH:
        k_cache[g, p + t] = turn(norm(k[t, g]) * (1 + k_norm), p + t)
        v_cache[g, p + t] = v[t, g]
        q = turn(norm(q_gate[t, h, 0]) * (1 + q_norm), p + t)
        w = softmax(q . k_cache[g, 0 .. p + t] * scale)
        out[t, h] = w . v_cache[g, 0 .. p + t] * sigmoid(q_gate[t, h, 1])
    norm is x * rsqrt(mean(x^2) + eps) over the 256 dims of a head; turn rotates dims i and
    i + rotary_dim / 2 by the angle position * inv_freq[i]. The same as attention_decode over the
    same rows, and the same cache.

    Args:
        q_gate: [T, NH * 2 * DH], DH = 256, float16 or bfloat16: per head the query and then the
            gate. Rows may be apart, here and in k, v and out.
        k: [T, NKV * DH], the dtype of q_gate; NH is a multiple of NKV.
        v: [T, NKV * DH], likewise.
        q_norm: [DH], the dtype of q_gate or float32: the stored w, to which 1 is added here.
        k_norm: [DH], likewise.
        inv_freq: float32 [rotary_dim / 2], a multiple of 8 up to 128.
        position: p, 0 or more: how many positions of the cache are filled.
        k_cache: [NKV, S, DH], float16, bfloat16 or float8_e4m3fn, S at least p + T. The positions
            of a head are contiguous. What lies beyond p + T does not matter.
        v_cache: as k_cache.
        out: [T, NH * DH], the dtype of q_gate. None: a new tensor.
        workspace: uint8, attention_prefill_workspace_bytes(T, NH) or more, 256-byte aligned. None:
            a new one.
        k_scale: float32 [NKV, S] with a float8 cache, else None: max |x| / 448 of each key.
        v_scale: likewise of each value.
        eps: of the two norms, 0 or more.
        scale: of the scores.
        backend: "triton", or "sdpa" for PyTorch's attention, which allocates its result and serves
            16-bit caches that begin with this pass (position 0).

    Returns:
        out. The kernels are enqueued on the current stream of the tensors' device, not awaited.

    Raises:
        UnsupportedDtypeError: a dtype, or a combination, has no kernel.
        UnsupportedShapeError: a shape does not fit, or the cache or workspace is too small.
        UnsupportedLayoutError: strides, alignment, or what is written overlaps another argument.
        UnsupportedDeviceError: host memory, or more than one device.
        UnsupportedTensorError: something is no tensor.
        CudaUnavailableError: this build has no code for the card.
        InvalidArgumentError: position, eps, scale or backend, or scales without a float8 cache.

    Numerics: products on tensor cores in the dtype of the cache (float16 with a float8 cache), to
    which q and the softmax weights are rounded; everything else in float32. The cache is rounded
    as attention_decode rounds it. Against the reference in float64 the relative RMS error stays
    below 1e-3 with float16 in and in the cache, below 5e-3 where bfloat16 or float8 has a part. The
    same pass has the same bits in every run.

    What is not finite in q or the gate stays in its row and head. In k or v it takes the heads that
    read it, from its own row on: some of their dims or all. Earlier rows keep their bits, except
    that with backend "sdpa" a NaN of v may reach them.

    Triton compiles at the first call for a combination of dtypes and alignments, which
    a stream capture does not allow: make one such call before it. T and position are no part of it.

    Source: _attention_kernels.py.
    """
    check_dtype(_OP, "q_gate", q_gate, *_ACTIVATIONS)
    check_dtype(_OP, "k_cache", k_cache, *_CACHES)
    tokens, num_heads, num_kv_heads = _sizes(q_gate, k_cache)
    s_q_gate = check_rows(_OP, "q_gate", q_gate, (tokens, num_heads * 2 * _DH))
    check_dtype(_OP, "k", k, q_gate.dtype)
    s_k = check_rows(_OP, "k", k, (tokens, num_kv_heads * _DH))
    check_dtype(_OP, "v", v, q_gate.dtype)
    s_v = check_rows(_OP, "v", v, (tokens, num_kv_heads * _DH))
    for name, norm in (("q_norm", q_norm), ("k_norm", k_norm)):
        check_dtype(_OP, name, norm, q_gate.dtype, torch.float32)
        check_shape(_OP, name, norm, (_DH,))
        check_contiguous(_OP, name, norm)
    pairs = _pairs(inv_freq)
    s_cache = _check_cache("k_cache", k_cache, k_cache)
    if _check_cache("v_cache", v_cache, k_cache) != s_cache:
        raise UnsupportedLayoutError(
            f"{_OP}: v_cache has strides {v_cache.stride()}; expected {k_cache.stride()}, as "
            f"k_cache"
        )
    capacity = k_cache.shape[1]
    position = check_integer(_OP, "position", position)
    if not 0 <= position <= capacity - tokens:
        raise InvalidArgumentError(
            f"{_OP}: position is {position} with {tokens} rows and a cache of {capacity} positions;"
            f" expected 0 to {capacity - tokens}"
        )
    float8 = k_cache.dtype == torch.float8_e4m3fn
    s_scale = _check_scales(k_cache, k_scale, v_scale)
    check_eps(_OP, eps)
    check_finite(_OP, "scale", scale)
    _check_backend(backend, position, float8)
    s_out = num_heads * _DH
    if out is not None:
        check_dtype(_OP, "out", out, q_gate.dtype)
        s_out = check_rows(_OP, "out", out, (tokens, num_heads * _DH))
    operand = torch.float16 if float8 else k_cache.dtype
    parts = _workspace_parts(tokens, num_heads, num_kv_heads, operand)
    if workspace is not None:
        check_workspace(_OP, workspace, parts_bytes(parts))
    read = {
        "q_gate": q_gate,
        "k": k,
        "v": v,
        "q_norm": q_norm,
        "k_norm": k_norm,
        "inv_freq": inv_freq,
    }
    written = {"k_cache": k_cache, "v_cache": v_cache}
    optional = {"k_scale": k_scale, "v_scale": v_scale, "out": out, "workspace": workspace}
    written |= {name: tensor for name, tensor in optional.items() if tensor is not None}
    check_apart(_OP, written, read)
    device = check_one_device(_OP, read | written)
    if out is None:
        out = torch.empty((tokens, num_heads * _DH), dtype=q_gate.dtype, device=device)
    q, bad_v = carve(workspace, device, parts)
    if tokens == 0:
        return out

    keys, values = (c.view(torch.uint8) if float8 else c for c in (k_cache, v_cache))
    # Without scales any pointer does: the kernels never read it.
    k_scales, v_scales = (q if s is None else s for s in (k_scale, v_scale))
    with on_device(device):
        append_kernel[(triton.cdiv(tokens, _BT), num_heads + 2 * num_kv_heads)](
            q_gate, k, v, q_norm, k_norm, inv_freq, q, keys, values, k_scales, v_scales, bad_v,
            tokens, position, num_heads, num_kv_heads, s_q_gate, s_k, s_v, s_cache, s_scale, eps,
            DH=_DH, N=pairs, BT=_BT, FLOAT8=float8, num_warps=4,
        )  # fmt: skip
        if backend == "sdpa":
            attended = scaled_dot_product_attention(
                q.view(tokens, num_heads, _DH).transpose(0, 1)[None],
                k_cache[None, :, :tokens],
                v_cache[None, :, :tokens],
                is_causal=True,
                scale=scale,
                enable_gqa=num_heads != num_kv_heads,
            )[0].contiguous()
            gate_kernel[(triton.cdiv(tokens, _BT), num_heads)](
                attended, q_gate, out, tokens, s_q_gate, s_out,
                DH=_DH, BT=_BT, num_warps=4,
            )  # fmt: skip
            return out
        bm, bn, warps, stages = _tiles(device, float8)
        attend_kernel[(num_heads, triton.cdiv(tokens, bm))](
            q, q_gate, keys, values, k_scales, v_scales, bad_v, out, tokens, position,
            num_heads, num_kv_heads, s_q_gate, s_cache, s_scale, s_out, scale * _LOG2_E,
            DH=_DH, BM=bm, BN=bn, FLOAT8=float8, STAGES=stages, num_warps=warps,
        )  # fmt: skip
    return out


@functools.cache
def _tiles(device: torch.device, float8: bool) -> tuple[int, int, int, int]:
    """Return BM, BN, warps and stages: what the shared memory of a block has room for.

    Compiled for sm_80, 89, 90 and 120, none of them spills a register in the loops over the cache;
    those of four warps or of 128 rows spill some 50 to 200 bytes around them, once per block.
    """
    if device.type != "cuda":
        return 16, 16, 4, 1  # Triton's interpreter
    shared = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    if shared >= 200 << 10:
        return 128, 64, 8, 2
    if shared >= 112 << 10 or float8:  # 104 KiB of it, with a float8 cache 73
        return 64, 64, 8, 2
    return 64, 32, 4, 2


def _sizes(q_gate: torch.Tensor, k_cache: torch.Tensor) -> tuple[int, int, int]:
    """Return T, NH and NKV."""
    if q_gate.dim() != 2 or q_gate.shape[1] % (2 * _DH) or q_gate.shape[1] == 0:
        raise UnsupportedShapeError(
            f"{_OP}: q_gate has shape {tuple(q_gate.shape)}; expected [T, NH * 2 * {_DH}], a query "
            f"and a gate of head dim {_DH} for each head"
        )
    shape = tuple(k_cache.shape)
    if len(shape) != 3 or shape[2] != _DH or not 1 <= shape[1] <= _MAX_POSITIONS:
        raise UnsupportedShapeError(
            f"{_OP}: k_cache has shape {shape}; expected [NKV, S, {_DH}] with S up to "
            f"{_MAX_POSITIONS}"
        )
    num_heads, num_kv_heads = q_gate.shape[1] // (2 * _DH), shape[0]
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise UnsupportedShapeError(
            f"{_OP}: q_gate has {num_heads} heads and k_cache {num_kv_heads}; expected a multiple"
        )
    return q_gate.shape[0], num_heads, num_kv_heads


def _pairs(inv_freq: torch.Tensor) -> int:
    """Check inv_freq; return how many pairs of dims turn."""
    check_dtype(_OP, "inv_freq", inv_freq, torch.float32)
    check_contiguous(_OP, "inv_freq", inv_freq)
    pairs = inv_freq.numel()
    if inv_freq.dim() != 1 or pairs % 8 or not 8 <= pairs <= _DH // 2:
        raise UnsupportedShapeError(
            f"{_OP}: inv_freq has shape {tuple(inv_freq.shape)}; expected half of the dims that "
            f"turn, a multiple of 8 up to {_DH // 2}"
        )
    return pairs


def _check_cache(name: str, cache: torch.Tensor, k_cache: torch.Tensor) -> int:
    """Return the distance between heads in elements."""
    check_dtype(_OP, name, cache, k_cache.dtype)
    check_shape(_OP, name, cache, tuple(k_cache.shape))
    heads, capacity, _ = cache.shape
    distance = cache.stride(0) if heads > 1 else capacity * _DH
    packed = cache.stride(2) == 1 and (capacity == 1 or cache.stride(1) == _DH)
    if not packed or distance < capacity * _DH:
        raise UnsupportedLayoutError(
            f"{_OP}: {name} of shape {tuple(cache.shape)} has strides {cache.stride()}; expected "
            f"the positions of a head contiguous, and heads that do not overlap"
        )
    return distance


def _check_scales(
    k_cache: torch.Tensor, k_scale: torch.Tensor | None, v_scale: torch.Tensor | None
) -> int:
    """Return the distance between heads in elements."""
    wanted = k_cache.dtype == torch.float8_e4m3fn
    heads, capacity = k_cache.shape[:2]
    distances = []
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if (scale is not None) != wanted:
            raise InvalidArgumentError(
                f"{_OP}: {name} is {'missing' if wanted else 'given'} with a cache of "
                f"{str(k_cache.dtype).removeprefix('torch.')}; expected scales with float8_e4m3fn "
                f"and only then"
            )
        if scale is not None:
            check_dtype(_OP, name, scale, torch.float32)
            distance = check_rows(_OP, name, scale, (heads, capacity))
            distances.append(distance)
    if len(set(distances)) > 1:
        raise UnsupportedLayoutError(
            f"{_OP}: k_scale has heads at a distance of {distances[0]} and v_scale at "
            f"{distances[1]}; expected one distance"
        )
    return distances[0] if distances else 0


def _check_backend(backend: str, position: int, float8: bool) -> None:
    if backend not in ("triton", "sdpa"):
        raise InvalidArgumentError(f"{_OP}: backend is {backend!r}; expected 'triton' or 'sdpa'")
    if backend == "sdpa" and (position or float8):
        raise InvalidArgumentError(
            f"{_OP}: backend 'sdpa' with position {position} and a "
            f"{'float8' if float8 else '16-bit'} cache; expected position 0 and a 16-bit cache, or "
            f"backend 'triton'"
        )
