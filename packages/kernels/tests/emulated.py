"""The fixture under which the ops run on the CPU, thread by thread.

Import ``emulated`` into a test module, which then may call any op with tensors in host memory, and
any function of a GPU test, which gets them where it asks for "cuda".
BYTEBOUND_EMULATION_SEED chooses the order in which threads go on.
"""

import dataclasses
import importlib.machinery
import importlib.util
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest
from bytebound_kernels import _device, _native, _stream, _tensor

torch = pytest.importorskip("torch")

from torch.overrides import TorchFunctionMode  # noqa: E402

from .emulated_build import CannotBuild, build  # noqa: E402

__all__ = ["emulated", "leave_out", "seed"]

SEEDS = range(3)


def _load(path: Path) -> ModuleType:
    """Load a built module beside the one that the package has."""
    loader = importlib.machinery.ExtensionFileLoader(
        "bytebound_kernels_emulated._native", str(path)
    )
    spec = importlib.util.spec_from_file_location(loader.name, path, loader=loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def leave_out(problem: CannotBuild) -> NoReturn:
    """Skip the test or, where BYTEBOUND_EMULATION is ON, let it fail."""
    reason = f"the emulation cannot be built here: {problem}"
    if os.environ.get("BYTEBOUND_EMULATION") == "ON":
        pytest.fail(reason)
    pytest.skip(reason)


@cache
def _built() -> ModuleType | CannotBuild:
    try:
        return _load(build())
    except CannotBuild as problem:
        return problem


class _OnTheCard(TorchFunctionMode):
    """Makes a tensor of "cuda" one in host memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


class _Generator(torch.Generator):
    """A generator in host memory, for whichever device it is asked."""

    def __new__(cls, *_: Any) -> "_Generator":
        return super().__new__(cls)


@pytest.fixture(scope="module", autouse=True)
def emulated() -> Iterator[ModuleType]:
    """Put the emulated card in the place of the GPU; yield its native module."""
    module = _built()
    if isinstance(module, CannotBuild):
        leave_out(module)
    view_torch = _tensor._view_torch
    answer = _device._judge(module.probe(), module.compiled_archs)

    def view_on_card(*arguments: Any) -> _tensor.TensorView:
        return dataclasses.replace(view_torch(*arguments), device=0)

    with pytest.MonkeyPatch.context() as patch, _OnTheCard():
        for name in dir(module):
            if not name.startswith("__"):
                patch.setattr(_native, name, getattr(module, name), raising=False)
        patch.setattr(_device, "_availability", lambda: answer)
        patch.setattr(_tensor, "_view_torch", view_on_card)
        patch.setattr(_stream, "_current_stream", lambda *_: 0)
        patch.setattr(torch, "Generator", _Generator)
        patch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch.cuda, "synchronize", lambda *_: None)
        yield module


@pytest.fixture(params=SEEDS, ids=lambda seed: f"seed{seed}")
def seed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a test in several orders of its threads."""
    monkeypatch.setenv("BYTEBOUND_EMULATION_SEED", str(request.param))
    return int(request.param)
