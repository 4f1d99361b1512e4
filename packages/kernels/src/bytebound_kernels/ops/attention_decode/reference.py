"""The definition of gated attention decode that the kernel is tested against, in PyTorch."""

from typing import Any

__all__ = ["attention_decode_reference"]

_DH = 256
_LARGEST_FLOAT8 = 448.0  # of e4m3


def _normed(x: Any, weight: Any, eps: float) -> Any:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * (1 + weight.to(x.dtype))


def _turned(x: Any, inv_freq: Any, positions: Any) -> Any:
    """Rotate-half over the first dims of ``x`` [R, heads, DH]."""
    import torch

    # The angle is a float32, as the model defines it; its sine and cosine are exact.
    angles = (positions.float()[:, None, None] * inv_freq.float()).to(x.dtype)
    n = inv_freq.shape[0]
    first, second, rest = x[..., :n], x[..., n : 2 * n], x[..., 2 * n :]
    sin, cos = angles.sin(), angles.cos()
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def _append(cache: Any, scales: Any, rows: Any, position: int) -> None:
    """Round ``rows`` [R, NKV, DH] into the cache [NKV, S, DH] from ``position`` on."""
    import torch

    rows = rows.transpose(0, 1)
    where = slice(position, position + rows.shape[1])
    if scales is None:
        cache[:, where] = rows.to(cache.dtype)
        return
    # By a tensor: on CUDA, PyTorch replaces the division by a number by a product with 1 / 448,
    # rounded, which gives most scales another last bit and moves quotients halfway between bytes.
    largest = rows.abs().amax(-1).float()
    scale = largest / torch.full_like(largest, _LARGEST_FLOAT8)
    finite = rows.isfinite().all(-1)
    divisor = torch.where(finite & (scale > 0), scale, torch.ones_like(scale)).to(rows.dtype)
    scaled = torch.where(finite[..., None], rows / divisor[..., None], torch.zeros_like(rows))
    cache[:, where] = scaled.to(cache.dtype)
    scales[:, where] = torch.where(finite, scale, torch.full_like(scale, float("nan")))


def _cached(cache: Any, scales: Any, head: int, length: int, dtype: Any) -> Any:
    values = cache[head, :length].to(dtype)
    return values if scales is None else values * scales[head, :length, None].to(dtype)


def attention_decode_reference(
    q_gate: Any,
    k: Any,
    v: Any,
    q_norm: Any,
    k_norm: Any,
    inv_freq: Any,
    position: int,
    k_cache: Any,
    v_cache: Any,
    *,
    k_scale: Any = None,
    v_scale: Any = None,
    eps: float = 1e-6,
    scale: float | None = None,
    dtype: Any = None,
) -> Any:
    """Append rows to a cache and attend to it, row by row, in plain PyTorch.

    Formula, for row r at position p + r, h = head, g = its kv head:
        k_cache[g, p + r] = turn(norm(k[r, g]) * (1 + k_norm), p + r);  v_cache[g, p + r] = v[r, g]
        w = softmax(turn(norm(q[r, h]) * (1 + q_norm), p + r) . k_cache[g, 0 .. p + r] * scale)
        out[r, h] = w . v_cache[g, 0 .. p + r] * sigmoid(gate[r, h])

    Args:
        q_gate: [R, NH * 2 * DH], per head the query and then the gate.
        k: [R, NKV * DH].
        v: [R, NKV * DH].
        q_norm: [DH].
        k_norm: [DH].
        inv_freq: float32 [rotary_dim / 2].
        position: p.
        k_cache: [NKV, S, DH], extended in place, rounded to its dtype.
        v_cache: likewise.
        k_scale: float32 [NKV, S] where the cache is float8_e4m3fn: max |x| / 448 of each row.
        v_scale: likewise.
        eps: of the two norms.
        scale: of the scores; None: DH^-0.5.
        dtype: in which it is computed; None: float64.

    Returns:
        [R, NH * DH] of that dtype.
    """
    import torch

    dtype = torch.float64 if dtype is None else dtype
    rows, kv_heads = q_gate.shape[0], k_cache.shape[0]
    q, gate = q_gate.to(dtype).unflatten(-1, (-1, 2 * _DH)).chunk(2, dim=-1)
    k, v = (x.to(dtype).unflatten(-1, (kv_heads, _DH)) for x in (k, v))
    positions = torch.arange(position, position + rows, device=q.device)
    q = _turned(_normed(q, q_norm, eps), inv_freq, positions)
    k = _turned(_normed(k, k_norm, eps), inv_freq, positions)
    _append(k_cache, k_scale, k, position)
    _append(v_cache, v_scale, v, position)

    scale = _DH**-0.5 if scale is None else scale
    group = q.shape[1] // kv_heads
    out = torch.empty_like(q)
    for head in range(kv_heads):
        keys = _cached(k_cache, k_scale, head, position + rows, dtype)
        values = _cached(v_cache, v_scale, head, position + rows, dtype)
        own = slice(head * group, (head + 1) * group)
        for r in range(rows):
            seen = position + r + 1
            weights = (q[r, own] @ keys[:seen].T * scale).softmax(-1)
            out[r, own] = weights @ values[:seen]
    return (out * gate.sigmoid()).flatten(1)
