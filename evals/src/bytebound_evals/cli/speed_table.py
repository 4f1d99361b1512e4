"""The table of ``bytebound-evals throughput``: conditions first, then a row a measurement."""

import sys
from collections.abc import Iterable

from bytebound.cli.errors import one_line
from bytebound.cli.output import emit
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bytebound_evals.report.build import number
from bytebound_evals.results import Metric, Result

PIPE_WIDTH = 130  # columns where there is no terminal to ask
_COLUMNS = {
    "tok_s": "tok/s",
    "spread": "lowest to highest",
    "percent_of_limit": "% of limit",
    "step_ms": "ms a step",
    "accepted_per_step": "tok/step",
    "acceptance": "accepted",
    "first_token_ms": "first token, ms",
    "same_tokens": "same text",
}


def show(result: Result) -> None:
    """Write conditions and table to stdout."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    console = Console(file=sys.stdout, width=width, highlight=False)
    with console.capture() as captured:
        for label, text in conditions(result):
            console.print(Text.assemble((f"{label:<12}", "bold"), one_line(text)), soft_wrap=True)
        console.print(_table(result))
    emit(captured.get())


def conditions(result: Result) -> Iterable[tuple[str, str]]:
    """Label and text of everything that decides the numbers."""
    yield "machine", ", ".join(f"{name} {value}" for name, value in result.machine.items())
    yield "commit", result.commit
    yield "command", result.command
    if result.note:
        yield "note", result.note
    read = result.metrics.get("read_gb_s")
    if read is not None:
        yield "memory", f"reads {read.median:,.0f} GB/s ({read.case.get('source', 'measured')})"
    for name, metric in result.metrics.items():
        if name.endswith(".bytes_per_token"):
            limit = (
                "" if read is None else f", at most {read.median * 1e9 / metric.median:,.1f} tok/s"
            )
            yield "bytes", f"{metric.median / 1e9:,.4g} GB a token, {name.split('.')[0]}{limit}"


def _table(result: Result) -> Table:
    rows: dict[str, dict[str, Metric]] = {}
    for name, metric in result.metrics.items():
        stem, _, field = name.rpartition(".")
        if stem and field in _COLUMNS:
            rows.setdefault(stem, {})[field] = metric
    used = [c for c in _COLUMNS if c == "spread" or any(c in row for row in rows.values())]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for column in used:
        table.add_column(_COLUMNS[column], justify="right", no_wrap=True)
    for stem, row in rows.items():
        speed = row.get("tok_s")
        cells = {name: number(metric.median) for name, metric in row.items()}
        if speed is not None:
            cells["spread"] = f"{number(min(speed.samples))} to {number(max(speed.samples))}"
        if "same_tokens" in row:
            cells["same_tokens"] = "yes" if row["same_tokens"].median == 1 else "NO"
        table.add_row(stem, *(cells.get(column, "") for column in used))
    return table
