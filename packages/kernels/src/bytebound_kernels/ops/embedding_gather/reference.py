"""The definition of the embedding gather that the kernel is tested against, in PyTorch."""

from typing import Any

__all__ = ["embedding_gather_reference"]


def embedding_gather_reference(ids: Any, table: Any, *, dtype: Any = None) -> Any:
    """Return the rows of the table that the ids name, and NaN for an id outside the table.

    Args:
        ids: [T], integers.
        table: [N, D].
        dtype: of the result; None: that of the table.

    Returns:
        [T, D].
    """
    n = table.shape[0]
    inside = (ids >= 0) & (ids < n)
    rows = table[ids.long().clamp(0, n - 1)].to(table.dtype if dtype is None else dtype)
    return rows.masked_fill(~inside[:, None], float("nan"))
