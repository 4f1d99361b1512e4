"""Element-wise parts of transformers' Qwen3.5 layers, each rewritten to compile to one kernel.

Contract: `patch_leaves(compiler)` replaces the norms, the MLP's activation and the causal
convolution inside `modeling_qwen3_5` by the functions below; the numbers stay the same up to
rounding. Whole layers are not compiled:
that takes minutes, these take seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from model import qwen  # through model.py, which prepares fla before transformers finds it


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """y = x * rsqrt(mean(x^2) + eps) * (1 + w); x: [N, D]."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * (1.0 + weight.float())).to(x.dtype)


def gated_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """y = w * (x * rsqrt(mean(x^2) + eps)) * silu(gate); x, gate: [N, D]."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (weight * wide.to(x.dtype) * F.silu(gate.float())).to(x.dtype)


def silu_product(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def shifted_conv(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """silu of the causal depthwise convolution; x: [B, C, T], weight: [C, taps]."""
    taps, length = weight.shape[-1], x.shape[-1]
    padded = F.pad(x, (taps - 1, 0))
    out = padded[..., :length].float() * weight[:, 0, None].float()
    for tap in range(1, taps):
        out = out + padded[..., tap : tap + length].float() * weight[:, tap, None].float()
    return F.silu(out).to(x.dtype)


def patch_leaves(compiler: Callable[[Any], Any]) -> None:
    norm, gated, product, conv = map(compiler, (rms_norm, gated_norm, silu_product, shifted_conv))

    def norm_forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return norm(x.reshape(-1, x.shape[-1]), self.weight, self.eps).view(x.shape)

    def gated_forward(self: Any, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return gated(x, gate, self.weight, self.variance_epsilon)

    def mlp_forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        return self.down_proj(product(self.gate_proj(flat), self.up_proj(flat))).view(x.shape)

    def causal_conv1d_fn(
        x: torch.Tensor, weight: torch.Tensor, bias: None, **unused: Any
    ) -> torch.Tensor:
        if bias is not None:
            raise NotImplementedError("this family's convolution has no bias")
        return conv(x, weight)

    qwen.Qwen3_5RMSNorm.forward = norm_forward
    qwen.Qwen3_5RMSNormGated.forward = gated_forward
    qwen.Qwen3_5MLP.forward = mlp_forward
    qwen.causal_conv1d_fn = causal_conv1d_fn
