"""What a card could do at most: its read bandwidth over the bytes that one token must read."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bytebound.cli.errors import UsageError

from bytebound_evals.errors import ResultError
from bytebound_evals.results import read_result

if TYPE_CHECKING:
    from bytebound import Engine

READ_METRIC = "read_gb_s"
MEASURED = "measured before"
BUDGET_CONTEXT = 1024  # cached positions that an engine's bytes_per_token are counted at


@dataclass(frozen=True, slots=True)
class ReadBandwidth:
    """How fast memory is read, in GB/s, and where the figure comes from."""

    gb_s: float
    source: str
    samples: tuple[float, ...] = ()
    """What ``gb_s`` is the median of, where that is known."""


def read_bandwidth(
    given: float | None, card_file: Path | None, *, on_gpu: bool
) -> ReadBandwidth | None:
    """The figure given, else that of a card's result file, else measured; None on a CPU.

    Raises:
        UsageError: the figure is no bandwidth.
        ResultError: the file has no ``read_gb_s``, or is no result file.
    """
    if given is not None:
        if not 0 < given < float("inf"):
            raise UsageError(f"--read-gb-s {given:g}: expected a bandwidth above 0")
        return ReadBandwidth(given, "given")
    if card_file is not None:
        metric = read_result(card_file).metrics.get(READ_METRIC)
        if metric is None:
            raise ResultError(f"{card_file}: no metric {READ_METRIC}; expected a card.json")
        return ReadBandwidth(metric.median, card_file.name, metric.samples)
    if not on_gpu:
        return None
    from bytebound_kernels.bench.cases import measure_read_bandwidth
    from bytebound_kernels.bench.memory import BenchError, find_backend

    try:
        found = measure_read_bandwidth(find_backend(), 10)
    except BenchError as error:
        raise UsageError(f"{error} Or give --read-gb-s") from error
    return ReadBandwidth(found.median, MEASURED, tuple(found.samples))


def bytes_per_token(engine: "Engine", context: float) -> float | None:
    """Bytes of one plain decode step at ``context`` cached positions; None where nobody counts."""
    if engine.bytes_per_token is None:
        return None
    plan = engine.memory_plan
    of_position = 0.0 if plan is None else plan.kv / plan.max_len
    return engine.bytes_per_token + (context - BUDGET_CONTEXT) * of_position


def percent_of_limit(tok_s: float, num_bytes: float, read: ReadBandwidth) -> float:
    """``tok_s`` as a share of ``read / num_bytes``, in percent."""
    return 100 * tok_s * num_bytes / (read.gb_s * 1e9)
