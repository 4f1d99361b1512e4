"""What l2_persist accepts, without a GPU."""

from typing import Any

import pytest
from bytebound_kernels import (
    CudaUnavailableError,
    InvalidArgumentError,
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    UnsupportedShapeError,
    UnsupportedTensorError,
    _native,
    l2_persist,
    l2_persist_reset,
)


class FakeNative:
    """Records what the native side would be asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, set_aside: int, window: int) -> None:
        self.calls: list[dict[str, Any]] = []
        self.resets: list[int] = []

        def persist(pointer: int, **arguments: Any) -> int:
            self.calls.append({"pointer": pointer, **arguments})
            return set_aside

        for name, function in (
            ("l2_persist_limits", lambda device: (set_aside, window)),
            ("l2_persist", persist),
            ("l2_persist_reset", self.resets.append),
            ("pointer_device", lambda pointer: 0 if pointer > 1000 else -1),
        ):
            monkeypatch.setattr(_native, name, function, raising=False)


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch, pretend_cuda: None) -> FakeNative:
    return FakeNative(monkeypatch, set_aside=4096, window=1 << 20)


def test_passes_the_range_on(native: FakeNative, fake: Any) -> None:
    assert l2_persist(fake((64, 64)), 8192, stream=7, hit_ratio=0.5) == 4096
    assert l2_persist(2048, 100, stream=0) == 4096
    assert native.calls == [
        {"pointer": 1 << 20, "num_bytes": 8192, "hit_ratio": 0.5, "device": 0, "stream": 7},
        {"pointer": 2048, "num_bytes": 100, "hit_ratio": 1.0, "device": 0, "stream": 0},
    ]


@pytest.mark.parametrize(
    ("num_bytes", "hit_ratio", "error", "text"),
    [
        (0, 1.0, InvalidArgumentError, "num_bytes is 0; expected an integer of 1 or more"),
        (True, 1.0, InvalidArgumentError, "num_bytes is True"),
        (2.0, 1.0, InvalidArgumentError, "num_bytes is 2.0"),
        (8, 0.0, InvalidArgumentError, "hit_ratio is 0.0; expected more than 0 and at most 1"),
        (8, 1.5, InvalidArgumentError, "hit_ratio is 1.5"),
        (8, float("nan"), InvalidArgumentError, "hit_ratio is nan"),
        (8, "1", InvalidArgumentError, "hit_ratio is '1'; expected a finite number"),
        (129, 1.0, UnsupportedShapeError, "num_bytes is 129 and memory spans 128 bytes"),
    ],
)
def test_refuses_numbers(
    native: FakeNative, fake: Any, num_bytes: Any, hit_ratio: float, error: type, text: str
) -> None:
    with pytest.raises(error, match=text):
        l2_persist(fake((64,)), num_bytes, stream=0, hit_ratio=hit_ratio)
    assert native.calls == []


def test_numbers_of_numpy(native: FakeNative, fake: Any) -> None:
    numpy = pytest.importorskip("numpy")
    assert l2_persist(numpy.int64(2048), numpy.int64(100), stream=numpy.int64(3)) == 4096
    (call,) = native.calls
    assert call == {
        "pointer": 2048, "num_bytes": 100, "hit_ratio": 1.0, "device": 0, "stream": 3
    }  # fmt: skip
    assert {type(call[name]) for name in ("pointer", "num_bytes", "stream")} == {int}


@pytest.mark.parametrize("address", [True, 0, -8])
def test_refuses_what_is_no_address(native: FakeNative, address: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"memory is {address}; expected an integer"):
        l2_persist(address, 8, stream=0)
    assert native.calls == []


def test_refuses_a_range_beyond_the_largest_window(native: FakeNative, fake: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="expected at most 1048576, the largest window"):
        l2_persist(fake((1 << 20,)), (1 << 20) + 1, stream=0)
    assert native.calls == []


def test_refuses_other_memory(native: FakeNative, fake: Any) -> None:
    with pytest.raises(UnsupportedDeviceError, match="memory on the host"):
        l2_persist(fake((64,), device="cpu"), 8, stream=0)
    with pytest.raises(UnsupportedDeviceError, match="the address 0x3e8 is not in device memory"):
        l2_persist(1000, 8, stream=0)
    with pytest.raises(UnsupportedTensorError, match="memory is a str"):
        l2_persist("x", 8, stream=0)
    with pytest.raises(UnsupportedDtypeError, match="complex64"):
        l2_persist(fake((64,), "torch.complex64"), 8, stream=0)
    with pytest.raises(CudaUnavailableError, match="no code for card 1"):
        l2_persist(fake((64,), device="cuda:1"), 8, stream=0)


def test_a_card_that_sets_nothing_aside_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, pretend_cuda: None, fake: Any
) -> None:
    native = FakeNative(monkeypatch, set_aside=0, window=0)
    assert l2_persist(fake((64,)), 128, stream=0) == 0
    assert native.calls == []


def test_reset_wants_a_stream(native: FakeNative) -> None:
    l2_persist_reset(7)
    assert native.resets == [7]
    for stream in (None, "x"):
        with pytest.raises(InvalidArgumentError, match="l2_persist_reset: stream is"):
            l2_persist_reset(stream)


@pytest.mark.usefixtures("no_cuda")
def test_says_why_it_cannot_run(fake: Any) -> None:
    with pytest.raises(CudaUnavailableError, match="l2_persist: CUDA is not usable"):
        l2_persist(fake((64,)), 8, stream=0)
    with pytest.raises(CudaUnavailableError, match="l2_persist_reset: CUDA is not usable"):
        l2_persist_reset(0)
