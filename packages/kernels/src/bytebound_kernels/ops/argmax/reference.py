"""The definition of argmax that the kernel is tested against, in PyTorch."""

from typing import Any

__all__ = ["argmax_reference"]


def argmax_reference(logits: Any, *, id_map: Any = None) -> Any:
    """Return the id of the largest value of each row, the lowest index on a tie.

    Args:
        logits: [R, N], a PyTorch tensor.
        id_map: [N], the id of each index; None: the index itself.

    Returns:
        int32 [R]; -1 for a row that holds a NaN.
    """
    import torch

    logits = logits.float()
    n = logits.shape[-1]
    highest = logits.amax(-1, keepdim=True)
    indices = torch.arange(n, device=logits.device).expand_as(logits)
    index = torch.where(logits == highest, indices, n).amin(-1).clamp(max=n - 1)
    ids = index if id_map is None else id_map.long()[index]
    return torch.where(logits.isnan().any(-1), -1, ids).int()
