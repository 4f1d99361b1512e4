"""The commands put together, and the one place where an exception becomes an exit code."""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from bytebound.errors import ByteboundError
from bytebound_quant.errors import QuantError

from bytebound_evals.cli.errors import (
    BROKEN_PIPE,
    FAILED,
    INTERRUPTED,
    OK,
    WRONG_USE,
    OutputError,
    ReaderGoneError,
    UsageError,
    code_of,
    complain,
)
from bytebound_evals.cli.gate import gate
from bytebound_evals.cli.quality import COMMANDS as QUALITY_COMMANDS
from bytebound_evals.cli.report import report
from bytebound_evals.cli.suite import suite
from bytebound_evals.cli.throughput import throughput
from bytebound_evals.errors import EvalError

# typer builds on a click of its own or on the installed one, depending on its version; the parent
# of its public BadParameter is the right class in either.
_PARSER_ERROR: type[Exception] = typer.BadParameter.__bases__[0]

# The name of a command is that of its function, "_" as "-".
COMMANDS: list[Callable[..., int]] = [*QUALITY_COMMANDS, throughput, suite, report, gate]

app = typer.Typer(
    help="Measure quality and speed of bytebound models on one yardstick.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in COMMANDS:
    app.command()(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        from bytebound_evals import __version__

        print(f"bytebound-evals {__version__}")
        raise typer.Exit()


@app.callback()
def bytebound_evals(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Measure quality and speed of bytebound models on one yardstick.

    Exit codes: 0 done, 1 a gate or a run failed, 2 wrong use, 130 interrupted.
    """


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; only a bug of this package raises."""
    if not argv:  # wrong use, so stdout stays empty
        with contextlib.redirect_stdout(sys.stderr):
            run(["--help"])
        return WRONG_USE
    try:
        code = app(list(argv), prog_name="bytebound-evals", standalone_mode=False)
        return code if isinstance(code, int) else OK
    except ReaderGoneError:
        _drop_output()
        return BROKEN_PIPE
    except typer.Abort:  # how older versions of typer hand on Ctrl-C
        return INTERRUPTED
    except OutputError as error:
        _drop_output()
        complain(str(error))
        return FAILED
    except (EvalError, ByteboundError, QuantError, UsageError) as error:
        complain(str(error))
        return code_of(error)
    except _PARSER_ERROR as error:
        _explain(error, argv)
        return WRONG_USE


def _explain(error: Exception, argv: Sequence[str]) -> None:
    """One line for what the parser refused."""
    message = str(getattr(error, "format_message", error.__str__)()).strip()
    names = [command.__name__.replace("_", "-") for command in COMMANDS]
    command = next((f" {word}" for word in argv if word in names), "")
    lines = " ".join(message.split("\n")).rstrip(".")
    complain(f"{lines} (see 'bytebound-evals{command} --help')")


def _drop_output() -> None:
    """Send what is still buffered nowhere: the interpreter would try once more on its way out."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return  # no real file, as under a test
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
