"""The three normalisations of the model. All arithmetic is fp32; the result is cast at the end."""

import torch

L2_EPS = 1e-6  # inside the square root, fixed by the model family and not in its config


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x * rsqrt(mean(x^2) + eps) * (1 + weight)`` over the last axis.

    ``x`` [..., D] any float dtype; ``weight`` [D] as stored (zero means identity). Returns x's
    dtype.
    """
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y * (1.0 + weight.float())).to(x.dtype)


def gated_rms_norm(
    x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """``weight * (x * rsqrt(mean(x^2) + eps)) * silu(z)`` over the last axis, no ``1 +``.

    ``x`` [..., HV, V] fp32, ``z`` same shape, ``weight`` [V]. Returns fp32.
    """
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return weight.float() * y * torch.nn.functional.silu(z.float())


def l2_norm(x: torch.Tensor) -> torch.Tensor:
    """``x * rsqrt(sum(x^2) + 1e-6)`` over the last axis, fp32 in and out."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)
