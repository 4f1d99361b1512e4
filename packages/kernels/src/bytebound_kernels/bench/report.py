"""The result file: one machine, one commit, every sample of every metric (schema 1)."""

import shlex
import subprocess
from dataclasses import dataclass, field
from os import environ
from statistics import median
from typing import Any

from bytebound_kernels import __version__
from bytebound_kernels._device import DeviceInfo
from bytebound_kernels._native import cuda_toolkit_version

__all__ = ["SCHEMA", "Metric", "report", "table"]

SCHEMA = 1
_UNKNOWN = "unknown"

_SMI_FIELDS = (
    "name",
    "driver_version",
    "power.limit",
    "clocks.current.sm",
    "clocks.current.memory",
    "clocks.max.sm",
    "clocks.max.memory",
)


@dataclass(frozen=True, slots=True)
class Metric:
    """One measured quantity."""

    name: str
    unit: str
    better: str  # "higher" or "lower"
    samples: list[float]
    tol_pct: float  # a change beyond this, and beyond the noise, is a regression
    case: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """The middle sample."""
        return median(self.samples)

    def as_json(self) -> dict[str, Any]:
        """Return the entry of the result file."""
        return {
            "unit": self.unit,
            "better": self.better,
            "median": self.median,
            "samples": self.samples,
            "tol_pct": self.tol_pct,
            "case": self.case,
        }


def _output_of(*command: str) -> str | None:
    """Return what a program prints; None where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _smi(device: DeviceInfo) -> dict[str, str]:
    query = f"--query-gpu={','.join(_SMI_FIELDS)}"
    output = _output_of("nvidia-smi", query, "--format=csv,noheader,nounits")
    rows = [row.split(", ") for row in (output or "").splitlines()]
    # nvidia-smi numbers all GPUs of the machine, CUDA only the visible ones: match by name.
    for row in rows:
        if len(row) == len(_SMI_FIELDS) and row[0] == device.name:
            return dict(zip(_SMI_FIELDS, row, strict=True))
    return dict.fromkeys(_SMI_FIELDS, _UNKNOWN)


def _machine(device: DeviceInfo, backend_name: str) -> dict[str, Any]:
    smi = _smi(device)
    framework, _, version = backend_name.partition(" ")
    clocks = (
        f"{smi['clocks.current.sm']} MHz SM and {smi['clocks.current.memory']} MHz memory after "
        f"the run, at most {smi['clocks.max.sm']} and {smi['clocks.max.memory']}"
    )
    return {
        "gpu": device.name,
        "driver": smi["driver_version"],
        "cuda": cuda_toolkit_version,
        framework: version,
        "power_limit_w": smi["power.limit"],
        "clocks": clocks,
    }


def report(
    device: DeviceInfo, backend_name: str, arguments: list[str], metrics: list[Metric]
) -> dict[str, Any]:
    """Return the result file's content. Call it right after the measurement, for the clocks."""
    commit = environ.get("BYTEBOUND_COMMIT") or _output_of("git", "rev-parse", "HEAD")
    return {
        "schema": SCHEMA,
        "machine": _machine(device, backend_name),
        "commit": commit or _UNKNOWN,
        "command": shlex.join(["python", "-m", "bytebound_kernels.bench", *arguments]),
        "wheel": {"bytebound-kernels": __version__},
        "metrics": {metric.name: metric.as_json() for metric in metrics},
    }


_SECONDS = {"us": 1e-6, "ms": 1e-3}


def _percent_of_limit(metric: Metric, read_gb_s: float) -> str:
    """Return what share of the read bandwidth a metric reaches, where that means something."""
    if metric.unit == "%":
        return f"{metric.median:.1f}"
    num_bytes = metric.case.get("bytes")
    if num_bytes is None or metric.unit not in _SECONDS:
        return ""
    percent = num_bytes / (metric.median * _SECONDS[metric.unit]) / 1e9 / read_gb_s * 100
    # Data that lie in the L2 are not bound by the memory, so this can be more than 100.
    return f"{percent:.1f}" + (" (from L2)" if metric.case.get("l2") == "warm" else "")


def table(metrics: list[Metric], read_gb_s: float) -> str:
    """Return a table for a person; bytes moved are set against the card's read bandwidth."""
    width = max([36, *(len(m.name) for m in metrics)])
    lines = [
        f"{'metric':<{width}} {'median':>10} {'min':>10} {'max':>10} unit   % of read bandwidth"
    ]
    for m in metrics:
        lines.append(
            f"{m.name:<{width}} {m.median:>10.2f} {min(m.samples):>10.2f} {max(m.samples):>10.2f} "
            f"{m.unit:<6} {_percent_of_limit(m, read_gb_s)}".rstrip()
        )
    return "\n".join(lines)
