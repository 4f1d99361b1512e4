"""Rules for text: no registry host and no machine path in tracked files; the fault table's links.

Knows nothing of manifests. `check_workspace` runs these with its own rules.
"""

import re
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

# Hosts are written in parts and paths as an alternation, so that this file passes its own rules.
REGISTRY_HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("anaconda", "org"),
        ("crates", "io"),
        ("deb", "debian", "org"),
    )
)
MACHINE_PATH = re.compile(
    r"(?:(?<![\w.$})~*/-])|(?<=file://))"
    r"/(?:(?:work|home|root|tmp|Users|mnt/[a-z])(?:/|\b)|opt/(?!cuda\b|python\b)\S)"
)
"""Not counted: where every installation of CUDA or of the build image puts its files."""
BINARY_SUFFIXES = (".safetensors", ".npz", ".png")
"""Files that may hold NUL bytes; anywhere else one would hide a text from these rules."""
EXEMPT = (
    "uv.lock",  # uv writes the index and every file's address into it
    "*/data/*",  # text that models read is quoted, not ours
    "*tokenizer.json",  # a learned vocabulary holds whatever its corpus held
)

FAULT_TABLE = Path("docs/faults.md")
FAULT_IDS = tuple(f"E{number:02}" for number in range(1, 80))
FAULT_OWNERS = ("kernels", "CUDA engine", "quantization", "evaluation", "server")
_FAULT_ROW = re.compile(r"^\| (?P<id>E\d{2}) \|(?P<rest>.*)$", re.M)
_TEST_LINK = re.compile(r"`(?P<path>[\w./-]+\.py)::(?P<name>\w+)`")
_STEP_LINK = re.compile(r"`\.ci/run (?P<step>[\w-]+)`: [^;|]+")
_FAULT_STATE = re.compile(
    rf"{_TEST_LINK.pattern}|{_STEP_LINK.pattern}|impossible because .+"
    rf"|not yet: (?:{'|'.join(FAULT_OWNERS)})"
)


def tracked_files(root: Path) -> list[str]:
    """Return the paths that git tracks under `root`, sorted.

    Raises:
        OSError: git is not installed, or `root` is not in a work tree.
    """
    command = ["git", "-C", str(root), "ls-files", "-z"]
    listing = subprocess.run(command, capture_output=True, check=False)
    if listing.returncode != 0:
        raise OSError(f"{' '.join(command)}: {listing.stderr.decode(errors='replace').strip()}")
    return sorted(name for name in listing.stdout.decode().split("\0") if name)


def check_tracked_text(root: Path) -> Iterator[str]:
    """Yield each line of a tracked text file that names a registry host or a machine path."""
    for name in tracked_files(root):
        file = root / name
        if any(fnmatch(name, pattern) for pattern in EXEMPT) or not file.is_file():
            continue
        content = file.read_bytes()
        if b"\0" in content:
            if not name.lower().endswith(BINARY_SUFFIXES):
                yield f"{name}: holds NUL bytes; write UTF-8, or name its suffix as a binary one"
            continue
        for number, line in enumerate(content.decode("utf-8", errors="replace").split("\n"), 1):
            for host in REGISTRY_HOSTS:
                if host in line.lower():
                    yield f"{name}:{number}: names the registry host {host}"
            for match in MACHINE_PATH.finditer(line):
                yield f"{name}:{number}: names a path of one machine: {line[match.start() :][:40]}"


def check_fault_table(root: Path) -> Iterator[str]:
    """Yield what is wrong with docs/faults.md: rows missing or twice, links to no test."""
    file = root / FAULT_TABLE
    if not file.is_file():
        yield f"{FAULT_TABLE}: missing"
        return
    text = file.read_text(encoding="utf-8")
    rows = [match["id"] for match in _FAULT_ROW.finditer(text)]
    for fault in FAULT_IDS:
        if rows.count(fault) != 1:
            yield f"{FAULT_TABLE}: {fault} has {rows.count(fault)} rows, expected 1"
    for fault in sorted(set(rows) - set(FAULT_IDS)):
        yield f"{FAULT_TABLE}: {fault} is not a known fault"
    for row in _FAULT_ROW.finditer(text):
        state = row["rest"].rstrip(" |").rpartition(" | ")[2]
        for part in state.split("; "):
            if not _FAULT_STATE.fullmatch(part):
                yield f"{FAULT_TABLE}: {row['id']} says {part!r}, which is no state of a fault"
    steps = root / ".ci" / "run"
    defined = steps.read_text(encoding="utf-8") if steps.is_file() else ""
    for match in _STEP_LINK.finditer(text):
        if f"\nstep_{match['step']}()" not in defined:
            yield f"{FAULT_TABLE}: .ci/run has no step {match['step']}"
    for match in _TEST_LINK.finditer(text):
        path, name = match["path"], match["name"]
        test_file = root / path
        if not test_file.is_file():
            yield f"{FAULT_TABLE}: {path} does not exist"
        elif not re.search(rf"^\s*(?:async )?def {name}\(", test_file.read_text("utf-8"), re.M):
            yield f"{FAULT_TABLE}: {path} has no test {name}"
