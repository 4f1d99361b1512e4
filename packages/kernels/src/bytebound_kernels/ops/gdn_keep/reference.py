"""The definition of what moves on between two passes that the kernel is tested against."""

from typing import Any

__all__ = ["gdn_keep_reference"]


def gdn_keep_reference(
    projected: Any,
    updates: Any,
    *,
    pending_qkv: Any,
    pending_updates: Any,
    windows: Any,
    num_accepted: Any,
) -> None:
    """Move bits, in place.

    Formula:
        window <- the last 3 of (window, the first num_accepted pending rows)
        pending[r] <- projected[r], r < R

    Args:
        projected: [R, L, C], a PyTorch tensor on any device.
        updates: [R, L, W].
        pending_qkv: [8, L, C], written in its first R rows.
        pending_updates: [8, L, W], likewise.
        windows: [L, C, 3], oldest input first, written.
        num_accepted: one integer, taken as 0 to 8.
    """
    import torch

    count = min(max(int(num_accepted), 0), len(pending_qkv))
    accepted = pending_qkv[:count].permute(1, 2, 0)
    windows.copy_(torch.cat((windows, accepted), dim=-1)[..., -windows.shape[-1] :])
    pending_qkv[: len(projected)] = projected
    pending_updates[: len(updates)] = updates
