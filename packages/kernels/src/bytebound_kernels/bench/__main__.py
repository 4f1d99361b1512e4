"""Command line: python -m bytebound_kernels.bench --json FILE."""

import argparse
import json
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from bytebound_kernels._device import DeviceInfo, devices, require_cuda
from bytebound_kernels.bench.cases import measure_read_bandwidth
from bytebound_kernels.bench.groups import GROUPS, Group
from bytebound_kernels.bench.memory import BenchError, find_backend
from bytebound_kernels.bench.report import Metric, report, table
from bytebound_kernels.errors import CudaUnavailableError, KernelError

_READ = "read"
_READ_WHAT = "the card's read bandwidth, the limit for everything else"

# Exit codes; 2 is wrong use.
_NOTHING_RAN = 1
_A_GROUP_FAILED = 3


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bytebound_kernels.bench",
        description="Measure this card's read bandwidth and the kernels of bytebound-kernels.",
        epilog="Exit code 0: done, though a group may lack what it needs; 1: nothing could run; "
        "2: wrong use; 3: a group failed.",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    parser.add_argument(
        "--card-json",
        type=Path,
        metavar="FILE",
        help="write the read bandwidth there instead, without the kernels",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=(_READ, *(group.name for group in GROUPS)),
        help="report this group instead of all; may be repeated",
    )
    parser.add_argument("--list", action="store_true", help="name the groups and end")
    parser.add_argument("--samples", type=int, default=20, help="samples per metric (default 20)")
    arguments = parser.parse_args(argv)
    if arguments.samples < 1:
        parser.error(f"--samples is {arguments.samples}; expected 1 or more")
    return arguments


def _command(arguments: argparse.Namespace) -> list[str]:
    """Return the arguments as the result file records them: without the folder of this machine."""
    command = ["--samples", str(arguments.samples)]
    for name in arguments.only or ():
        command += ["--only", name]
    for option, file in (("--json", arguments.json), ("--card-json", arguments.card_json)):
        if file is not None:
            command += [option, file.name]
    return command


@dataclass(slots=True)
class _Run:
    """What was measured so far, and where it goes."""

    arguments: argparse.Namespace
    device: DeviceInfo
    backend_name: str
    read: Metric
    metrics: list[Metric] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # what a group lacks
    failed: list[str] = field(default_factory=list)

    def wants(self, name: str) -> bool:
        """Whether the caller asked for this group."""
        return self.arguments.only is None or name in self.arguments.only

    def write(self) -> None:
        """Write the files. Done after every group, so that a run that is ended leaves something."""
        command = _command(self.arguments)
        card = self.arguments.card_json
        read = [self.read] if self.wants(_READ) else []
        contents = {
            card: read if card is not None else [],
            self.arguments.json: self.metrics if card is not None else [*read, *self.metrics],
        }
        for file, metrics in contents.items():
            if file is not None and metrics:
                content = report(self.device, self.backend_name, command, metrics)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(content, indent=2) + "\n")

    def measure(self, group: Group) -> None:
        """Run a group; note what came of it."""
        began = time.monotonic()
        try:
            found = group.measure(
                {
                    "backend": find_backend(),
                    "device": self.device,
                    "samples": self.arguments.samples,
                    "read_gb_s": self.read.median,
                }
            )
        except (ImportError, CudaUnavailableError, BenchError) as error:
            self.skipped[group.name] = f"{type(error).__name__}: {error}"
        except Exception:  # whatever a framework raises: the other groups are still worth having
            traceback.print_exc()
            self.failed.append(group.name)
        else:
            self.metrics += found
            self.write()
            seconds = time.monotonic() - began
            print(f"{group.name}: {len(found)} metrics in {seconds:.1f} s", file=sys.stderr)


def _begin(arguments: argparse.Namespace) -> _Run:
    """Measure the read bandwidth, in any case: it is what the kernels' times are set against."""
    require_cuda("bench")
    backend = find_backend()
    require_cuda("bench", backend.device)
    device = devices()[backend.device]
    read = measure_read_bandwidth(backend, arguments.samples)
    return _Run(arguments, device, backend.name, read)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    arguments = _parse(argv)
    if arguments.list:
        print("\n".join(f"{name:<10} {what}" for name, what in _names()))
        return 0
    try:
        run = _begin(arguments)
    except KernelError as error:
        print(f"error: {error}", file=sys.stderr)
        return _NOTHING_RAN
    for group in GROUPS:
        if run.wants(group.name):
            run.measure(group)
    run.write()
    shown = ([run.read] if run.wants(_READ) else []) + run.metrics
    print(table(shown, run.read.median))
    for name, reason in run.skipped.items():
        print(f"skipped: {name}: {reason}")
    for name in run.failed:
        print(f"failed: {name}")
    if run.failed:
        return _A_GROUP_FAILED
    return 0 if shown else _NOTHING_RAN


def _names() -> list[tuple[str, str]]:
    return [(_READ, _READ_WHAT), *((group.name, group.what) for group in GROUPS)]


if __name__ == "__main__":
    sys.exit(main())
