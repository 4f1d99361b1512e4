"""The benchmark's calls on the emulated card, at small shapes: what it times is what it says."""

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from bytebound_kernels import (
    CYCLE_HEADER,
    CYCLE_NUM_ACCEPTED,
    CYCLE_NUM_EMITTED,
    gdn_updates_width,
)
from bytebound_kernels._device import devices
from bytebound_kernels.bench import small_ops, w4_pack, weight_stream
from bytebound_kernels.bench.memory import DeviceArray

from .emulated import emulated  # noqa: F401

D, F, H, HV = 256, 128, 1, 2
VALUES, CHANNELS = HV * 128, (2 * H + HV) * 128
SHAPE = {
    "_D": D,
    "_F": F,
    "_H": H,
    "_HV": HV,
    "_VALUES": VALUES,
    "_CHANNELS": CHANNELS,
    "_UPDATES": gdn_updates_width(H, HV),
    "_PLACES": (
        (CHANNELS + VALUES, "float16"),
        (2 * HV, "float16"),
        (VALUES, "float16"),
        (D, "float32"),
        (F, "float16"),
        (D, "float32"),
    ),
}


class HostBackend:
    """The benchmark's memory on the host; a graph is run once."""

    name, device = "host 1.0", 0

    def __init__(self) -> None:
        self._owned: list[Any] = []

    def free_bytes(self) -> int:
        return 1 << 24

    def allocate(self, num_bytes: int) -> int:
        return self.upload(b"\x3c" * num_bytes)

    def upload(self, content: bytes) -> int:
        memory = ctypes.create_string_buffer(len(content) + 256)
        pointer = -(-ctypes.addressof(memory) // 256) * 256
        ctypes.memmove(pointer, content, len(content))
        self._owned.append(memory)
        return pointer

    def set_bits(self, pointer: int, num_bytes: int, stream: int) -> None:
        ctypes.memset(pointer, 255, num_bytes)

    def time_graph(self, enqueue: Callable[[int], None], samples: int) -> list[float]:
        enqueue(0)
        return [1e-3] * samples


def words(array: DeviceArray) -> list[int]:
    return list((ctypes.c_int32 * array.shape[0]).from_address(array.pointer))


@pytest.mark.parametrize("stand", [True, False])
def test_sampled_acceptance(monkeypatch: pytest.MonkeyPatch, stand: bool) -> None:
    """The benchmark says which drafts stand, and so which rows are read."""
    monkeypatch.setattr(small_ops, "_VOCAB", 3000)
    cycles: list[list[int]] = []
    op = small_ops.speculative_sample

    def observed(*args: Any, cycle: DeviceArray, **keywords: Any) -> None:
        op(*args, cycle=cycle, **keywords)
        cycles.append(words(cycle))

    monkeypatch.setattr(small_ops, "speculative_sample", observed)
    backend = HostBackend()
    small_ops._measure_sampled_acceptance(backend, 1, small_ops._Memory(backend), stand=stand)
    accepted = small_ops._ROWS - 1 if stand else 0
    assert len(cycles) == small_ops._LAUNCHES
    for cycle in cycles:
        assert (cycle[CYCLE_NUM_ACCEPTED], cycle[CYCLE_NUM_EMITTED]) == (accepted, accepted + 1)
        assert 0 <= cycle[CYCLE_HEADER + accepted] < 3000


def test_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_ops, "_VOCAB", 3000)
    given: dict[str, DeviceArray] = {}
    op = small_ops.history_append

    def observed(ids: DeviceArray, num_ids: DeviceArray, **keywords: Any) -> None:
        op(ids, num_ids, **keywords)
        given.update(ids=ids, counts=keywords["counts"])

    monkeypatch.setattr(small_ops, "history_append", observed)
    backend = HostBackend()
    small_ops._measure_history(backend, 1, small_ops._Memory(backend))
    counts = words(given["counts"])
    assert sum(counts) == small_ops._ROWS * small_ops._LAUNCHES
    assert {i for i, count in enumerate(counts) if count} == set(words(given["ids"]))


@pytest.mark.parametrize("part", ["gate", None])
def test_packing(monkeypatch: pytest.MonkeyPatch, part: str | None) -> None:
    monkeypatch.setattr(w4_pack, "_L2_MULTIPLE", 0)
    (device,) = devices()
    matrix = w4_pack._Matrix("small", 64, 256, part)
    metric = w4_pack._measure(HostBackend(), device, matrix, 1)
    assert metric.case["calls_per_sample"] == 4
    # Codes are read, their words read and written: for a part those of the other one too.
    assert metric.case["bytes"] == 64 * 128 * (5 if part else 3) + 4 * 64 * 2


@pytest.mark.parametrize("rows", [1, 5])
def test_the_stream_ends_with_finite_rows(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    for name, value in SHAPE.items():
        monkeypatch.setattr(weight_stream, name, value)
    row_bytes = weight_stream._LAYERS * sum(weight_stream._room(*p) for p in SHAPE["_PLACES"])
    monkeypatch.setattr(weight_stream, "_ROW_BYTES", row_bytes)
    monkeypatch.setattr(weight_stream, "_LAUNCHES", 2)
    seen: list[Any] = []
    program = weight_stream.StreamProgram

    class Kept(program):
        def __init__(self, ops: Any) -> None:
            super().__init__(ops)
            seen.append(self.ops)

    monkeypatch.setattr(weight_stream, "StreamProgram", Kept)
    backend = HostBackend()
    size = weight_stream.weight_stream_workspace_bytes(0)
    workspace = weight_stream.device_array(
        backend, backend.upload(b"\xff" * size), (size,), "uint8"
    )
    weight_stream._measure(backend, workspace, rows, 1, 3000.0)
    behind = seen[0][-1].out
    values = []
    for row in range(rows):
        start = behind.pointer + row * behind.stride()[0] * 4
        values.append(list((ctypes.c_float * D).from_address(start)))
    assert all(abs(x) < 1e6 for row in values for x in row)  # no NaN either
    assert len({tuple(row) for row in values}) == rows
    assert any(abs(x) > 1e-3 for x in values[0])
