"""What the plots show, picked out of result files by the fields of each metric's case."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bytebound_evals.results import Metric, Result


@dataclass(frozen=True, slots=True)
class Source:
    """One result file and the name that the report gives it, e.g. "h200/decode"."""

    title: str
    result: Result
    prefix: str = ""
    """What tells its lines from those of another machine."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measured value at one place of a plot's axis; ``low`` and ``high`` are samples, too."""

    x: float
    y: float
    low: float
    high: float


Series = dict[str, list[Point]]
"""Points by the name of the line."""


def decode_by_context(sources: Sequence[Source]) -> Series:
    """Tokens per second over the length of the prompt, one line an engine and draft."""
    series: Series = {}
    for source, name, metric in _metrics(sources):
        case = metric.case
        at_depth = name.endswith(".tok_s") and "new_tokens" in case and "prompt" not in case
        if at_depth and not name.startswith(("suite.", "prompt_")) and _is_count(case):
            series.setdefault(label_of(source, case), []).append(
                point(float(case["prompt_tokens"]), metric)
            )
    for points in series.values():
        points.sort(key=lambda one: one.x)
    return series


def speed_by_prompt(sources: Sequence[Source]) -> dict[str, dict[str, Metric]]:
    """Tokens per second by engine and draft, then by prompt."""
    found: dict[str, dict[str, Metric]] = {}
    for source, name, metric in _metrics(sources):
        prompt = metric.case.get("prompt")
        if name.endswith(".tok_s") and isinstance(prompt, str):
            found.setdefault(label_of(source, metric.case), {})[prompt] = metric
    return found


def kl_against_bits(sources: Sequence[Source]) -> Series:
    """KL divergence over bits per weight, one line a form, e.g. "gptq_mse"."""
    series: Series = {}
    for source in sources:
        for name, metric in source.result.metrics.items():
            form, _, field = name.rpartition(".")
            bits = source.result.metrics.get(f"{form}.bits_per_weight")
            if field == "kl" and bits is not None:
                series.setdefault(form, []).append(point(bits.median, metric))
    return series


@dataclass(frozen=True, slots=True)
class Roof:
    """Plain decode speed over the bytes of a token, and the card's read bandwidth in GB/s."""

    card: str
    read_gb_s: float
    points: Series


def roofs(sources: Sequence[Source]) -> list[Roof]:
    """One for every machine whose read bandwidth is among the results."""
    by_card: dict[str, Roof] = {}
    for source in sources:
        card = machine_name(source.result)
        read = source.result.metrics.get("read_gb_s")
        if read is not None and card not in by_card:
            by_card[card] = Roof(card, read.median, {})
    for source, name, metric in _metrics(sources):
        card = machine_name(source.result)
        stem, _, field = name.rpartition(".")
        speed = source.result.metrics.get(f"{stem}.tok_s")
        if field == "bytes_per_token" and speed is not None and card in by_card:
            line = by_card[card].points.setdefault(label_of(source, speed.case), [])
            line.append(point(metric.median / 1e9, speed))
    return [roof for roof in by_card.values() if roof.points]


def label_of(source: Source, case: Any) -> str:
    """Engine and draft, as a legend names them."""
    draft = case.get("draft", "none")
    count = case.get("draft_tokens", "")
    rate = f"@{case['forced_rate']:g}" if "forced_rate" in case else ""
    engine = source.prefix + str(case.get("engine") or source.title)
    return f"{engine} plain" if draft == "none" else f"{engine} {draft}{count}{rate}"


def machine_name(result: Result) -> str:
    """The card, or the processor where there is none."""
    return str(result.machine.get("gpu") or result.machine.get("cpu"))


def point(x: float, metric: Metric) -> Point:
    """The median with the lowest and the highest sample."""
    return Point(x, metric.median, min(metric.samples), max(metric.samples))


def _metrics(sources: Sequence[Source]) -> Iterator[tuple[Source, str, Metric]]:
    for source in sources:
        for name, metric in source.result.metrics.items():
            yield source, name, metric


def _is_count(case: Any) -> bool:
    value = case.get("prompt_tokens")
    return isinstance(value, int) and not isinstance(value, bool)
