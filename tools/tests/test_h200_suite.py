"""tools/h200_suite.sh with programs that only log what they are called with."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def executable(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


class Tree:
    """A copy of the script, with a GPU, a build and a Python that fails at the word in `broken`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("tools/h200_suite.sh", "bench/gpu_lock"):
            (folder / name).parent.mkdir()
            shutil.copy(ROOT / name, folder / name)
        (folder / "build/gpu-check/site").mkdir(parents=True)
        self.broken = folder / "broken"
        self.break_at("nothing", 0)
        executable(
            folder / "bin/nvidia-smi",
            'case "$*" in *compute-apps*) cat apps 2>/dev/null ;; *) echo "NVIDIA H200" ;; esac',
        )
        executable(
            folder / "bin/python",
            f'echo "$*" >>{folder}/log; read -r code word <{self.broken}\n'
            'case "$*" in *"$word"*) exit "$code" ;; esac',
        )

    def break_at(self, word: str, code: int) -> None:
        self.broken.write_text(f"{code} {word}\n")

    def run(self, **variables: str) -> subprocess.CompletedProcess[str]:
        known = {name: value for name, value in os.environ.items() if name not in ("OUT", "WHEELS")}
        known |= {"PATH": f"{self.folder}/bin:{known['PATH']}", "PYTHON": "python"}
        known |= {"BYTEBOUND_GPU_LOCK": str(self.folder / "lock"), "BYTEBOUND_COMMIT": "abc"}
        return subprocess.run(
            ["bash", "tools/h200_suite.sh"],
            cwd=self.folder,
            env=known | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def calls(self) -> list[str]:
        lines = (self.folder / "log").read_text().splitlines()
        return [line.removeprefix("-m bytebound_evals ") for line in lines]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_two_runs_and_the_gate(tree: Tree) -> None:
    done = tree.run()
    assert done.returncode == 0, done.stderr
    out, raw = tree.folder / "bench/results/h200", tree.folder / "build/suite"
    options = (
        "--model random:qwen3.5-27b --backend cuda --depth 1024 --depth 8192 --depth 32768"
        " --draft-depth 1024 --draft-depth 8192 --draft none --draft mtp:4 --draft forced:4@0.7"
        " --tokens 48 --samples 5 --commit abc"
    )
    first, again = out / "throughput.json", raw / "throughput-again.json"
    assert tree.calls[1:] == [
        f"throughput {options} --out {first}",
        f"throughput {options} --out {again}",
        f"gate --baseline {first} --head {again} --summary {out}/throughput-gate.md"
        f" --out {raw}/gate.json",
    ]


def test_sizes_and_the_folder_can_be_chosen(tree: Tree) -> None:
    sizes = {"MODEL": "m", "DEPTHS": "8", "DRAFT_DEPTHS": "0", "PROMPTS": "prose json"}
    done = tree.run(OUT="mine", TOKENS="4", SAMPLES="2", DRAFTS="none", **sizes)
    assert done.returncode == 0, done.stderr
    mine = tree.folder / "mine"
    assert tree.calls[1] == (
        "throughput --model m --backend cuda --depth 8 --draft-depth 0 --draft none --prompt prose"
        f" --prompt json --tokens 4 --samples 2 --commit abc --out {mine}/throughput.json"
    )
    assert f"--out {mine}/gate.json" in tree.calls[-1]


@pytest.mark.parametrize(
    ("word", "code", "ends", "calls"),
    [
        ("throughput", 1, 1, 2),
        ("throughput", 2, 2, 2),
        ("throughput-again.json", 1, 1, 3),
        ("gate --baseline", 1, 1, 4),
        ("import bytebound", 1, 2, 1),
    ],
)
def test_what_fails_ends_it(tree: Tree, word: str, code: int, ends: int, calls: int) -> None:
    tree.break_at(word, code)
    done = tree.run()
    assert done.returncode == ends, done.stderr
    assert len(tree.calls) == calls


def test_a_card_in_use_is_left_alone(tree: Tree) -> None:
    (tree.folder / "apps").write_text("17, python, 3 MiB\n")
    done = tree.run()
    assert done.returncode == 1
    assert "in use by 17, python" in done.stderr
    assert len(tree.calls) == 1


def test_no_gpu_is_said_and_another_backend_needs_none(tree: Tree) -> None:
    executable(tree.folder / "bin/nvidia-smi", "exit 9")
    done = tree.run()
    assert done.returncode == 2
    assert "no GPU here" in done.stderr
    done = tree.run(BACKEND="reference", MODEL="tiny")
    assert done.returncode == 0, done.stderr
    assert (tree.folder / "bench/results/cpu").is_dir()


def test_the_time_is_bounded(tree: Tree) -> None:
    done = tree.run(LIMIT="0")
    assert done.returncode == 1
    assert "no time is left of LIMIT=0 s" in done.stderr
    assert len(tree.calls) == 1
