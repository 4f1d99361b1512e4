"""The weight stream over layers of a 27B model: as many as one launch takes.

Each is a Gated DeltaNet layer with its MLP, in the order of ops in which a decode step has them.
What an op hands over to another one must have every bit set before a launch: the time of a launch
is that of filling these rows too, which a decode step does once for all its launches.
"""

import random
from array import array
from math import prod
from typing import NamedTuple

from bytebound_kernels._device import DeviceInfo
from bytebound_kernels.bench.memory import Backend, BenchError, DeviceArray, device_array
from bytebound_kernels.bench.report import Metric
from bytebound_kernels.ops.gdn_step import (
    GdnPending,
    GdnRows,
    GdnState,
    GdnWeights,
    gdn_updates_width,
)
from bytebound_kernels.ops.w4_matvec import PackedW4, w4_packed_bytes
from bytebound_kernels.ops.weight_stream import (
    StreamGatedDelta,
    StreamGates,
    StreamNorm,
    StreamOp,
    StreamProduct,
    StreamProgram,
    StreamReplay,
    weight_stream_slots,
    weight_stream_workspace_bytes,
)

__all__ = ["measure_weight_stream"]

_D, _F, _H, _HV, _HEAD_DIM = 5120, 17408, 16, 48, 128
_VALUES = _HV * _HEAD_DIM
_CHANNELS = 2 * _H * _HEAD_DIM + _VALUES
_UPDATES = gdn_updates_width(_H, _HV)
_LAYERS = 4  # of nine ops each: their weights are far more than an L2 holds
_MAX_ROWS = 8  # of every tensor of rows
_ROWS = (1, 5)
_LAUNCHES = 4  # of a sample
_ALIGNMENT = 256  # bytes
_ITEMSIZES = {"float16": 2, "float32": 4, "int32": 4}


class _Results(NamedTuple):
    """What the ops of a layer hand over."""

    projected: DeviceArray  # [8, C + HV * V]
    gates: DeviceArray  # [8, 2 * HV]
    mixed: DeviceArray  # [8, HV * V]
    middle: DeviceArray  # float32 [8, D]: the residual behind the mixer
    inner: DeviceArray  # [8, F]
    behind: DeviceArray  # float32 [8, D]: the residual behind the MLP


_PLACES = (
    (_CHANNELS + _VALUES, "float16"),
    (2 * _HV, "float16"),
    (_VALUES, "float16"),
    (_D, "float32"),
    (_F, "float16"),
    (_D, "float32"),
)


def _room(width: int, dtype: str) -> int:
    return -(-width * _ITEMSIZES[dtype] // _ALIGNMENT) * _ALIGNMENT


_ROW_BYTES = _LAYERS * sum(_room(*place) for place in _PLACES)  # of all layers


class _Layers:
    """The ops over memory of their own; rows of results lie one behind the other."""

    def __init__(self, backend: Backend, rows: int) -> None:
        self._backend = backend
        self._pending_rows = rows
        self.results = backend.allocate(_MAX_ROWS * _ROW_BYTES)
        self.bytes = 0  # of weights and states, each as often as it is read and written
        # As the memory is filled this is a huge number, that is, all pending rows.
        self._num_accepted = self._array(1, dtype="int32")
        self.ops: list[StreamOp] = []
        draw = random.Random(0)
        x = self._floats([draw.gauss(0.0, 1.0) for _ in range(_MAX_ROWS * _D)], (_MAX_ROWS, _D))
        # A norm leaves numbers of this size, whose products with large weights are float16 ones.
        self._norm = self._floats([0.01 - 1.0] * _D, (_D,))
        for i in range(_LAYERS):
            results = self._place(i)
            self._add_mixer(x, results)
            self._add_mlp(results)
            x = results.behind

    def _array(self, *shape: int, dtype: str = "float16") -> DeviceArray:
        num_bytes = prod(shape) * _ITEMSIZES[dtype]
        return device_array(self._backend, self._backend.allocate(num_bytes), shape, dtype)

    def _floats(self, values: list[float], shape: tuple[int, ...]) -> DeviceArray:
        pointer = self._backend.upload(array("f", values).tobytes())
        return device_array(self._backend, pointer, shape, "float32")

    def _place(self, layer: int) -> _Results:
        pointer = self.results + layer * _ROW_BYTES // _LAYERS
        arrays = []
        for width, dtype in _PLACES:
            rows = device_array(self._backend, pointer, (_MAX_ROWS, width), dtype)
            arrays.append(rows.columns(0, width, row_stride=_ROW_BYTES // _ITEMSIZES[dtype]))
            pointer += _room(width, dtype)
        return _Results(*arrays)

    def _weight(self, n: int, k: int, *, interleaved: bool = False) -> PackedW4:
        num_bytes = w4_packed_bytes(n, k, interleaved=interleaved)
        self.bytes += num_bytes
        memory = self._backend.allocate(num_bytes)
        data = device_array(self._backend, memory, (num_bytes,), "uint8")
        return PackedW4(data, n, k, interleaved=interleaved)

    def _delta(self, results: _Results) -> StreamGatedDelta:
        self.bytes += 2 * _VALUES * _HEAD_DIM * 4
        qkv, z = (
            results.projected.columns(first, count)
            for first, count in ((0, _CHANNELS), (_CHANNELS, _VALUES))
        )
        a, b = (results.gates.columns(first, _HV) for first in (0, _HV))
        return StreamGatedDelta(
            GdnRows(qkv, a, b),
            z,
            GdnWeights(
                conv=self._array(_CHANNELS, 4),
                a_log=self._array(_HV, dtype="float32"),
                dt_bias=self._array(_HV, dtype="float32"),
                norm=self._array(_HEAD_DIM, dtype="float32"),
            ),
            GdnState(
                conv_window=self._array(_CHANNELS, 3),
                recurrent=self._array(_HV, _HEAD_DIM, _HEAD_DIM, dtype="float32"),
            ),
            GdnPending(
                self._array(self._pending_rows, _CHANNELS),
                self._array(self._pending_rows, _UPDATES, dtype="float32"),
            ),
            self._num_accepted,
            results.mixed,
            self._array(_MAX_ROWS, _UPDATES, dtype="float32"),
        )

    def _add_mixer(self, x: DeviceArray, results: _Results) -> None:
        delta = self._delta(results)
        gates = self._array(2 * _HV, _D)
        self.bytes += 2 * 2 * _HV * _D
        self.ops += [
            StreamReplay(delta),
            StreamNorm(x, self._norm),
            StreamProduct(self._weight(_CHANNELS + _VALUES, _D), results.projected),
            StreamGates(gates, results.gates),
            delta,
            StreamProduct(self._weight(_D, _VALUES), results.middle, results.mixed, x),
        ]

    def _add_mlp(self, results: _Results) -> None:
        middle, inner = results.middle, results.inner
        self.ops += [
            StreamNorm(middle, self._norm),
            StreamProduct(self._weight(_F, _D, interleaved=True), inner),
            StreamProduct(self._weight(_D, _F), results.behind, inner, middle),
        ]


def measure_weight_stream(
    backend: Backend, device: DeviceInfo, samples: int, read_gb_s: float
) -> list[Metric]:
    """Time a launch, from a graph of several one after the other.

    The bytes are those of the weights, and of the states, which are read and written. A launch
    takes in as many pending rows as it has rows of its own.

    Raises:
        BenchError: the card cannot run it.
    """
    if not weight_stream_slots(max(_ROWS), _D, asymmetric=False, device=device.index):
        raise BenchError(f"{device} has no weight stream of these shapes; it takes sm_90 or later")
    num_bytes = weight_stream_workspace_bytes(device.index)
    workspace = device_array(backend, backend.upload(b"\xff" * num_bytes), (num_bytes,), "uint8")
    return [
        metric
        for rows in _ROWS
        for metric in _measure(backend, workspace, rows, samples, read_gb_s)
    ]


def _measure(
    backend: Backend, workspace: DeviceArray, rows: int, samples: int, read_gb_s: float
) -> tuple[Metric, Metric]:
    layers = _Layers(backend, rows)
    program = StreamProgram(layers.ops)

    def enqueue(stream: int) -> None:
        for _ in range(_LAUNCHES):
            backend.set_bits(layers.results, rows * _ROW_BYTES, stream)
            program.run(rows=rows, workspace=workspace, stream=stream)

    seconds = [s / _LAUNCHES for s in backend.time_graph(enqueue, samples)]
    case = {
        "rows": rows,
        "layers": _LAYERS,
        "ops": len(layers.ops),
        "pending_rows": rows,
        "dtype": "float16",
        "bytes": layers.bytes,
        "filled_bytes": rows * _ROW_BYTES,
        "launches_per_sample": _LAUNCHES,
        "l2": "cold",
    }
    percent = [layers.bytes / s / 1e9 / read_gb_s * 100 for s in seconds]
    name = f"weight_stream.rows{rows}"
    return (
        Metric(f"{name}.us", "us", "lower", [s * 1e6 for s in seconds], 3.0, case),
        Metric(
            f"{name}.percent_of_read",
            "%",
            "higher",
            percent,
            3.0,
            {**case, "read_gb_s": read_gb_s},
        ),
    )
