"""The report of a finished job: what was done to every tensor, and what it cost in precision.

Everything but ``time`` is the same for the same job, byte for byte. An error is a root of relative
squares: ``weight_error`` = |W - Q| / |W|; ``output_error`` = |(W - Q) X^T| / |W X^T| over the
calibration inputs X, where W is what GPTQ aimed at: the matrix itself, or with ``compensate`` the
matrix moved by ``correction`` = |W* - W| / |W| to make up for the errors of earlier ones.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bytebound_quant import __version__
from bytebound_quant.journal import DoneUnit
from bytebound_quant.plan import Plan

REPORT_VERSION = 1
ERRORS = ("weight_error", "output_error", "rtn_output_error")


def make_report(
    *,
    plan: Plan,
    options: Mapping[str, Any],
    environment: Mapping[str, Any],
    source_hashes: Mapping[str, str],
    calibration: Mapping[str, Any] | None,
    units: Sequence[DoneUnit],
) -> dict[str, Any]:
    """The whole report, in JSON's types."""
    return {
        "format_version": REPORT_VERSION,
        "tool": f"bytebound-quant {__version__}",
        "method": options["method"],
        "scheme": plan.options.scheme.describe(),
        "options": dict(options),
        "environment": dict(environment),
        "size": _size(plan, units),
        "layers": [_layer(unit) for unit in units if unit.tensors],
        "tensors": [row for unit in units for row in unit.tensors],
        "exceptions": plan.exceptions(),
        "calibration": None if calibration is None else dict(calibration),
        "sha256": {
            "source": dict(source_hashes),
            "output": {unit.file: unit.sha256 for unit in units},
        },
        "time": {
            "seconds": sum(unit.seconds for unit in units),
            "units": {unit.name: unit.seconds for unit in units},
        },
    }


def _size(plan: Plan, units: Sequence[DoneUnit]) -> dict[str, Any]:
    counts = {True: 0, False: 0}
    kept_bytes = 0
    for one in plan.tensors():
        elements = 1
        for length in one.stored.shape:
            elements *= length
        counts[one.quantized] += elements
        kept_bytes += 0 if one.quantized else one.stored.num_bytes
    total = sum(unit.tensor_bytes for unit in units)
    return {
        "source_bytes": sum(unit.source_bytes for unit in plan.units),
        "output_bytes": total,
        "quantized_weights": counts[True],
        "kept_weights": counts[False],
        "bits_per_quantized_weight": 8 * (total - kept_bytes) / counts[True],
        "bits_per_weight": 8 * total / (counts[True] + counts[False]),
    }


def _layer(unit: DoneUnit) -> dict[str, Any]:
    """The root mean square of each error over a unit's matrices."""
    row: dict[str, Any] = {"name": unit.name, "matrices": len(unit.tensors)}
    for error in ERRORS:
        values = [one[error] for one in unit.tensors if error in one]
        if values:
            row[error] = (sum(value**2 for value in values) / len(values)) ** 0.5
    return row
