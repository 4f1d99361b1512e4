"""What the quality commands do alike: load a model behind a bar, keep and show the figures."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bytebound.cli.output import emit, emit_json
from bytebound.cli.progress import Waiting

from bytebound_evals.cli.errors import one_line

if TYPE_CHECKING:
    from bytebound import Engine

    from bytebound_evals.model_run import ModelRun
    from bytebound_evals.results import Metric
    from bytebound_evals.windows import CutText


def open_model(run: "ModelRun", what: str = "loading") -> "Engine":
    """Load, with a bar where it takes longer than a moment."""
    with Waiting(what) as waiting:
        return run.open(waiting.advance)


def model_name(model: str, given: str | None = None) -> str:
    """What results call the model: as asked, else the name of its folder, never a path."""
    return given or Path(model).expanduser().resolve().name


def keep(
    out: Path | None,
    metrics: "Mapping[str, Metric]",
    run: "ModelRun",
    commit: str | None,
    note: str,
) -> None:
    """Write the result file, if one is wanted."""
    if out is None:
        return
    from bytebound_evals.conditions import (
        command_record,
        commit_record,
        machine_record,
        wheel_record,
    )
    from bytebound_evals.results import Result, write_result

    result = Result(
        machine=machine_record("cuda" if run.on_gpu else "cpu", run.engine_name),
        commit=commit_record(commit),
        command=command_record("bytebound-evals", sys.argv[1:]),
        wheel=wheel_record(),
        note=note,
        metrics=metrics,
    )
    write_result(out, result)


def show(lines: Iterable[tuple[str, str]], record: Mapping[str, Any], *, as_json: bool) -> None:
    """Write the record as JSON, or the lines for reading."""
    if as_json:
        emit_json(dict(record))
    else:
        emit("".join(f"{label:<17}{one_line(text)}".rstrip() + "\n" for label, text in lines))


def text_lines(text: "CutText") -> list[tuple[str, str]]:
    """What was measured on, and by which rule."""
    rule = text.rule
    prefix = rule.prefix if rule.prefix_id is None else f"{rule.prefix}, id {rule.prefix_id}"
    return [
        ("text", f"{text.label}: {text.documents:,} documents, {text.tokens:,} tokens"),
        (
            "windows",
            f"{len(text.windows):,} of {rule.window:,} tokens, one every {rule.step:,}; prefix: "
            f"{prefix}; {text.scored:,} tokens scored",
        ),
    ]


def with_interval(value: float, interval: Sequence[float] | None, digits: int = 5) -> str:
    """A number and its 95 % interval."""
    if interval is None:
        return f"{value:.{digits}g}"
    return f"{value:.{digits}g}  (95 %: {interval[0]:.{digits}g} to {interval[1]:.{digits}g})"
