"""What a command can end with: exit codes, and the one line on stderr that goes with a failure."""

import re
import sys

from bytebound.errors import (
    ByteboundError,
    NonFiniteLogitsError,
    OutOfMemoryError,
    StepTimeoutError,
)

OK = 0
FAILED = 1
WRONG_USE = 2
INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
BROKEN_PIPE = 141  # 128 + SIGPIPE

# What no other option or folder would have changed.
_FAILURES = (NonFiniteLogitsError, OutOfMemoryError, StepTimeoutError)

# Whatever a terminal or a log would take for the end of a line, or for a command.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class UsageError(Exception):
    """The options do not fit together, or what they name cannot be read."""


class OutputError(Exception):
    """The answer could not be written: a full disk, a closed stream."""


class ReaderGoneError(Exception):
    """The pipe that stdout leads to was closed, as ``| head -1`` does."""


def exit_code_of(error: Exception) -> int:
    """2 for what the user can change on the command line or in the folder, 1 for what failed."""
    wrong_use = isinstance(error, (ByteboundError, UsageError))
    return WRONG_USE if wrong_use and not isinstance(error, _FAILURES) else FAILED


def one_line(text: str) -> str:
    """``text`` with every control character spelt out: paths may hold line ends and escapes."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def complain(message: str) -> None:
    """Say what went wrong, in one line on stderr."""
    print(f"bytebound: error: {one_line(message)}", file=sys.stderr, flush=True)
