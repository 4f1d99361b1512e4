"""Command line: python -m bytebound_kernels.bench --json FILE."""

import argparse
import json
import sys
from pathlib import Path

from bytebound_kernels._device import devices, require_cuda
from bytebound_kernels.bench.cases import measure_read_bandwidth, measure_rms_norm
from bytebound_kernels.bench.memory import find_backend
from bytebound_kernels.bench.report import Metric, report, table
from bytebound_kernels.errors import KernelError

_ROWS = (1, 8, 4096)
_D = 5120


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bytebound_kernels.bench",
        description="Measure this card's read bandwidth and the kernels of bytebound-kernels.",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    parser.add_argument(
        "--only", choices=("read", "rms_norm"), help="report one group instead of all"
    )
    parser.add_argument("--samples", type=int, default=20, help="samples per metric (default 20)")
    arguments = parser.parse_args(argv)
    if arguments.samples < 1:
        parser.error(f"--samples is {arguments.samples}; expected 1 or more")
    return arguments


def _command(arguments: argparse.Namespace) -> list[str]:
    """Return the arguments as the result file records them: without the folder of this machine."""
    command = ["--samples", str(arguments.samples)]
    if arguments.only is not None:
        command += ["--only", arguments.only]
    if arguments.json is not None:
        command += ["--json", arguments.json.name]
    return command


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, object], str]:
    require_cuda("bench")
    backend = find_backend()
    require_cuda("bench", backend.device)
    device = devices()[backend.device]
    # The read bandwidth is measured in any case: it is what the kernels' times are set against.
    read = measure_read_bandwidth(backend, arguments.samples)
    metrics: list[Metric] = [] if arguments.only == "rms_norm" else [read]
    if arguments.only != "read":
        metrics += [
            measure_rms_norm(backend, device, arguments.samples, rows=rows, d=_D) for rows in _ROWS
        ]
    content = report(device, backend.name, _command(arguments), metrics)
    return content, table(metrics, read.median)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; return 0, or 1 where it cannot run."""
    arguments = _parse(argv)
    try:
        content, text = _measure(arguments)
    except KernelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(text)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")
        print(f"written: {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
