"""``bytebound serve`` as a process: where it listens, how it ends, what it refuses."""

import re
import signal
import socket
import subprocess
import time
from typing import Any

import httpx
import pytest

from .cli_runs import Folders, Run, folders, run
from .test_cli_process import start

__all__ = ["folders", "run"]  # fixtures


def listening(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    plan = process.stderr.readline().decode()
    assert re.search(r"^[\d,]+ positions take [\d.]+ \S?B at most: (.+ [\d.]+ \S?B, )+", plan), plan
    line = process.stderr.readline().decode()
    found = re.search(r"serving \S+ on (http://\S+)", line)
    assert found, line
    return found[1]


def wait_ready(url: str) -> dict[str, Any]:
    for _ in range(600):
        response = httpx.get(f"{url}/health", trust_env=False)
        facts: dict[str, Any] = response.json()
        if response.status_code == 200:
            return facts
        assert (response.status_code, facts["status"]) == (503, "starting")
        time.sleep(0.05)
    raise AssertionError("not ready")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_and_ends_with_a_signal(folders: Folders, number: int) -> None:
    process = start("serve", "-m", str(folders.text), "--port", "0", "--max-len", "512")
    try:
        url = listening(process)
        assert wait_ready(url)["model"] == folders.text.name
        body = {"model": folders.text.name, "prompt": "fox", "max_tokens": 3}
        response = httpx.post(f"{url}/v1/completions", json=body, timeout=60, trust_env=False)
        assert response.json()["usage"]["completion_tokens"] >= 1
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGTERM)
    assert out == b""
    assert err == b""
    assert str(folders.text) not in err.decode()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "--api-key"),
        (["--host", "nowhere.invalid", "--api-key", "k"], "--host nowhere.invalid"),
        (["--port", "70000"], "--port 70000"),
        (["--max-queue", "-1"], "max_queue"),
        (["--max-body", "much"], "max_body"),
        (["--request-timeout", "nan"], "--request-timeout"),
        (["--temperature", "-1"], "temperature"),
        (["--model-name", ""], "model_name"),
        (["--conversation-bytes", "lots"], "conversation_bytes='lots'"),
        (["--conversation-bytes", "900TiB"], "of the host's memory are available"),
        (["--max-len", "999999999"], "--max-len"),
    ],
)
def test_wrong_options_are_one_line(
    run: Run, folders: Folders, options: list[str], said: str
) -> None:
    outcome = run("serve", "-m", folders.text, "--port", "0", *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_a_model_without_a_tokenizer_is_refused(run: Run, folders: Folders) -> None:
    outcome = run("serve", "-m", folders.bare, "--port", "0")
    assert outcome.code == 2
    assert "tokenizer" in outcome.err


def test_a_port_that_is_taken_is_said_before_the_model_is_read(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = run("serve", "-m", "no-such-model", "--port", port)
    assert outcome.code == 2
    assert f"--port {port}" in outcome.err


def test_the_key_of_the_environment_opens_another_address(
    run: Run, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BYTEBOUND_API_KEY", "from-the-environment")
    outcome = run("serve", "-m", folders.bare, "--host", "0.0.0.0", "--port", "0")
    assert "tokenizer" in outcome.err  # it got as far as the model
    assert "from-the-environment" not in outcome.err
