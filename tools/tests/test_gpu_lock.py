"""bench/gpu_lock with a made-up nvidia-smi: it runs alone, waits, refuses, and hands on codes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

LOCK = Path(__file__).resolve().parents[2] / "bench" / "gpu_lock"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start gpu_lock with a PATH whose nvidia-smi prints what ``busy`` says."""
    busy = tmp_path / "busy"
    busy.write_text("")
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/asked"\ncat "{busy}"\n')
    smi.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{smi.parent}:{os.environ['PATH']}",
        "BYTEBOUND_GPU_LOCK": str(tmp_path / "lock"),
    }

    def run(*words: object) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, str(LOCK), *map(str, words)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} never came"
        time.sleep(0.02)


def test_the_commands_output_and_code_are_its_own(start: Start, tmp_path: Path) -> None:
    assert finish(start("sh", "-c", "echo one --two; exit 7")) == (7, "one --two\n", "")
    assert "-i 0 --query-compute-apps" in (tmp_path / "asked").read_text()
    assert "sh -c" in (tmp_path / "lock").read_text()
    assert finish(start("--gpu", 1, "--", "true")) == (0, "", "")
    assert "-i 1 " in (tmp_path / "asked").read_text()


def test_two_take_turns_and_the_second_says_who_it_waits_for(start: Start, tmp_path: Path) -> None:
    log, go = tmp_path / "log", tmp_path / "go"
    begun = tmp_path / "begun"
    script = f'echo a1 >> "{log}"; touch "{begun}"; '
    script += f'while [ ! -e "{go}" ]; do sleep 0.05; done; echo a2 >> "{log}"'
    first = start("sh", "-c", script)
    wait_for(begun)
    second = start("sh", "-c", f'echo b >> "{log}"')
    assert second.stderr is not None
    said = second.stderr.readline()
    assert "waiting for the GPU, held by" in said
    assert f"process {first.pid}" in said
    go.touch()
    assert finish(first)[0] == 0
    assert finish(second)[0] == 0
    assert log.read_text().split() == ["a1", "a2", "b"]


def test_the_lock_outlives_a_killed_gpu_lock(start: Start, tmp_path: Path) -> None:
    """What it started still computes."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    script = f'touch "{begun}"; while [ ! -e "{go}" ]; do sleep 0.05; done'
    first = start("sh", "-c", script)
    wait_for(begun)
    first.kill()
    first.wait()
    code, _, err = finish(start("--timeout", 0.2, "true"))
    assert code == 1
    assert "gave up after 0.2 s" in err
    go.touch()
    assert finish(start("--timeout", 20, "true"))[0] == 0


def test_a_card_in_use_is_refused(start: Start, tmp_path: Path) -> None:
    (tmp_path / "busy").write_text("4711, python3, 20480 MiB\n")
    ran = tmp_path / "ran"
    code, out, err = finish(start("touch", ran))
    assert (code, out) == (1, "")
    assert "GPU 0 is in use by 4711, python3, 20480 MiB" in err
    assert not ran.exists()


def test_signals_reach_the_command(start: Start, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    script = f'trap "exit 9" TERM; touch "{begun}"; while true; do sleep 0.05; done'
    process = start("sh", "-c", script)
    wait_for(begun)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 9


def test_wrong_use(start: Start, tmp_path: Path) -> None:
    assert finish(start())[0] == 2
    code, _, err = finish(start("--lock", tmp_path, "true"))
    assert code == 2
    assert "cannot be used as a lock" in err
    code, _, err = finish(start("no-such-command"))
    assert code == 127
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho 'No devices'; exit 6\n")
    code, _, err = finish(start("true"))
    assert code == 2
    assert "No devices" in err


def test_an_answer_that_names_no_process_is_no_answer(start: Start, tmp_path: Path) -> None:
    (tmp_path / "busy").write_text("[Not Supported]\n")
    code, out, err = finish(start("echo", "ran"))
    assert (code, out) == (2, "")
    assert "nvidia-smi: [Not Supported]: whether the GPU is free cannot be known" in err
