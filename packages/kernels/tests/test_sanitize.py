"""What the sanitizer is given to run: without a GPU, with launchers that do nothing.

So a call that an op refuses, and an op that is left out, are found before a GPU is at hand.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bytebound_kernels
import pytest
from bytebound_kernels import _native

# Functions of the native module that launch nothing.
NO_LAUNCH = {"probe", "pointer_device", "l2_persist", "l2_persist_limits", "l2_persist_reset"}


class FakeBackend:
    """Addresses without memory behind them, each range apart from the others."""

    name, device = "fake", 0

    def __init__(self) -> None:
        self._next = 1 << 30

    def allocate(self, num_bytes: int) -> int:
        pointer = self._next
        self._next += -(-num_bytes // 256) * 256
        return pointer

    def upload(self, content: bytes) -> int:
        return self.allocate(len(content))


def launchers() -> Iterator[str]:
    stub = Path(bytebound_kernels.__file__).with_name("_native.pyi")
    for node in ast.parse(stub.read_text()).body:
        # A function that tells a size is left as it is.
        if isinstance(node, ast.FunctionDef) and not node.name.endswith("_bytes"):
            yield node.name


@pytest.mark.skipif(not _native.built_with_cuda, reason="this build has no CUDA code")
@pytest.mark.usefixtures("pretend_cuda")
def test_every_launcher_is_run_and_every_call_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import sanitize

    called: dict[str, int] = {}

    def stand_in(name: str) -> Any:
        def launcher(*_: Any, **__: Any) -> None:
            called[name] = called.get(name, 0) + 1

        return launcher

    names = set(launchers()) - NO_LAUNCH
    for name in names:
        monkeypatch.setattr(_native, name, stand_in(name), raising=False)
    backend = FakeBackend()
    for name, run in sanitize.RUNS.items():
        if name != "prefill":  # its tensors are PyTorch's, and its kernels are Triton's
            assert run(backend) > 0, name
    assert set(called) == names
