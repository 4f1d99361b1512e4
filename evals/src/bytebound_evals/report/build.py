"""From result files to a report: plots, then every file's conditions and numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bytebound_evals.errors import ResultError
from bytebound_evals.report.document import (
    Block,
    Facts,
    Grid,
    Heading,
    Paragraph,
    Picture,
    to_html,
    to_markdown,
)
from bytebound_evals.report.plots import Plot, draw_all
from bytebound_evals.report.series import Source, machine_name
from bytebound_evals.results import Result, read_result

MARKDOWN = "report.md"
HTML = "report.html"
PLOTS = "plots"


def read_sources(files: Sequence[Path]) -> list[Source]:
    """Read result files; a file is named after its folder and itself, as in "h200/decode".

    Raises:
        ResultError: a file is damaged, or two have one name.
    """
    sources: dict[str, Source] = {}
    for file in files:
        parent = file.resolve().parent.name
        title = f"{parent}/{file.stem}" if parent else file.stem
        if title in sources:
            raise ResultError(f"{file}: two files are called {title}; rename one")
        sources[title] = Source(title, read_result(file), prefix=f"{parent}: ")
    machines = {machine_name(source.result) for source in sources.values()}
    if len(machines) == 1:
        return [replace(source, prefix="") for source in sources.values()]
    return list(sources.values())


def write_report(sources: Sequence[Source], folder: Path, title: str) -> list[Path]:
    """Write ``report.md``, ``report.html`` and ``plots/``; returns what was written.

    Raises:
        ResultError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        plots = draw_all(sources, folder / PLOTS)
        blocks = list(_blocks(sources, plots, title))
        markdown, page = folder / MARKDOWN, folder / HTML
        markdown.write_text(to_markdown(blocks, folder), encoding="utf-8")
        page.write_text(to_html(blocks), encoding="utf-8")
    except OSError as error:
        raise ResultError(f"{folder} cannot be written: {error.strerror or error}") from error
    return [markdown, page, *(plot.file for plot in plots)]


def _blocks(sources: Sequence[Source], plots: Sequence[Plot], title: str) -> Iterator[Block]:
    yield Heading(title, 1)
    measured = [source for source in sources if source.result.not_measured is None]
    missing = [source for source in sources if source.result.not_measured is not None]
    for plot in plots:
        yield Heading(plot.title)
        yield Picture(plot.file, plot.title)
        yield Paragraph(plot.text)
    for source in measured:
        yield Heading(source.title)
        yield Facts(list(conditions(source.result)))
        yield numbers(source.result)
    if missing:
        yield Heading("Not measured")
        yield Facts([(s.title, f"{s.result.not_measured} ({s.result.command})") for s in missing])


def conditions(result: Result) -> Iterator[tuple[str, str]]:
    """Everything above a table, the parts of the case that all metrics share among it."""
    yield "machine", ", ".join(f"{name} {value}" for name, value in result.machine.items())
    yield "commit", result.commit
    yield "command", result.command
    if result.wheel:
        yield "packages", ", ".join(f"{name} {number}" for name, number in result.wheel.items())
    shared = _shared_case(result)
    if shared:
        yield "all of it", ", ".join(f"{key} {value}" for key, value in shared.items())
    if result.note:
        yield "note", result.note


def numbers(result: Result) -> Grid:
    """Every metric with its median, spread and the rest of its case."""
    shared = _shared_case(result)
    rows = []
    for name, metric in result.metrics.items():
        rest = {key: value for key, value in metric.case.items() if key not in shared}
        rows.append(
            [
                name,
                number(metric.median),
                metric.unit,
                f"{number(min(metric.samples))} to {number(max(metric.samples))}",
                str(len(metric.samples)),
                ", ".join(f"{key} {value}" for key, value in rest.items()),
            ]
        )
    return Grid(["metric", "median", "unit", "lowest to highest", "samples", "case"], rows)


def number(value: float) -> str:
    """A number with as many digits as it is worth."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _shared_case(result: Result) -> dict[str, object]:
    cases = [metric.case for metric in result.metrics.values() if metric.case]
    if len(cases) < 2:
        return {}
    return {
        key: value
        for key, value in cases[0].items()
        if all(key in case and case[key] == value for case in cases)
    }
