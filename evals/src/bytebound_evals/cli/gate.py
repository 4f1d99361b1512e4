"""``bytebound-evals gate``: compare a run with a baseline, and fail where it got worse."""

import math
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bytebound_evals.cli import options as opt
from bytebound_evals.cli.errors import FAILED, OK, UsageError
from bytebound_evals.cli.outputs import check_file
from bytebound_evals.errors import IncomparableError, RivalError

if TYPE_CHECKING:
    from bytebound_evals.gate.compare import Comparison
    from bytebound_evals.results import Result

# Commands whose recorded line the gate runs again.
MEASURING = ("throughput", "ppl", "kl", "gsm8k", "needle")


def gate(
    baseline: Annotated[
        list[Path],
        typer.Option(metavar="FILE", help="Result to compare with; repeat for several rounds."),
    ],
    head: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Result that is judged; repeat for several rounds. Default: the baseline's own "
            "command is run here, now.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="FOLDER|NAME",
            help="Model to measure, where the baseline names a folder.",
        ),
    ] = None,
    waivers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Text with lines 'perf-waiver: METRIC REASON'."),
    ] = None,
    widen: Annotated[
        float, typer.Option(metavar="X", help="Multiply tolerances, for a stored baseline.")
    ] = 1.0,
    summary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append the table as Markdown.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the comparison as JSON.")
    ] = None,
    json_: opt.Json = False,
) -> int:
    """Compare results of one machine: exit code 1 if any metric got worse.

    Worse means beyond its tolerance and beyond noise: a t test of the means, which over all metrics
    together is wrong once in 200 runs, or medians more than 20 robust spreads apart, so that an
    outlier hides no large change. A metric whose tolerance is 0 must not get worse at all. Another
    card, driver, engine or case is wrong use: exit code 2.
    """
    from bytebound.cli.output import emit, emit_json

    from bytebound_evals.gate.compare import compare, merged, parse_waivers
    from bytebound_evals.gate.tables import markdown
    from bytebound_evals.results import read_result

    if not 1 <= widen < math.inf:
        raise UsageError(f"--widen {widen:g}: expected a number of at least 1")
    check_file("--out", out)
    check_file("--summary", summary)
    base = merged([read_result(file) for file in baseline])
    waived = {} if waivers is None else parse_waivers(_text(waivers))
    mine = merged([read_result(file) for file in head]) if head else _measured(base, model)
    comparison = compare(base, mine, waivers=waived, widen=widen)
    report = {
        "failed": comparison.failed,
        "remarks": list(comparison.remarks),
        "rows": [row.as_dict() for row in comparison.rows],
    }
    if summary is not None:
        _append(summary, markdown(comparison, base, mine))
    if out is not None:
        _write_json(out, report)
    if json_:
        emit_json(report)
    else:
        emit(_terminal(comparison))
    return FAILED if comparison.failed else OK


def _measured(base: "Result", model: str | None) -> "Result":
    """Run the baseline's command in a fresh process and read what it wrote."""
    from bytebound_evals.conditions import machine_record
    from bytebound_evals.gate.compare import check_repeatable
    from bytebound_evals.results import read_result

    try:
        words = shlex.split(base.command)
    except ValueError:  # an unclosed quote
        words = []
    if len(words) < 2 or words[0] != "bytebound-evals" or words[1] not in MEASURING:
        raise IncomparableError(
            f"the baseline was made by {base.command!r}, which the gate cannot run again; give "
            "--head FILE"
        )
    check_repeatable(base, machine_record)  # a run may take an hour
    if model is not None:
        words += ["--model", model]  # the last one counts
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "head.json"
        command = [sys.executable, "-m", "bytebound_evals", *words[1:], "--out", str(file)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        if done.returncode == 2:
            raise UsageError("the baseline's command was refused, see above; perhaps give --model")
        if done.returncode != 0:
            raise RivalError(f"measuring ended with exit code {done.returncode}")
        return read_result(file)


def _terminal(comparison: "Comparison") -> str:
    from rich.console import Console

    from bytebound_evals.gate.tables import sections, terminal

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 150, highlight=False)
    with console.capture() as captured:
        for remark in comparison.remarks:
            console.print(remark, markup=False)
        for title, rows in sections(comparison):
            console.print(terminal(title, rows))
        console.print(comparison.sentence())
    return captured.get()


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error


def _append(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror or error}") from error


def _write_json(file: Path, value: object) -> None:
    import json

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror or error}") from error
