"""The definition of sampled acceptance that the kernel is tested against, in PyTorch."""

from collections.abc import Sequence
from typing import Any

from bytebound_kernels.ops.sample.reference import draw_reference, philox_uniform_reference
from bytebound_kernels.ops.speculative_accept.reference import commit_reference

__all__ = ["speculative_sample_reference"]

_TARGET, _ACCEPT, _RESIDUAL = 0, 2, 3  # purposes


def speculative_sample_reference(
    weights: Any,
    drafts: Sequence[int],
    seed: int,
    cycle: Sequence[int],
    output: Sequence[int] = (),
    *,
    draft_weights: Any = None,
) -> tuple[list[int], list[int]]:
    """Return the cycle's words and the output ring after one sampled cycle.

    Args:
        weights: float64 [R, N], the target's.
        drafts: the R - 1 guesses.
        seed: of the request.
        cycle: the words before, 8 + R of them.
        output: the ring of emitted ids before; empty: none is kept.
        draft_weights: float64 [R - 1, N]; None: each draft is certain.
    """
    import torch

    position = cycle[0]
    emitted = []
    for i, draft in enumerate(drafts):
        p = weights[i] / weights[i].sum()
        if draft_weights is not None:
            q = draft_weights[i] / draft_weights[i].sum()
        else:
            q = torch.zeros_like(p)
            if 0 <= draft < len(p):
                q[draft] = 1.0
        inside = 0 <= draft < len(p) and float(q[draft]) > 0
        ratio = float(p[draft]) / float(q[draft]) if inside else 0.0
        if philox_uniform_reference(seed, position + i, _ACCEPT) < ratio:
            emitted.append(draft)
            continue
        residual = (p - q).clamp(min=0.0)
        emitted.append(
            draw_reference(residual, philox_uniform_reference(seed, position + i, _RESIDUAL))
        )
        return commit_reference(emitted, cycle, output)
    p = weights[-1] / weights[-1].sum()
    uniform = philox_uniform_reference(seed, position + len(drafts), _TARGET)
    return commit_reference([*emitted, draw_reference(p, uniform)], cycle, output)
