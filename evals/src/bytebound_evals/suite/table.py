"""The table of a suite's forms: a row for each way of storing one model."""

from collections.abc import Mapping

from bytebound_evals.results import Metric

COLUMNS = ("bits per weight", "perplexity", "KL, nat", "top-1", "problems right")


def form_rows(metrics: Mapping[str, Metric]) -> dict[str, tuple[float | None, ...]]:
    """By form, what ``COLUMNS`` name; None where it was not measured."""

    def median(name: str | None) -> float | None:
        metric = None if name is None else metrics.get(name)
        return None if metric is None else metric.median

    rows = {}
    for name in metrics:
        form, _, field = name.rpartition(".")
        if field == "bits_per_weight":
            accuracy = next((n for n in metrics if n.endswith(f".{form}.accuracy")), None)
            names = (name, f"{form}.ppl", f"{form}.kl", f"{form}.top1", accuracy)
            rows[form] = tuple(map(median, names))
    return rows
