"""Made-up results for the tests of the gate and the report."""

import dataclasses
from collections.abc import Callable
from typing import Any

from bytebound_evals.results import Metric, Result

MACHINE = {"gpu": "Some GPU", "driver": "580.1", "torch": "2.11", "power_limit_w": "700.00"}
CASE = {"model": "tiny", "prompt_tokens": 1024, "draft": "none"}


def metric(*samples: float, unit: str = "tok/s", better: str = "higher", **fields: Any) -> Metric:
    return Metric(unit, better, samples, fields.pop("case", CASE), **fields)


def result(metrics: dict[str, Metric], **fields: Any) -> Result:
    given = {"machine": MACHINE, "commit": "abc123", "command": "bytebound-evals throughput"}
    return Result(metrics=metrics, **{**given, **fields})


def scaled(one: Result, factor: Callable[[str, int], float]) -> Result:
    """Every sample of every metric times ``factor(name, index)``."""
    metrics = {
        name: dataclasses.replace(
            m, samples=tuple(s * factor(name, i) for i, s in enumerate(m.samples))
        )
        for name, m in one.metrics.items()
    }
    return dataclasses.replace(one, metrics=metrics)
