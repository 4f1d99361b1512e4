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
    exit_code_of,
    one_line,
)
from bytebound_quant.errors import QuantError

from bytebound_evals.errors import EvalError, LossOverflowError, RivalError

__all__ = [
    "BROKEN_PIPE",
    "FAILED",
    "INTERRUPTED",
    "OK",
    "WRONG_USE",
    "OutputError",
    "ReaderGoneError",
    "UsageError",
    "code_of",
    "complain",
    "one_line",
]


def complain(message: str) -> None:
    """Say what went wrong, in one line on stderr."""
    print(f"bytebound-evals: error: {one_line(message)}", file=sys.stderr, flush=True)


def code_of(error: Exception) -> int:
    """2 for what the user can change, 1 for what failed while it ran."""
    if isinstance(error, EvalError):
        failed = isinstance(error, (LossOverflowError, RivalError))
        return FAILED if failed else WRONG_USE
    return WRONG_USE if isinstance(error, QuantError) else exit_code_of(error)
