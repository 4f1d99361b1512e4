"""The conditions of a run, as a result file records them: machine, commit, command, packages."""

import platform
import shlex
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("bytebound", "bytebound-kernels", "bytebound-quant", "bytebound-evals")
_SMI = ("name", "driver_version", "power.limit", "clocks.sm", "clocks.mem", "clocks.max.sm")


def machine_record(device: str, engine: str | None = None) -> dict[str, Any]:
    """What decides the numbers of a run on ``device`` ("cpu" or "cuda").

    ``engine`` is the one of the CUDA backend that ran, kept under that name.

    For a card: gpu, driver, cuda, torch, power_limit_w and clocks as they are at this moment, so
    call it after the run. For a processor: cpu, threads, torch and python.
    """
    import torch

    if device.startswith("cuda"):
        card = _card()
        return {
            "gpu": card.get("name") or torch.cuda.get_device_name(),
            "driver": card.get("driver_version", "unknown"),
            "cuda": torch.version.cuda or "none",
            "torch": torch.__version__,
            "power_limit_w": card.get("power.limit", "unknown"),
            "clocks": _clocks(card),
            **({} if engine is None else {"engine": engine}),
        }
    return {
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def cpu_name() -> str:
    """The processor's own name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commit_record(given: str | None = None) -> str:
    """``given``, else the commit of the work tree that this file lies in, else "unknown"."""
    if given is not None:
        return given
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def command_record(program: str, arguments: Sequence[str]) -> str:
    """The command line as a shell would take it, without the folders of one machine."""
    return shlex.join([program, *map(_without_folders, arguments)])


def wheel_record(names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of the packages that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _without_folders(word: str) -> str:
    option, sign, value = word.partition("=")
    if sign and option.startswith("-"):
        return f"{option}={_without_folders(value)}"
    kind, colon, path = word.partition(":")
    if colon and path.startswith(("/", "~", ".")):  # as in text:/data/corpus.txt
        return f"{kind}:{Path(path).name}"
    return Path(word).name if word.startswith(("/", "~", "./", "../")) else word


def _card() -> dict[str, str]:
    command = ["nvidia-smi", f"--query-gpu={','.join(_SMI)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        return {}
    return dict(zip(_SMI, map(str.strip, lines[0].split(",")), strict=False))


def _clocks(card: dict[str, str]) -> str:
    if "clocks.sm" not in card:
        return "unknown"
    return (
        f"{card['clocks.sm']} MHz SM and {card['clocks.mem']} MHz memory after the run, "
        f"at most {card['clocks.max.sm']} SM"
    )
