"""Fixtures of the kernel tests: tensors without a framework, availability by hand, a comparison."""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bytebound_kernels import DeviceInfo, _device, _native


@dataclass
class FakeTensor:
    """Enough of a PyTorch tensor for an op's checks; there is no memory behind the pointer."""

    shape: tuple[int, ...]
    dtype: str = "torch.float16"
    device: str = "cuda:0"
    strides: tuple[int, ...] | None = None
    pointer: int = 1 << 20

    def __post_init__(self) -> None:
        if self.strides is None:
            steps = [1]
            for size in reversed(self.shape[1:]):
                steps.append(steps[-1] * size)
            self.strides = tuple(reversed(steps)) if self.shape else ()
        kind, _, index = self.device.partition(":")
        self.device = SimpleNamespace(type=kind, index=int(index) if index else None)

    def data_ptr(self) -> int:
        return self.pointer

    def stride(self) -> tuple[int, ...]:
        return self.strides


@pytest.fixture
def fake() -> type[FakeTensor]:
    return FakeTensor


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> str:
    """Make CUDA unusable, whatever this machine has; return the reason."""
    reason = "the test says so"
    answer = _device._Availability(reason, (), {})
    monkeypatch.setattr(_device, "_availability", lambda: answer)
    return reason


@pytest.fixture
def pretend_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make two devices appear, of which this build has code for the first only."""
    found = tuple(
        DeviceInfo(i, f"card {i}", capability, 132, 50 << 20, 80 << 30)
        for i, capability in enumerate([(9, 0), (7, 5)])
    )
    answer = _device._Availability("", found, {1: "no code for card 1"})
    monkeypatch.setattr(_device, "_availability", lambda: answer)
    # A build without CUDA does not have it.
    monkeypatch.setattr(_native, "matvec_blocks", lambda items, most_blocks: 1, raising=False)


@pytest.fixture
def assert_close() -> Callable[[str, Any, Any, float], None]:
    """Return a comparison by relative root-mean-square error, which names the tensor."""

    def compare(name: str, reference: Any, result: Any, tolerance: float) -> None:
        reference, result = reference.double(), result.double()
        assert result.isfinite().all(), f"{name} is not finite everywhere"
        norm = reference.square().mean().sqrt()
        error = ((reference - result).square().mean().sqrt() / norm.clamp(min=1e-30)).item()
        assert error <= tolerance, f"{name}: relative RMS error {error:.2e} > {tolerance:.0e}"

    return compare


class FakeBackend:
    """The benchmark's memory without memory: ranges of addresses, each apart from the others."""

    name, device = "fake 1.0", 0

    def __init__(self) -> None:
        self._next = 1 << 40

    def free_bytes(self) -> int:
        return 80 << 30

    def allocate(self, num_bytes: int) -> int:
        pointer = self._next
        self._next += -(-num_bytes // 256) * 256
        return pointer

    def upload(self, content: bytes) -> int:
        return self.allocate(len(content))

    def set_bits(self, pointer: int, num_bytes: int, stream: int) -> None:
        pass

    def time_graph(self, enqueue: Callable[[int], None], samples: int) -> list[float]:
        enqueue(0)
        return [1e-3] * samples


@pytest.fixture
def fake_backend() -> FakeBackend:
    return FakeBackend()


# Functions of the native module that launch nothing; besides those that tell a size.
NO_LAUNCH = {
    "probe",
    "pointer_device",
    "l2_persist",
    "l2_persist_limits",
    "l2_persist_reset",
    "matvec_blocks",
    "stream_gated_delta",
    "stream_gates",
    "stream_norm",
    "stream_product",
    "weight_stream_slots",
}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, pretend_cuda: None) -> dict[str, int]:
    """Let every launcher do nothing but count here how often it is called."""
    stub = Path(_device.__file__).with_name("_native.pyi")
    counts = {
        node.name: 0
        for node in ast.parse(stub.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and node.name not in NO_LAUNCH
        and not node.name.endswith("_bytes")
    }

    def stand_in(name: str) -> Callable[..., None]:
        def launcher(*_: Any, **__: Any) -> None:
            counts[name] += 1

        return launcher

    for name in counts:
        monkeypatch.setattr(_native, name, stand_in(name), raising=False)
    # Asks the driver how much shared memory there is.
    monkeypatch.setattr(_native, "weight_stream_slots", lambda *_: 8, raising=False)
    return counts
