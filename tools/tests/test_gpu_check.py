import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "gpu_check.sh"


def run(folder: Path, gpu: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of the script in `folder`, where nvidia-smi knows `gpu` and every build fails."""
    script = folder / "tools" / SCRIPT.name
    script.parent.mkdir()
    shutil.copy(SCRIPT, script)
    smi = folder / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(f"#!/bin/sh\ncase $1 in *compute_cap) echo 9.0 ;; *) echo '{gpu}' ;; esac\n")
    smi.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "OUT"}
    environment |= {"PATH": f"{smi.parent}:{os.environ['PATH']}", "PYTHON": "false", **variables}
    return subprocess.run(
        ["bash", str(script)], env=environment, capture_output=True, text=True, check=False
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


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
