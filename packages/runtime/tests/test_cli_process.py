"""The command as a process of its own: signals, pipes, noise, and what ``--help`` loads."""

import signal
import subprocess
import sys

import pytest

from .cli_runs import Folders, folders

__all__ = ["folders"]  # fixture

COMMAND = [sys.executable, "-m", "bytebound"]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and pipes of POSIX")


def heed_ctrl_c() -> None:
    """A background job of a shell ignores SIGINT, and so would everything that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def endless(folders: Folders) -> subprocess.Popen[bytes]:
    request = ["-m", str(folders.text), "-p", "fox", "--ignore-eos", "--max-tokens", "4000"]
    return subprocess.Popen(
        [*COMMAND, "generate", *request],
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
