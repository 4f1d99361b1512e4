"""The report of a job laid out for reading. Computes nothing."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bytebound.cli.output import emit
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bytebound_quant.cli.errors import one_line

PIPE_WIDTH = 110  # columns where there is no terminal to ask


def show(report: Mapping[str, Any], folder: Path, *, every_tensor: bool = False) -> None:
    """Write the summary, the errors per layer, and with ``every_tensor`` those per tensor."""
    console = Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False
    )
    with console.capture() as captured:
        console.print(_errors("Errors per layer", report["layers"], ()))
        if every_tensor:
            notes = ("damping", "attempts", "dead_columns", "rounded_rows")
            console.print(_errors("Errors per tensor", report["tensors"], notes))
        for label, text in _summary(report, folder):
            console.print(Text.assemble((f"{label:<12}", "bold"), one_line(text)), soft_wrap=True)
    emit(captured.get())


def _errors(title: str, rows: list[Mapping[str, Any]], notes: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    columns = {
        "weight_error": "weight error",
        "output_error": "output error",
        "rtn_output_error": "by rounding",
        **{note: note.replace("_", " ") for note in notes},
    }
    present = [name for name in columns if any(name in row for row in rows)]
    for name in present:
        table.add_column(columns[name], justify="right")
    for row in rows:
        table.add_row(row["name"], *(_cell(row.get(name)) for name in present))
    return table


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "" if value is None else str(value)


def _summary(report: Mapping[str, Any], folder: Path) -> list[tuple[str, str]]:
    size, calibration = report["size"], report["calibration"]
    rows = report["tensors"]
    lines = [
        ("method", f"{report['method']}, {report['scheme']}"),
        (
            "size",
            f"{size['source_bytes'] / 1e6:,.1f} MB to {size['output_bytes'] / 1e6:,.1f} MB; "
            f"{size['bits_per_quantized_weight']:.3f} bits per quantized weight, "
            f"{size['bits_per_weight']:.3f} over all",
        ),
        ("tensors", f"{len(rows)} in 4 bits, {len(report['exceptions'])} kept"),
    ]
    odd = sorted({one["reason"] for one in report["exceptions"] if "multiple" in one["reason"]})
    if odd:
        named = [one["name"] for one in report["exceptions"] if one["reason"] in odd]
        more = f" and {len(named) - 3} more" if len(named) > 3 else ""
        lines.append(("kept", f"{', '.join(named[:3])}{more}: {'; '.join(odd)}"))
    if calibration is not None:
        lines.append(("calibration", f"sha256 {calibration['digest'][:16]}"))
        damping = max(row["damping"] for row in rows)
        dead = sum(row["dead_columns"] for row in rows)
        lines.append(("damping", f"at most {damping:g}; {dead} dead columns"))
    lines += [
        ("time", f"{report['time']['seconds']:.1f} s"),
        ("folder", str(folder)),
    ]
    return lines
