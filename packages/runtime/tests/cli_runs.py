"""Running one command line inside the test's process, and model folders to run it on."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import bytebound.cli.opening
import pytest
from bytebound import Engine
from bytebound.cli import main
from bytebound.scripted import ScriptedExecutor
from bytebound.text.tokenizer import Tokenizer

from .checkpoints import random_checkpoint
from .conftest import write_tokenizer

VOCAB = 400
END = "<|im_end|>"


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def stats(self) -> str:
        """The line of numbers: the last one of stderr."""
        return self.err.splitlines()[-1]


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run ``bytebound ARGS`` in an empty folder; whatever it writes there fails the test."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("bytebound.cli._quiet_libraries", lambda: None)  # it changes the process

    def run_once(*args: object) -> Outcome:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        assert list(here.iterdir()) == []
        return Outcome(code, captured.out, captured.err)

    return run_once


@dataclass(frozen=True)
class Folders:
    """Random models: with a tokenizer, without one, and with a tokenizer but no MTP head."""

    text: Path
    bare: Path
    no_mtp: Path


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    root = tmp_path_factory.mktemp("models")
    random_checkpoint(root / "text", vocab_size=VOCAB, nested=True, vision=True, seed=3)
    write_tokenizer(root / "text")
    random_checkpoint(root / "bare", vocab_size=VOCAB, seed=4)
    random_checkpoint(root / "no_mtp", vocab_size=VOCAB, mtp=False, seed=5)
    write_tokenizer(root / "no_mtp")
    return Folders(root / "text", root / "bare", root / "no_mtp")


def script_engine(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, text: str, *, max_len: int = 8192
) -> None:
    """Let every command open an engine that answers ``text`` to each prompt."""
    ids = tokenizer.encode(text, parse_control=True)
    (end,) = tokenizer.encode(END, parse_control=True)
    executor = ScriptedExecutor([ids], tokenizer.vocab_size, end_id=end, max_len=max_len)
    engine = Engine(executor, tokenizer=tokenizer, end_ids=[end])
    monkeypatch.setattr(bytebound.cli.opening, "open_engine", lambda *options: engine)
