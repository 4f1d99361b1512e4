"""Result files: the one form in which every measured number is kept, read and written strictly.

The form is described in ``bench/README.md``. Nothing here measures, and nothing is corrected: a
file that does not hold what it should is an error that names the file and the field.
"""

import json
import math
import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bytebound_evals.errors import ResultError

SCHEMA = 1
BETTER = ("higher", "lower")
MEDIAN_TOLERANCE = 1e-6
"""Relative: a median is written rounded at most to this."""

_TOP_FIELDS = {"schema", "machine", "commit", "command", "metrics"}
_OPTIONAL_TOP_FIELDS = {"wheel", "note", "not_measured"}
_METRIC_FIELDS = {"unit", "better", "median", "samples", "case"}
_OPTIONAL_METRIC_FIELDS = {"tol_pct"}


@dataclass(frozen=True, slots=True)
class Metric:
    """One measured quantity: every sample that was taken, in order, in ``unit``."""

    unit: str
    better: str
    """"higher" or "lower"."""
    samples: tuple[float, ...]
    case: Mapping[str, Any] = field(default_factory=dict)
    """What was measured: model, prompt tokens, draft, ..."""
    tol_pct: float | None = None
    """A change for the worse beyond this many percent fails a gate; 0: it must not change."""

    @property
    def median(self) -> float:
        """The median of the samples."""
        return float(statistics.median(self.samples))

    def as_dict(self) -> dict[str, Any]:
        """Fields by name in the order of a file."""
        record: dict[str, Any] = {
            "unit": self.unit,
            "better": self.better,
            "median": self.median,
            "samples": list(self.samples),
        }
        if self.tol_pct is not None:
            record["tol_pct"] = self.tol_pct
        return {**record, "case": dict(self.case)}


@dataclass(frozen=True, slots=True)
class Result:
    """One run of one command on one machine."""

    machine: Mapping[str, Any]
    commit: str
    command: str
    metrics: Mapping[str, Metric]
    note: str | None = None
    wheel: Mapping[str, str] | None = None
    not_measured: str | None = None
    """Why there are no metrics; only then may there be none."""

    def as_dict(self) -> dict[str, Any]:
        """The file's content."""
        optional = {
            "wheel": None if self.wheel is None else dict(self.wheel),
            "note": self.note,
            "not_measured": self.not_measured,
        }
        return {
            "schema": SCHEMA,
            "machine": dict(self.machine),
            "commit": self.commit,
            "command": self.command,
            **{name: value for name, value in optional.items() if value is not None},
            "metrics": {name: metric.as_dict() for name, metric in self.metrics.items()},
        }


def write_result(file: Path, result: Result) -> None:
    """Write one file, whole or not at all; folders are made.

    Raises:
        ResultError: the result is not of the form, or the file cannot be written.
    """
    if not file.name or file.is_dir():
        raise ResultError(f"{str(file)!r} is a folder; expected the name of a file")
    parse_result(result.as_dict(), str(file))  # what is written can be read
    text = json.dumps(result.as_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.part")
        part.write_text(text, encoding="utf-8")
        os.replace(part, file)
    except OSError as error:
        raise ResultError(f"{file} cannot be written: {error.strerror or error}") from error


def read_result(file: Path, name: str | None = None) -> Result:
    """Read one file; ``name`` stands for it in errors.

    Raises:
        ResultError: the file cannot be read, is no JSON or not of the form.
    """
    name = str(file) if name is None else name
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultError(f"{name} cannot be read: {error.strerror or error}") from error
    except RecursionError:
        raise ResultError(f"{name}: nested too deep for a result file") from None
    except ValueError as error:  # no UTF-8, no JSON, or a number of thousands of digits
        raise ResultError(f"{name}: not JSON: {error}") from error
    return parse_result(record, name)


def parse_result(record: object, name: str) -> Result:
    """Check one file's content; ``name`` stands for the file in errors.

    Raises:
        ResultError: a field is missing, unknown or of another kind, a sample is no finite number,
            or a median is not that of the samples.
    """
    if not isinstance(record, dict):
        raise ResultError(f"{name}: expected an object, got {type(record).__name__}")
    _check_fields(name, record, _TOP_FIELDS, _OPTIONAL_TOP_FIELDS)
    if record["schema"] != SCHEMA or isinstance(record["schema"], bool):
        raise ResultError(f"{name}: schema is {record['schema']!r}, expected {SCHEMA}")
    machine = record["machine"]
    if not isinstance(machine, dict) or not {"gpu", "cpu"} & machine.keys():
        raise ResultError(f"{name}: machine must be an object that names its gpu or its cpu")
    for text in ("commit", "command", "note", "not_measured"):
        if text in record and (not isinstance(record[text], str) or not record[text].strip()):
            raise ResultError(f"{name}: {text} must be a non-empty string")
    wheel = record.get("wheel", {})
    if not isinstance(wheel, dict) or not all(isinstance(one, str) for one in wheel.values()):
        raise ResultError(f"{name}: wheel must be an object of versions by package, got {wheel!r}")
    metrics, reason = record["metrics"], record.get("not_measured")
    if not isinstance(metrics, dict) or bool(metrics) == (reason is not None):
        raise ResultError(
            f"{name}: metrics must be an object with at least one metric, or empty with the reason "
            "in not_measured"
        )
    return Result(
        machine=machine,
        commit=record["commit"],
        command=record["command"],
        metrics={key: _parse_metric(f"{name}: {key}", value) for key, value in metrics.items()},
        note=record.get("note"),
        wheel=record.get("wheel"),
        not_measured=reason,
    )


def _parse_metric(where: str, record: object) -> Metric:
    if not isinstance(record, dict):
        raise ResultError(f"{where}: expected an object, got {type(record).__name__}")
    _check_fields(where, record, _METRIC_FIELDS, _OPTIONAL_METRIC_FIELDS)
    if record["better"] not in BETTER:
        raise ResultError(f"{where}: better is {record['better']!r}, expected higher or lower")
    if not isinstance(record["unit"], str) or not isinstance(record["case"], dict):
        raise ResultError(f"{where}: unit must be a string and case an object")
    samples = record["samples"]
    if not isinstance(samples, list) or not samples or not all(map(_is_number, samples)):
        raise ResultError(f"{where}: samples must be all the finite numbers measured, at least one")
    tolerance: Any = record.get("tol_pct")
    if "tol_pct" in record and not (_is_number(tolerance) and tolerance >= 0):
        raise ResultError(f"{where}: tol_pct is {tolerance!r}, expected a number of at least 0")
    metric = Metric(
        unit=record["unit"],
        better=record["better"],
        samples=tuple(map(float, samples)),
        case=record["case"],
        tol_pct=tolerance,
    )
    median = record["median"]
    if not math.isfinite(metric.median):  # the mean of the two in the middle
        raise ResultError(f"{where}: the median of the samples is beyond every float")
    if not _is_number(median) or not math.isclose(median, metric.median, rel_tol=MEDIAN_TOLERANCE):
        raise ResultError(
            f"{where}: median is {median!r}, but that of the samples is {metric.median!r}"
        )
    return metric


def _check_fields(where: str, record: dict[str, Any], needed: set[str], allowed: set[str]) -> None:
    missing = sorted(needed - record.keys())
    unknown = sorted(record.keys() - needed - allowed)
    if missing or unknown:
        raise ResultError(
            f"{where}: missing: {', '.join(missing) or 'none'};"
            f" unknown: {', '.join(unknown) or 'none'}"
        )


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False
