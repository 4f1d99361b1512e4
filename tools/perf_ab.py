"""Measure two commits by turns on this machine: base, head, base, head.

    python3 tools/perf_ab.py prepare --base COMMIT --head COMMIT --work DIR
    python3 tools/perf_ab.py measure --work DIR --out DIR [--rounds 2] -- THROUGHPUT OPTIONS
    python3 tools/perf_ab.py clean --work DIR

`prepare` makes a work tree and an environment of each commit; both measure with head's
bytebound-evals, so that the harness is the same. `measure` runs `bytebound-evals throughput` in
fresh processes and writes DIR/base-1.json, head-1.json, base-2.json, ...; hold bench/gpu_lock
around it. Needs Python, git and uv.

Exit code 0: done; 1: a build or a run failed; 2: wrong use.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SIDES = ("base", "head")
COMMITS_FILE = "commits.json"


class PerfError(Exception):
    """A step failed; its own output says why."""


class UsageError(Exception):
    """The options do not fit what is there."""


def prepare(base: str, head: str, work: Path, repository: Path) -> None:
    """Check out and install both commits below `work`."""
    if work.exists():
        raise UsageError(f"{work} exists; clean it first")
    commits = {
        side: _commit(repository, name) for side, name in zip(SIDES, (base, head), strict=True)
    }
    work.mkdir(parents=True)
    for side, commit in commits.items():
        tree = work / side
        _run(["git", "-C", repository, "worktree", "add", "--detach", tree, commit])
        _run(["uv", "sync", "--locked", "--no-dev", "--project", tree])
    # The harness of head on both sides: what differs is what it measures.
    harness = work / "head" / "evals"
    _run(["uv", "pip", "install", "--python", _python(work, "base"), "--no-deps", harness])
    (work / COMMITS_FILE).write_text(json.dumps(commits) + "\n", encoding="utf-8")


def measure(work: Path, out: Path, rounds: int, pause_s: float, words: Sequence[str]) -> None:
    """Run both sides `rounds` times in turns."""
    if rounds < 1:
        raise UsageError(f"--rounds {rounds}: expected at least 1")
    try:
        commits = json.loads((work / COMMITS_FILE).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{work} is not prepared: {error.strerror or error}") from error
    out.mkdir(parents=True, exist_ok=True)
    for turn in range(1, rounds + 1):
        for side in SIDES:
            file = out.absolute() / f"{side}-{turn}.json"
            command: list[str | Path] = [
                _python(work, side),
                "-m",
                "bytebound_evals",
                "throughput",
                *words,
            ]
            # Not in the repository: the tree here would be imported in place of the side's own.
            _run([*command, "--commit", commits[side], "--out", file], folder=work)
            time.sleep(pause_s)  # the card cools down: every run begins alike


def clean(work: Path, repository: Path) -> None:
    """Remove both work trees and everything else below `work`."""
    for side in SIDES:
        if (work / side).exists():
            _run(["git", "-C", repository, "worktree", "remove", "--force", work / side])
    shutil.rmtree(work, ignore_errors=True)


def _python(work: Path, side: str) -> Path:
    return work.absolute() / side / ".venv" / "bin" / "python"


def _commit(repository: Path, name: str) -> str:
    command = ["git", "-C", str(repository), "rev-parse", "--verify", "--quiet", "--end-of-options"]
    done = subprocess.run(
        [*command, f"{name}^{{commit}}"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise UsageError(f"{name!r} is no commit of {repository}")
    return done.stdout.strip()


def _run(command: Sequence[str | Path], folder: Path | None = None) -> None:
    words = [str(word) for word in command]
    print("+", *words, file=sys.stderr, flush=True)
    try:
        done = subprocess.run(words, cwd=folder, check=False)
    except OSError as error:
        raise PerfError(f"{words[0]}: {error.strerror or error}") from error
    if done.returncode != 0:
        raise PerfError(f"{words[0]} ended with exit code {done.returncode}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one step; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    for name in ("prepare", "measure", "clean"):
        step = steps.add_parser(name)
        step.add_argument("--work", type=Path, required=True, metavar="DIR")
        if name == "prepare":
            step.add_argument("--base", required=True, metavar="COMMIT")
            step.add_argument("--head", required=True, metavar="COMMIT")
        if name == "measure":
            step.add_argument("--out", type=Path, required=True, metavar="DIR")
            step.add_argument("--rounds", type=int, default=2, metavar="N")
            step.add_argument("--pause", type=float, default=15.0, metavar="SECONDS")
            step.add_argument("words", nargs="*", metavar="OPTION", help="after --")
    options = parser.parse_args(arguments)
    repository = Path(__file__).resolve().parent.parent
    try:
        if options.step == "prepare":
            prepare(options.base, options.head, options.work, repository)
        elif options.step == "measure":
            measure(options.work, options.out, options.rounds, options.pause, options.words)
        else:
            clean(options.work, repository)
    except (PerfError, UsageError) as error:
        print(f"perf_ab: {error}", file=sys.stderr)
        return 1 if isinstance(error, PerfError) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
