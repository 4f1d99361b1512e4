import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "gpu_check.sh"


def run(folder: Path, gpu: str, *steps: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of the script in `folder`, where nvidia-smi knows `gpu` and every build fails."""
    script = folder / "tools" / SCRIPT.name
    script.parent.mkdir()
    shutil.copy(SCRIPT, script)
    smi = folder / "bin" / "nvidia-smi"
    smi.parent.mkdir(exist_ok=True)
    smi.write_text(f"#!/bin/sh\ncase $1 in *compute_cap) echo 9.0 ;; *) echo '{gpu}' ;; esac\n")
    smi.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "OUT"}
    environment |= {"PATH": f"{smi.parent}:{os.environ['PATH']}", "PYTHON": "false", **variables}
    return subprocess.run(
        ["bash", str(script), *steps], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("gpu", "card"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200nvl"),
        ("NVIDIA GeForce RTX 5090", "rtx5090"),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", "rtx5090laptop"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100sxm4"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
        ("Tesla T4", "t4"),
        ("NVIDIA", "gpu"),
    ],
)
def test_results_lie_in_a_folder_named_by_the_card(tmp_path: Path, gpu: str, card: str) -> None:
    done = run(tmp_path, gpu)
    assert f"results go to bench/results/{card}\n" in done.stdout
    assert [folder.name for folder in (tmp_path / "bench" / "results").iterdir()] == [card]
    assert done.returncode == 1  # the build failed


def test_another_folder_can_be_named(tmp_path: Path) -> None:
    done = run(tmp_path, "NVIDIA H200", OUT=str(tmp_path / "mine"))
    assert f"results go to {tmp_path / 'mine'}\n" in done.stdout
    assert not (tmp_path / "bench").exists()


def executable(file: Path, text: str) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """A tree in which the build is done, with programs that log what they are called with.

    What is called with the word in `broken` fails.
    """
    (tmp_path / "build" / "gpu-check" / "site").mkdir(parents=True)
    (tmp_path / "packages" / "kernels" / "tests").mkdir(parents=True)
    log, broken = tmp_path / "log", tmp_path / "broken"
    broken.write_text("nothing")
    called = f'echo "$(basename "$0") $*" >>{log}; case "$*" in *"$(cat {broken})"*) exit 3 ;; esac'
    executable(tmp_path / "bin" / "compute-sanitizer", called)
    python = executable(tmp_path / "bin" / "python", called)
    return {"PYTHON": python, "OUT": str(tmp_path / "out")}


def test_a_step_that_does_not_exist_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "NVIDIA H200", "tests", "test")
    assert done.returncode == 2
    assert "no step test; there are: build tests sanitize bench engine" in done.stderr


def test_the_other_steps_want_a_build(tmp_path: Path) -> None:
    done = run(tmp_path, "NVIDIA H200", "bench")
    assert done.returncode == 2
    assert "run the step build first" in done.stderr


def test_only_the_named_steps_run(tmp_path: Path, installed: dict[str, str]) -> None:
    done = run(tmp_path, "NVIDIA H200", "bench", BENCH_GROUPS="w4 gdn_step", **installed)
    assert done.returncode == 0, done.stdout
    (call,) = [line for line in (tmp_path / "log").read_text().splitlines() if "bench" in line]
    assert call == (
        "python -m bytebound_kernels.bench --only w4 --only gdn_step"
        f" --card-json {tmp_path}/out/card.json --json {tmp_path}/out/kernels.json"
    )
    assert "-m pytest" not in (tmp_path / "log").read_text()


def test_tests_and_sanitizer_run_whatever_fails(tmp_path: Path, installed: dict[str, str]) -> None:
    (tmp_path / "broken").write_text("racecheck")
    done = run(tmp_path, "NVIDIA H200", "sanitize", "tests", SANITIZE_OPS="sample", **installed)
    assert done.returncode == 1
    calls = (tmp_path / "log").read_text()
    assert "-m pytest -q -m gpu -p no:cacheprovider -n 8 packages/kernels/tests\n" in calls
    for tool in ("memcheck", "racecheck", "synccheck"):
        assert f"compute-sanitizer --tool {tool} --error-exitcode 9" in calls
    assert "sanitize.py --only sample\n" in calls
    summary = done.stdout.partition("=== summary\n")[2]
    assert "FAILED  compute-sanitizer racecheck (exit code 3" in summary
    assert summary.count("ok  ") == 5, summary


def test_nothing_runs_beyond_the_time(tmp_path: Path, installed: dict[str, str]) -> None:
    done = run(tmp_path, "NVIDIA H200", "bench", "sanitize", LIMIT="0", **installed)
    assert done.returncode == 1
    assert done.stdout.count("(ended after") == 4
    assert "bytebound_kernels.bench" not in (tmp_path / "log").read_text()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
