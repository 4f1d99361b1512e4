"""The CUDA backend on a CPU, by the references of the kernels: the runtime's own test helpers."""

import functools
import importlib
import sys
import types
from pathlib import Path

import pytest
import torch
from bytebound import backends
from bytebound.cuda import loading
from bytebound.cuda.memory import Card
from bytebound.vram import GIB
from bytebound_evals.speed import throughput

RUNTIME_TESTS = Path(__file__).resolve().parents[2] / "packages" / "runtime" / "tests"
_PACKAGE = "bytebound_runtime_tests"


def emulate_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """``backend="cuda"`` runs here, on plain PyTorch, until the test ends."""
    if _PACKAGE not in sys.modules:
        package = types.ModuleType(_PACKAGE)
        package.__path__ = [str(RUNTIME_TESTS)]
        sys.modules[_PACKAGE] = package
    importlib.import_module(f"{_PACKAGE}.emulated_kernels").emulate(monkeypatch)
    load = functools.partial(loading.load_cuda, device=torch.device("cpu"))
    monkeypatch.setattr(loading, "load_cuda", load)
    monkeypatch.setattr(loading, "allocatable_bytes", lambda device: 4 * GIB)
    monkeypatch.setattr(Card, "of", lambda device: Card(product_bytes=2048, context_bytes=1000))
    for module in (backends, throughput):
        monkeypatch.setattr(module, "check_cuda", lambda device, dtype: None)
