"""Partial rotary embedding: the first ``rotary_dim`` entries of each head turn, the rest pass.

Angles are computed from the position itself, so there is no table that a long context could
outgrow. The family's interleaved three-axis form equals this one for text, where the three axes
hold equal positions.
"""

import torch

from bytebound.config import ModelConfig


def rotary_angles(
    positions: torch.Tensor, config: ModelConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """``cos, sin`` [T, 1, rotary_dim] fp32 of ``position * theta^(-2i / rotary_dim)``.

    ``positions`` [T] integers; the axis of size 1 broadcasts over heads.
    """
    exponents = torch.arange(0, config.rotary_dim, 2, device=positions.device) / config.rotary_dim
    inv_freq = 1.0 / config.rope_theta**exponents
    angles = positions.float()[:, None] * inv_freq
    angles = torch.cat((angles, angles), dim=-1)[:, None, :]
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turn the first ``rotary_dim`` entries of ``x`` [T, heads, DH], rotate-half inside them."""
    cos, sin = angles
    rotary_dim = cos.shape[-1]
    turned, passed = x[..., :rotary_dim].float(), x[..., rotary_dim:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned.to(x.dtype), passed), dim=-1)
