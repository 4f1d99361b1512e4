"""Claude Code itself against scripts: a session that reads a file, and a prompt that is too long.

It runs where ``claude`` is found, from the npm package ``@anthropic-ai/claude-code``. Its folder of
settings is a new one, and the only host that it can reach is the server on loopback.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bytebound.text.tokenizer import Tokenizer

from .server_runs import Served, answering, served

CLAUDE = shutil.which("claude")

pytestmark = pytest.mark.skipif(
    CLAUDE is None, reason="needs claude, of the npm package @anthropic-ai/claude-code, in PATH"
)


class Proxy:
    """Where every connection to another host would go: it lets none through, and counts them."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self.asked.append(connection.recv(4096).partition(b"\r\n")[0].decode())

    def close(self) -> None:
        self._listener.close()


@contextmanager
def elsewhere() -> Iterator[Proxy]:
    proxy = Proxy()
    try:
        yield proxy
    finally:
        proxy.close()


def run_claude(server: Served, proxy: Proxy, folder: Path, *words: str) -> dict[str, Any]:
    """One session without a terminal, in ``folder``; its result record."""
    assert CLAUDE is not None
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "CLAUDE_CONFIG_DIR": str(home / "settings"),
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_API_KEY": server.key,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "HTTP_PROXY": proxy.url,
        "HTTPS_PROXY": proxy.url,
        "NO_PROXY": "127.0.0.1",
    }
    command = [CLAUDE, "--print", "--output-format", "json", *words]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise AssertionError(f"{done.returncode}\n{done.stdout}\n{done.stderr}") from None
    return found


def call(name: str, **arguments: str) -> str:
    inside = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def last_message(prompt: str) -> str:
    """The last turn but the reply's beginning."""
    return prompt.rpartition("<|im_start|>assistant")[0].rpartition("<|im_start|>")[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / "note.txt").write_text("The word of the day is heliotrope.\n")
    return made


def test_a_session_reads_a_file_through_a_call_and_answers(
    tokenizer: Tokenizer, folder: Path
) -> None:
    prompts: list[str] = []

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        asked = last_message(prompt)
        if "and backwards" in asked:
            return "Easy.</think>\n\neportoileh"
        read = re.search(r"word of the day is (\w+)", asked)
        if read is None:
            path = folder / "note.txt"
            return f"I must read it.</think>\n\nLet me look.\n{call('Read', file_path=str(path))}"
        return f"It says so.</think>\n\nThe word is {read[1]}."

    engine = answering(tokenizer, reply)
    with elsewhere() as proxy, served(engine) as found:
        prompts.clear()  # of the warm-up
        first = run_claude(found, proxy, folder, "What is the word in note.txt?")
        assert (first["result"], first["is_error"]) == ("The word is heliotrope.", False)
        assert first["num_turns"] == len(prompts) == 2
        assert "heliotrope" not in prompts[0]
        # The second prompt begins as the first one: only the call and its result are new.
        usage = first["usage"]
        assert usage["cache_read_input_tokens"] > 0.9 * usage["input_tokens"]
        again = run_claude(found, proxy, folder, "--continue", "Now say it, and backwards.")
        assert (again["result"], again["is_error"]) == ("eportoileh", False)
        assert "heliotrope" in prompts[2] and "Let me look." in prompts[2]
        with found.http as client:
            metrics = client.get("/metrics").text
        assert not re.search(r'requests_total\{endpoint="/v1[^}]*status="[45]', metrics)
    assert proxy.asked == []


def test_a_file_is_written_through_a_call(tokenizer: Tokenizer, folder: Path) -> None:
    text = 'two\nlines, "quotes" and </parameter> in the middle'

    def reply(prompt: str) -> str:
        if "tool_result" in last_message(prompt) or last_message(prompt).startswith("tool"):
            return "</think>\n\nDone."
        return f"</think>\n\n{call('Write', file_path=str(folder / 'new.txt'), content=text)}"

    with elsewhere() as proxy, served(answering(tokenizer, reply)) as found:
        result = run_claude(found, proxy, folder, "Write it.", "--permission-mode", "acceptEdits")
    assert (result["result"], result["is_error"]) == ("Done.", False)
    assert (folder / "new.txt").read_text() == text


def test_a_prompt_beyond_the_context_is_understood(tokenizer: Tokenizer, folder: Path) -> None:
    engine = answering(tokenizer, lambda prompt: "</think>\n\nno", max_len=2048)
    with elsewhere() as proxy, served(engine) as found:
        result = run_claude(found, proxy, folder, "hello")
    assert result["is_error"]
    assert "Prompt is too long" in result["result"]
