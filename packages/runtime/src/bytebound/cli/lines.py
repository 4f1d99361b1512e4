"""The user's messages, one line each: edited in a terminal, or read from a pipe as UTF-8."""

import sys
from collections.abc import Iterator
from contextlib import suppress

from bytebound.cli.prompt import decoded

PROMPT_SIGN = "> "


def message_lines() -> Iterator[str]:
    """Lines without their ends, until Ctrl-D or the end of the pipe."""
    if sys.stdin.isatty():
        yield from _typed_lines()
        return
    for number, line in enumerate(sys.stdin.buffer, start=1):
        yield decoded(line, f"line {number} of stdin").rstrip("\r\n")


def _typed_lines() -> Iterator[str]:
    with suppress(ImportError):
        import readline  # noqa: F401  # gives input() line editing and history
    while True:
        try:
            yield input(PROMPT_SIGN)
        except EOFError:
            print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            print("\n(Ctrl-D or /exit leaves)", file=sys.stderr)
        except UnicodeDecodeError:
            print("(that was not UTF-8 text)", file=sys.stderr)
