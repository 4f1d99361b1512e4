"""Fixtures of the quantizer's tests: random 16-bit folders, packed ones, and a small tokenizer.

The builders are the runtime's own test helpers, loaded from their file: one definition of what a
sound folder is.
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from bytebound.text.tokenizer import Tokenizer, load_tokenizer

RUNTIME_TESTS = Path(__file__).resolve().parents[2] / "runtime" / "tests"
PACKAGE = "_runtime_tests"


def runtime_helper(name: str) -> ModuleType:
    """One helper module of the runtime's tests; they import each other as one package."""
    if PACKAGE not in sys.modules:
        package = ModuleType(PACKAGE)
        package.__path__ = [str(RUNTIME_TESTS)]
        sys.modules[PACKAGE] = package
    return importlib.import_module(f"{PACKAGE}.{name}")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``bytebound-quant ARGS`` in this process."""
    from bytebound_quant.cli import main

    monkeypatch.setattr("bytebound_quant.cli._quiet_libraries", lambda: None)

    def run_once(*args: object) -> Outcome:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run_once


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    runtime_helper("conftest").write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    loaded = load_tokenizer(tokenizer_folder)
    assert loaded is not None
    return loaded


@pytest.fixture
def plain_folder(tmp_path: Path) -> Path:
    """A random bfloat16 folder with MTP head, in two files."""
    folder = tmp_path / "plain"
    runtime_helper("checkpoints").random_checkpoint(folder, dtype=torch.bfloat16, shards=2)
    return folder


@pytest.fixture
def packed_folder(tmp_path: Path) -> Path:
    """A 4-bit folder of the same model as ``plain_folder``, in groups of 32, single file."""
    folder = tmp_path / "packed"
    runtime_helper("packed").compressed_folder(folder)
    return folder
