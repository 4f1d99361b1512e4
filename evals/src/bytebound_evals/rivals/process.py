"""Starts another engine's server, waits until it answers, and ends it for sure."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bytebound_evals.errors import RivalError
from bytebound_evals.rivals.http import Server

POLL_S = 0.25
END_S = 20.0
TAIL = 500  # characters of its log that an error quotes


def found_program(command: Sequence[str]) -> bool:
    """Whether the first word of a command can be run here."""
    return bool(command) and shutil.which(command[0]) is not None


@contextmanager
def running_server(
    command: Sequence[str],
    server: Server,
    ready_path: str,
    *,
    log: Path,
    ready_s: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Run ``command`` while the block runs; the block begins when ``ready_path`` answers.

    Its output goes to ``log``. It and what it started are ended together, at first politely.

    Raises:
        RivalError: it cannot be run, ends by itself, or is not ready after ``ready_s`` seconds.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # a process group of its own, so that none of it stays
            )
        except OSError as error:  # no program, though its file says so
            raise RivalError(f"{command[0]} cannot be run: {error.strerror or error}") from error
        try:
            _wait(process, server, ready_path, ready_s, log)
            yield
        finally:
            _end(process)


def _wait(
    process: subprocess.Popen[bytes], server: Server, path: str, ready_s: float, log: Path
) -> None:
    deadline = time.monotonic() + ready_s
    asking = Server(server.url, timeout_s=5.0, headers=server.headers)
    while True:
        if process.poll() is not None:
            raise RivalError(
                f"{process.args!r} ended with exit code {process.returncode} before it answered; "
                f"its last words: {_tail(log)}"
            )
        try:
            asking.get(path)
            return
        except RivalError as error:
            if time.monotonic() > deadline:
                raise RivalError(
                    f"{process.args!r} is not ready after {ready_s:g} s ({error}); its last "
                    f"words: {_tail(log)}"
                ) from error
        time.sleep(POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait(END_S)


def _tail(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
    return " ".join(text.split()) or "none"
