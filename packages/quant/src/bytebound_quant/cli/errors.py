"""What a command ends with when it fails: its exit code, and one line on stderr."""

import sys

from bytebound.cli.errors import (
    BROKEN_PIPE,
    FAILED,
    INTERRUPTED,
    OK,
    WRONG_USE,
    OutputError,
    ReaderGoneError,
    UsageError,
    one_line,
)

__all__ = [
    "BROKEN_PIPE",
    "FAILED",
    "INTERRUPTED",
    "OK",
    "WRONG_USE",
    "OutputError",
    "ReaderGoneError",
    "UsageError",
    "complain",
    "one_line",
]


def complain(message: str) -> None:
    """Say what went wrong, in one line on stderr."""
    print(f"bytebound-quant: error: {one_line(message)}", file=sys.stderr, flush=True)
