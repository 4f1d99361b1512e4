"""Fits fla's gated delta rule to the training machine: Hopper with Triton 3.6.

Contract: call `prepare()` before anything imports `fla`, and `patch_backward(compiler)` before
training. After that each Triton kernel with an autotuner has one launch configuration (trying all
of them takes longer than the training is given), and the one backward kernel that this Triton
compiles wrongly on Hopper, which fla therefore refuses to run, is replaced by `chunk_gradients`,
the same formula in PyTorch. Both do nothing where fla is not installed. `torch_rule()` is
transformers' own slow path, the definition that `train.py` checks the fast one against.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch

ORDINARY_WARPS, ORDINARY_STAGES, ORDINARY_BLOCK = 4, 2, 64


def _distance(config: Any) -> float:
    blocks = [value for value in config.kwargs.values() if isinstance(value, int) and value > 0]
    return (
        abs(math.log2(config.num_warps / ORDINARY_WARPS))
        + abs(config.num_stages - ORDINARY_STAGES)
        + sum(abs(math.log2(block / ORDINARY_BLOCK)) for block in blocks)
    )


def prepare() -> None:
    """Leaves the most ordinary configuration of each autotuned Triton kernel."""
    if importlib.util.find_spec("fla") is None:
        return
    from triton.runtime.autotuner import Autotuner

    original = Autotuner.__init__

    def init(self: Any, fn: Any, names: Any, configs: list[Any], *rest: Any, **named: Any) -> None:
        chosen = [min(configs, key=_distance)] if configs else configs
        original(self, fn, names, chosen, *rest, **named)

    Autotuner.__init__ = init


def chunk_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    do: torch.Tensor,
    h: torch.Tensor,
    dh: torch.Tensor,
    w: torch.Tensor,
    g: torch.Tensor,
    dv: torch.Tensor,
    scale: float,
    chunk: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dq, dk, dw, dg) of one chunk's outputs and final state, for all chunks at once.

    With the chunk's first state h, corrected values v = u - w h and g the log2 decay summed within
    the chunk:
        o  = scale * ((q 2^g) h + tril(q k' 2^(gi - gj)) v)
        h+ = 2^glast h + (k 2^(glast - g))' v
    q, k, w, v, do, dv: [B, T, H, D]; g: [B, T, H]; h, dh: [B, T / chunk, H, K, V], dh being the
    gradient of h+. dg is the gradient with respect to the natural logarithm.
    """
    batch, length, heads, _ = q.shape
    dtype = q.dtype

    def chunked(x: torch.Tensor) -> torch.Tensor:
        return x.view(batch, length // chunk, chunk, heads, -1).transpose(2, 3)

    def flat(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(2, 3).reshape(batch, length, heads, -1)

    q, k, v, do, dv = (chunked(x) for x in (q, k, v, do, dv))
    h, dh = h.to(dtype), dh.to(dtype)
    g = chunked(g).squeeze(-1).float()
    last = g[..., -1:]
    dq_state = (do @ h.mT).float() * (torch.exp2(g) * scale)[..., None]
    dk_state = (v @ dh.mT).float() * torch.exp2(last - g)[..., None]
    gap = g[..., :, None] - g[..., None, :]
    lower = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    decay = torch.exp2(gap.masked_fill(~lower, float("-inf")))
    ds = ((do @ v.mT).float() * decay * scale).to(dtype)
    dq = dq_state + (ds @ k).float()
    dk = dk_state + (ds.mT @ q).float()
    # dg is a difference of large sums that is then summed again: both sides must use the same
    # rounded numbers.
    pair = ds.float() * (q @ k.mT).float()
    tail = (dk_state * k.float()).sum(-1)
    dg = pair.sum(-1) - pair.sum(-2) + (dq_state * q.float()).sum(-1) - tail
    at_last = torch.exp2(last[..., 0]) * (h.float() * dh.float()).sum((-1, -2)) + tail.sum(-1)
    dg = torch.cat([dg[..., :-1], dg[..., -1:] + at_last[..., None]], dim=-1)
    dw = -(dv.to(dtype) @ h.mT)
    return flat(dq.to(dtype)), flat(dk.to(dtype)), flat(dw).to(w.dtype), flat(dg[..., None])[..., 0]


def torch_rule() -> Callable[..., Any]:
    from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

    return inspect.unwrap(qwen.torch_chunk_gated_delta_rule)


def patch_backward(compiler: Callable[[Any], Any]) -> None:
    if importlib.util.find_spec("fla") is None:
        return
    from fla.ops.gated_delta_rule import chunk as module

    gradients = compiler(chunk_gradients)

    def chunk_bwd_dqkwg(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, g: torch.Tensor, dv: torch.Tensor,
        w: torch.Tensor, h: torch.Tensor, do: torch.Tensor, dh: torch.Tensor, scale: float,
        chunk_size: int, **layout: Any,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        if (
            layout.get("cu_seqlens") is not None
            or layout.get("state_v_first")
            or q.shape[2] != v.shape[2]
        ):
            raise NotImplementedError(
                "only equal lengths, K-first states and as many key as value heads"
            )
        return gradients(q, k, v, do, h, dh, w, g, dv, scale, chunk_size)

    module.chunk_bwd_dqkwg = chunk_bwd_dqkwg
