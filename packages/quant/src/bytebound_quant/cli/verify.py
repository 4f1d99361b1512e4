"""``bytebound-quant verify``: judge a finished folder; exit code 1 when something is wrong."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from bytebound.cli.output import emit, emit_json

from bytebound_quant.cli.errors import FAILED, one_line

if TYPE_CHECKING:
    from bytebound_quant.verify import VerifyReport


def verify(
    folder: Annotated[Path, typer.Argument(help="The folder to check, 4-bit or 16-bit.")],
    source: Annotated[
        str | None,
        typer.Option("--source", help="What it was made from: adds the error of every tensor."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check that every tensor is there, finite, and nowhere zero or constant by block.

    Exit codes: 0 sound, 1 something is wrong, 2 the folder cannot be read.
    """
    from bytebound.names import resolve_model

    from bytebound_quant.verify import verify as judge

    original = None if source is None else resolve_model(source)
    report = judge(resolve_model(str(folder)), original)
    if as_json:
        emit_json(report.as_dict())
    else:
        emit(_readable(report))
    if not report.ok:
        raise typer.Exit(FAILED)


def _readable(report: "VerifyReport") -> str:
    with_error = report.source is not None
    width = max((len(one.name) for one in report.tensors), default=6)
    error_head = f"  {'error':>9}  {'limit':>6}" if with_error else ""
    lines = [f"{'tensor':<{width}}  {'stored':<22}  {'rms':>9}  {'largest':>9}{error_head}"]
    for one in report.tensors:
        figures = f"{_number(one.rms)}  {_number(one.largest)}"
        if with_error:
            figures += f"  {_number(one.error)}  {'' if one.limit is None else one.limit:>6}"
        mark = "  WRONG" if one.problems else ""
        lines.append(f"{one_line(one.name):<{width}}  {one.stored:<22}  {figures}{mark}")
    lines.append("")
    lines += [f"wrong: {one_line(problem)}" for problem in report.problems]
    count = len(report.tensors)
    lines.append(
        f"{one_line(report.folder)}: {count} tensors, "
        + ("all sound" if report.ok else f"{len(report.problems)} problems")
    )
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.4g'):>9}"
