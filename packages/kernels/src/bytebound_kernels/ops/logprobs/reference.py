"""The definition of the log-probabilities that the kernel is tested against, in PyTorch."""

from typing import Any

__all__ = ["logprobs_reference"]


def logprobs_reference(logits: Any, ids: Any, num_top: int) -> tuple[Any, Any]:
    """Return log_softmax at the given id of each row and at the likeliest ids, in float64.

    Args:
        logits: [R, N], a PyTorch tensor.
        ids: [R].
        num_top: how many of the likeliest; equal logits come in the order of their ids.

    Returns:
        The values, float64 [R, 1 + num_top], and their ids, int32 [R, 1 + num_top]: first of
        ids[r], then of the likeliest. A row without a finite maximum has NaN values and the id -1
        for each of the likeliest; an id outside 0 .. N-1 has the value NaN.
    """
    import torch

    wide = logits.double()
    n = wide.shape[-1]
    values = wide - torch.logsumexp(wide, -1, keepdim=True)
    order = torch.sort(wide, dim=-1, descending=True, stable=True).indices[:, :num_top]
    own = ids.long()[:, None]
    columns = torch.cat([own, order], 1)
    inside = (columns >= 0) & (columns < n)
    chosen = values.gather(1, columns.clamp(0, n - 1))
    bad = ~wide.amax(-1, keepdim=True).isfinite()
    out_values = torch.where(inside & ~bad, chosen, float("nan"))
    out_ids = torch.cat([own, torch.where(bad, -1, order)], 1)
    return out_values, out_ids.int()
