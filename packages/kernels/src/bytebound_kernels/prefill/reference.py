"""The definitions of the passes that their kernels are tested against, in plain PyTorch."""

import torch
from torch.nn.functional import silu, softplus

__all__ = ["gdn_prefill_reference"]


def gdn_prefill_reference(
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
    eps: float = 1e-6,
    *,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the mixer token by token: the arguments of gdn_prefill, which nothing here changes.

    Formula, per value head:
        q, k, v = split(silu(causal_conv(qkv)));  q = l2norm(q) K^-0.5;  k = l2norm(k)
        S <- exp(g) S;  d = beta (v - S^T k);  S <- S + k d^T;  o = S^T q
        out = norm_weight * (o * rsqrt(mean(o^2) + eps)) * silu(z)

    Returns:
        out [T, HV V], the new state [HV, K, V] and the new conv_window [C, 3], all in dtype, in
        which all arithmetic is done.
    """
    conv_weight, a_log, dt_bias, norm_weight = (
        t.to(dtype) for t in (conv_weight, a_log, dt_bias, norm_weight)
    )
    qkv, z, a, b, conv_window, state = (t.to(dtype) for t in (qkv, z, a, b, conv_window, state))
    tokens = qkv.shape[0]
    value_heads, head_dim = state.shape[:2]
    value_dim = value_heads * head_dim
    key_dim = (qkv.shape[1] - value_dim) // 2
    repeat = value_dim // key_dim

    history = torch.cat((conv_window.T, qkv))
    taps = torch.stack([history[j : j + tokens] for j in range(4)], dim=-1)
    mixed = silu((taps * conv_weight).sum(-1))
    q, k, v = torch.split(mixed, [key_dim, key_dim, value_dim], dim=-1)
    q = _l2_norm(q.reshape(tokens, -1, head_dim)) * head_dim**-0.5
    k = _l2_norm(k.reshape(tokens, -1, head_dim))
    q, k = (t.repeat_interleave(repeat, dim=1) for t in (q, k))
    v = v.reshape(tokens, value_heads, head_dim)
    decay = torch.exp(-a_log.exp() * softplus(a + dt_bias))
    beta = torch.sigmoid(b)

    o = torch.empty_like(v)
    for t in range(tokens):
        state = state * decay[t, :, None, None]
        predicted = torch.einsum("hkv,hk->hv", state, k[t])
        delta = beta[t, :, None] * (v[t] - predicted)
        state = state + k[t, :, :, None] * delta[:, None, :]
        o[t] = torch.einsum("hkv,hk->hv", state, q[t])
    y = norm_weight * (o * torch.rsqrt(o.square().mean(-1, keepdim=True) + eps))
    return (
        (y * silu(z.reshape(o.shape))).reshape(tokens, value_dim),
        state,
        history[tokens:].T.contiguous(),
    )


def _l2_norm(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
