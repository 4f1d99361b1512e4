"""The passes in which two backends are compared: their rows, and the positions that they take.

Needs no kernels, so that a command can refuse what is wrong before it needs a GPU.
"""

from bytebound.errors import InvalidSettingError
from bytebound.settings import MAX_CUDA_DRAFT_TOKENS

TAIL = 16  # ids of the prompt that goes on behind the decode passes
_MAX_ROWS = 1 + MAX_CUDA_DRAFT_TOKENS


def check_rows(rows: int) -> None:
    """Refuse a number of rows that no decode pass has, by InvalidSettingError."""
    if not 1 <= rows <= _MAX_ROWS:
        raise InvalidSettingError(f"rows={rows}: expected 1 to {_MAX_ROWS}, what a pass has")


def positions_needed(count: int, rows: int) -> int:
    """Positions that ``cuda.diff.run_diff`` takes for a prompt of ``count`` ids."""
    return count + rows * (rows + 1) // 2 + max(rows, TAIL)
