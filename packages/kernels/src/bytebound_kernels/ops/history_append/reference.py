"""The definition of history_append that the kernel is tested against, in PyTorch."""

from typing import Any

__all__ = ["history_append_reference"]


def history_append_reference(
    ids: Any, num_ids: int | None = None, *, seen: Any = None, counts: Any = None
) -> None:
    """Add the first ``num_ids`` ids to seen, uint8 [N], and counts, int32 [N], in place."""
    for token in ids.tolist()[:num_ids]:
        if seen is not None and 0 <= token < len(seen):
            seen[token] = 1
        if counts is not None and 0 <= token < len(counts):
            counts[token] += 1
