"""Fixtures of the quantizer's tests: random 16-bit folders, packed ones, and a small tokenizer.

The builders are the runtime's own test helpers, loaded from their file: one definition of what a
sound folder is.
"""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from bytebound.text.tokenizer import Tokenizer, load_tokenizer

RUNTIME_TESTS = Path(__file__).resolve().parents[2] / "runtime" / "tests"


def runtime_helper(name: str) -> ModuleType:
    """One helper module of the runtime's tests."""
    qualified = f"_runtime_tests_{name}"
    if qualified not in sys.modules:
        spec = importlib.util.spec_from_file_location(qualified, RUNTIME_TESTS / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[qualified] = module
        spec.loader.exec_module(module)
    return sys.modules[qualified]


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
