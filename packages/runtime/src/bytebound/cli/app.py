"""The commands put together, and the one place where an exception becomes an exit code."""

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from bytebound.cli.chat import chat
from bytebound.cli.diff import diff
from bytebound.cli.errors import (
    BROKEN_PIPE,
    INTERRUPTED,
    OK,
    WRONG_USE,
    OutputError,
    ReaderGoneError,
    UsageError,
    complain,
    exit_code_of,
)
from bytebound.cli.generate import generate
from bytebound.cli.info import info
from bytebound.cli.serve import serve
from bytebound.errors import ByteboundError

# typer builds on a click of its own or on the installed one, depending on its version; the parent
# of its public BadParameter is the right class in either.
_PARSER_ERROR: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    help="Run hybrid language models of the Qwen3.5 family, one stream at a time.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS = {command.__name__: command for command in (generate, chat, serve, info, diff)}
for _command in _COMMANDS.values():
    app.command()(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        from bytebound import __version__

        print(f"bytebound {__version__}")
        raise typer.Exit()


@app.callback()
def bytebound(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Run hybrid language models of the Qwen3.5 family, one stream at a time.

    Exit codes: 0 done, 1 a check or a run failed, 2 wrong use, 130 interrupted.
    """


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; only a bug of this package raises."""
    if not argv:  # wrong use, so stdout stays empty
        with contextlib.redirect_stdout(sys.stderr):
            run(["--help"])
        return WRONG_USE
    try:
        code = app(list(argv), prog_name="bytebound", standalone_mode=False)
        return code if isinstance(code, int) else OK
    except ReaderGoneError:
        _drop_output()
        return BROKEN_PIPE
    except typer.Abort:  # how older versions of typer hand on Ctrl-C
        return INTERRUPTED
    except OutputError as error:
        _drop_output()
        complain(str(error))
        return exit_code_of(error)
    except (ByteboundError, UsageError) as error:
        complain(str(error))
        return exit_code_of(error)
    except _PARSER_ERROR as error:
        _explain(error, argv)
        return WRONG_USE


def _explain(error: Exception, argv: Sequence[str]) -> None:
    """One line for what the parser refused."""
    message = str(getattr(error, "format_message", error.__str__)()).strip()
    command = next((f" {word}" for word in argv if word in _COMMANDS), "")
    lines = " ".join(message.split("\n")).rstrip(".")
    complain(f"{lines} (see 'bytebound{command} --help')")


def _drop_output() -> None:
    """Send what is still buffered nowhere: the interpreter would try once more on its way out."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return  # no real file, as under a test
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
