"""From a measured run to a result file: the conditions, and what a reader must know."""

from bytebound_evals.conditions import (
    command_record,
    commit_record,
    machine_record,
    wheel_record,
)
from bytebound_evals.results import Metric, Result
from bytebound_evals.speed.limits import MEASURED, READ_METRIC, ReadBandwidth
from bytebound_evals.speed.samples import SPEED_TOLERANCE_PCT
from bytebound_evals.speed.settings import Settings
from bytebound_evals.speed.throughput import Measured

PROGRAM = "bytebound-evals"


def speed_result(
    measured: Measured, settings: Settings, read: ReadBandwidth | None, commit: str | None
) -> Result:
    """Everything that was measured, with its conditions."""
    metrics = dict(measured.metrics)
    if read is not None:
        metrics[READ_METRIC] = Metric(
            "GB/s",
            "higher",
            read.samples or (read.gb_s,),
            {"source": read.source},
            SPEED_TOLERANCE_PCT,
        )
    words = settings.arguments()
    if read is not None and read.source != MEASURED:  # so that the gate has the same limit
        words += ["--read-gb-s", f"{read.gb_s:.17g}"]
    return Result(
        machine=machine_record("cuda" if settings.on_gpu else "cpu", settings.engine_name),
        commit=commit_record(commit),
        command=command_record(PROGRAM, words),
        wheel=wheel_record(),
        note=note_of(measured, settings),
        metrics=metrics,
    )


def note_of(measured: Measured, settings: Settings) -> str:
    """The sentences above the table."""
    parts = [
        f"Greedy, one stream, {settings.new_tokens} new tokens, one run to warm up and "
        f"{settings.samples} that count; the drafts one after the other, the prompts in turns."
    ]
    if settings.stop_at_end:
        parts.append("A reply ended where the model ended it.")
    if settings.is_random:
        parts.append(
            "Random weights: right for speed, not for quality or acceptance, so drafts have a time "
            "per step only."
        )
    if any(draft.kind == "forced" for draft in settings.drafts):
        parts.append(
            "Forced acceptance: the draft replays the plain reply, each id wrong with the stated "
            "probability, and costs no draft head."
        )
    if measured.ended:
        ends = ", ".join(f"{name} after {count}" for name, count in measured.ended.items())
        parts.append(f"Plain replies came to their own end: {ends} tokens.")
    return " ".join(parts)
