"""The command as a process of its own: signals, pipes, noise, and what ``--help`` loads."""

import os
import signal
import subprocess
import sys
from typing import IO

import pytest

from .cli_runs import Folders, folders

__all__ = ["folders"]  # fixture

COMMAND = [sys.executable, "-m", "bytebound"]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and pipes of POSIX")


def heed_ctrl_c() -> None:
    """A background job of a shell ignores SIGINT, and so would everything that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def endless(folders: Folders, *more: str) -> subprocess.Popen[bytes]:
    request = ["-m", str(folders.text), "-p", "fox", "--ignore-eos", "--max-tokens", "4000"]
    return start("generate", *request, *more)


def start(*args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_ctrl_c,
    )


def test_ctrl_c_keeps_what_was_written(folders: Folders) -> None:
    process = endless(folders)
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert len(first + rest) > 1
    assert rest.endswith(b"\n")
    (line,) = err.decode().splitlines()
    assert "end: interrupted" in line


def test_ctrl_c_in_a_chat_ends_one_answer(folders: Folders) -> None:
    """The conversation goes on, and the next answer comes and can be ended as well."""
    request = ["--max-tokens", "3500", "--no-thinking"]
    process = start("chat", "-m", str(folders.text), *request)
    assert process.stdin and process.stdout and process.stderr
    for message in (b"fox\n", b"dog\n"):
        process.stdin.write(message)
        process.stdin.flush()
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        assert b"end: interrupted" in process.stderr.readline()
        drain(process.stdout)
    rest, err = process.communicate(b"/system\n/exit\n", timeout=120)
    assert process.returncode == 0
    assert rest == b""
    assert err.decode().splitlines() == ["system message: none"]


def drain(pipe: IO[bytes]) -> None:
    """Take what was written so far."""
    os.set_blocking(pipe.fileno(), False)
    while pipe.read(1 << 16):
        pass
    os.set_blocking(pipe.fileno(), True)


def test_a_reader_that_leaves_ends_it_quietly(folders: Folders) -> None:
    process = endless(folders)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=120) == 141
    assert err == b""


def test_closed_streams_are_no_crash(folders: Folders) -> None:
    script = 'exec "$@" <&- >&-'
    request = ["generate", "-m", str(folders.text), "-p", "-"]
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, *request], stderr=subprocess.PIPE, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == [
        "bytebound: error: the prompt is empty; at least one token id is needed"
    ]


def test_nothing_but_our_own_line_on_stderr(folders: Folders) -> None:
    done = subprocess.run(
        [*COMMAND, "generate", "-m", str(folders.text), "-p", "fox", "--max-tokens", "2"],
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("[2 tokens")


def test_help_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from bytebound.cli import main; code = main(['generate', '--help']); "
        "print(code, sorted({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, text=True)
    assert done.stdout.splitlines()[-1] == "0 []"
