"""Muon for the matrices inside the layers, AdamW for everything else.

Contract: `Muon(groups)` updates stacks of equally shaped matrices at once; `optimizers(model)`
splits the parameters. Momentum with Nesterov, orthogonalised by five Newton-Schulz steps in bf16,
decoupled weight decay.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn

STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that pushes singular values towards 1


def orthogonalise(stack: torch.Tensor) -> torch.Tensor:
    """[S, M, N] -> the nearest semi-orthogonal matrices, roughly."""
    a, b, c = COEFFICIENTS
    x = stack.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(
        self,
        params: list[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
    ) -> None:
        by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for p in params:
            by_shape[p.shape].append(p)
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__([{"params": group} for group in by_shape.values()], defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            params = group["params"]
            grad = torch.stack([p.grad for p in params]).float()
            state = self.state[params[0]]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(grad)
            buffer = state["momentum"]
            buffer.lerp_(grad, 1 - group["momentum"])
            update = orthogonalise(grad.lerp_(buffer, group["momentum"])).float()
            rows, columns = params[0].shape
            step = group["lr"] * max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, list(update.unbind(0)), alpha=-step)


def optimizers(model: nn.Module, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    matrices, tables, rest = [], [], []
    for name, p in model.named_parameters():
        if "embed_tokens" in name or "lm_head" in name:
            tables.append(p)
        elif p.ndim == 2 and min(p.shape) >= 64:
            matrices.append(p)
        else:
            rest.append(p)  # norms, convolutions, decay and beta projections
    groups = [{"params": tables, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
    fused = tables[0].is_cuda
    return [
        Muon(matrices, lr=muon_lr),
        torch.optim.AdamW(groups, lr=adam_lr, betas=(0.9, 0.95), eps=1e-10, fused=fused),
    ]
