"""Write the measured numbers of README.md from bench/results, and check that they are current.

Every number in the README comes from a JSON file under bench/results (its form: bench/README.md).
This tool owns the lines between `<!-- results:begin -->` and `<!-- results:end -->`.

    python tools/render_results.py [--check] [--root ROOT]

Exit code 0: written, or current; 1: --check found it out of date; 2: a result file is damaged.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BEGIN = "<!-- results:begin -->"
END = "<!-- results:end -->"
NOTHING = "Nothing measured yet: there is no file under `bench/results`."
SCHEMA = 1
NOT_RESULTS = ("tiny/corpus", "tiny/training")
"""Files that lie among the results and are none: what a model was trained on, and the run's log."""
BETTER = ("higher", "lower")
TOP_FIELDS = {"schema", "machine", "commit", "command", "metrics"}
OPTIONAL_TOP_FIELDS = {"wheel", "note"}
METRIC_FIELDS = {"unit", "better", "median", "samples", "case"}
OPTIONAL_METRIC_FIELDS = {"tol_pct"}
MEDIAN_TOLERANCE = 1e-6
"""Relative: a median is written rounded at most to this."""


class ResultError(Exception):
    """A result file, or the README's block, is damaged."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One measured quantity; `samples` are in `unit`, all that were taken."""

    name: str
    unit: str
    median: float
    samples: tuple[float, ...]
    case: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """One file under bench/results."""

    title: str
    machine: dict[str, Any]
    commit: str
    command: str
    note: str
    metrics: tuple[Metric, ...]


def load_results(folder: Path) -> list[Result]:
    """Read every JSON file below `folder`, sorted by path.

    Raises:
        ResultError: a file is not of the form that bench/README.md describes.
    """
    files = {f.relative_to(folder).with_suffix("").as_posix(): f for f in folder.rglob("*.json")}
    return [_load_result(name, files[name]) for name in sorted(files) if name not in NOT_RESULTS]


def _load_result(name: str, file: Path) -> Result:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ResultError(f"{name}: not JSON: {error}") from error
    if not isinstance(record, dict):
        raise ResultError(f"{name}: expected an object, got {type(record).__name__}")
    _check_fields(name, record, TOP_FIELDS, OPTIONAL_TOP_FIELDS)
    if record["schema"] != SCHEMA:
        raise ResultError(f"{name}: schema is {record['schema']!r}, expected {SCHEMA}")
    machine = record["machine"]
    if not isinstance(machine, dict) or not {"gpu", "cpu"} & machine.keys():
        raise ResultError(f"{name}: machine must be an object that names its gpu or its cpu")
    for field in ("commit", "command"):
        if not isinstance(record[field], str) or not record[field].strip():
            raise ResultError(f"{name}: {field} must be a non-empty string")
    if not isinstance(record["metrics"], dict) or not record["metrics"]:
        raise ResultError(f"{name}: metrics must be an object with at least one metric")
    return Result(
        title=name,
        machine=machine,
        commit=record["commit"],
        command=record["command"],
        note=str(record.get("note", "")),
        metrics=tuple(
            _parse_metric(f"{name}: {key}", key, metric)
            for key, metric in sorted(record["metrics"].items())
        ),
    )


def _parse_metric(where: str, name: str, metric: object) -> Metric:
    if not isinstance(metric, dict):
        raise ResultError(f"{where}: expected an object, got {type(metric).__name__}")
    _check_fields(where, metric, METRIC_FIELDS, OPTIONAL_METRIC_FIELDS)
    if metric["better"] not in BETTER:
        raise ResultError(f"{where}: better is {metric['better']!r}, expected higher or lower")
    if not isinstance(metric["unit"], str) or not isinstance(metric["case"], dict):
        raise ResultError(f"{where}: unit must be a string and case an object")
    samples = metric["samples"]
    if not isinstance(samples, list) or not samples or not all(map(_is_number, samples)):
        raise ResultError(f"{where}: samples must be all the finite numbers measured, at least one")
    expected = statistics.median(samples)
    median = metric["median"]
    if not _is_number(median) or not math.isclose(median, expected, rel_tol=MEDIAN_TOLERANCE):
        raise ResultError(f"{where}: median is {median!r}, but that of the samples is {expected!r}")
    return Metric(
        name=name,
        unit=metric["unit"],
        median=float(median),
        samples=tuple(float(sample) for sample in samples),
        case=metric["case"],
    )


def _check_fields(where: str, record: dict[str, Any], needed: set[str], allowed: set[str]) -> None:
    missing = sorted(needed - record.keys())
    unknown = sorted(record.keys() - needed - allowed)
    if missing or unknown:
        raise ResultError(
            f"{where}: missing: {', '.join(missing) or 'none'};"
            f" unknown: {', '.join(unknown) or 'none'}"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def render(results: Sequence[Result]) -> str:
    """Return the block's text, without its two markers."""
    if not results:
        return NOTHING
    return "\n\n".join("\n".join(_render_result(result)) for result in results)


def _render_result(result: Result) -> Iterator[str]:
    machine = ", ".join(f"{key} {value}" for key, value in result.machine.items())
    # Folded: the README stays readable with every sample's table in it.
    yield f"<details><summary>{result.title} ({len(result.metrics)} numbers)</summary>"
    yield ""
    yield f"**{result.title}**: {_cell(machine)}; commit `{result.commit}`; `{result.command}`"
    if result.note:
        yield ""
        yield result.note
    yield ""
    yield "| metric | median | unit | lowest to highest | samples | case |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for metric in result.metrics:
        spread = f"{_number(min(metric.samples))} to {_number(max(metric.samples))}"
        case = ", ".join(f"{key} {value}" for key, value in metric.case.items())
        cells = (
            metric.name,
            _number(metric.median),
            metric.unit,
            spread,
            str(len(metric.samples)),
            case,
        )
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |"
    yield ""
    yield "</details>"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def replace_block(text: str, block: str) -> str:
    """Return `text` with `block` between the markers.

    Raises:
        ResultError: the markers are not there exactly once and in order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ResultError(f"README.md: expected {BEGIN} and then {END}, once each")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    return f"{head}{BEGIN}\n{block}\n{END}{tail}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Render or check; return the exit code."""
    parser = argparse.ArgumentParser(description="Render bench/results into README.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    here = Path(__file__).resolve().parent.parent
    parser.add_argument("--root", type=Path, default=here, help="default: this repository")
    options = parser.parse_args(arguments)
    readme = options.root / "README.md"
    try:
        text = readme.read_text(encoding="utf-8")
        wanted = replace_block(text, render(load_results(options.root / "bench" / "results")))
    except (OSError, ResultError) as error:
        print(f"render_results: {error}", file=sys.stderr)
        return 2
    if options.check:
        if text != wanted:
            print("README.md: the results are out of date; run tools/render_results.py")
            return 1
    elif text != wanted:
        readme.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
