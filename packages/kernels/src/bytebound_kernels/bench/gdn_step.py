"""The Gated DeltaNet step over the layers of a 27B model, each with a state of its own."""

from math import prod

from bytebound_kernels._device import DeviceInfo
from bytebound_kernels.bench.memory import Backend, DeviceArray, device_array
from bytebound_kernels.bench.report import Metric
from bytebound_kernels.ops.gdn_step import (
    GdnPending,
    GdnRows,
    GdnState,
    GdnWeights,
    gdn_step,
    gdn_updates_width,
)

__all__ = ["measure_gdn_step"]

_H, _HV, _HEAD_DIM = 16, 48, 128
_CHANNELS = (2 * _H + _HV) * _HEAD_DIM
_VALUES = _HV * _HEAD_DIM
_UPDATES = gdn_updates_width(_H, _HV)
_STATE_BYTES = _VALUES * _HEAD_DIM * 4
_LAYERS = 48
_L2_MULTIPLE = 2  # the states of a sample are this many times the L2 before one comes again
_ROWS = (1, 5)
_DTYPE = "bfloat16"


def _array(backend: Backend, *shape: int, dtype: str = _DTYPE) -> DeviceArray:
    num_bytes = prod(shape) * (4 if dtype in ("float32", "int32") else 2)
    return device_array(backend, backend.allocate(num_bytes), shape, dtype)


def _rows(backend: Backend, rows: int) -> GdnRows:
    return GdnRows(
        _array(backend, rows, _CHANNELS), _array(backend, rows, _HV), _array(backend, rows, _HV)
    )


class _Activations:
    """What the kernels around a launch write and read: the same memory in every layer."""

    def __init__(self, backend: Backend, rows: int) -> None:
        self.rows = _rows(backend, rows)
        self.z, self.out = _array(backend, rows, _VALUES), _array(backend, rows, _VALUES)
        # As the memory is filled this is a huge number, that is, all pending rows.
        self.num_accepted = _array(backend, 1, dtype="int32")


class _Layer:
    """What a layer has for itself, in memory that no other launch uses."""

    def __init__(self, backend: Backend, rows: int) -> None:
        self.pending = GdnPending(
            _array(backend, rows, _CHANNELS),
            _array(backend, rows, _UPDATES, dtype="float32"),
        )
        self.weights = GdnWeights(
            conv=_array(backend, _CHANNELS, 4),
            a_log=_array(backend, _HV, dtype="float32"),
            dt_bias=_array(backend, _HV, dtype="float32"),
            norm=_array(backend, _HEAD_DIM, dtype="float32"),
        )
        self.state = GdnState(
            conv_window=_array(backend, _CHANNELS, 3),
            recurrent=_array(backend, _HV, _HEAD_DIM, _HEAD_DIM, dtype="float32"),
        )


def _bytes_moved(rows: int, pending: int) -> int:
    """Return what one launch reads and writes, each byte once."""
    activations = rows * (_CHANNELS + 2 * _VALUES + 2 * _HV)
    window_and_taps = _CHANNELS * (2 * 3 + 4)
    kept = (pending + rows) * (2 * _CHANNELS + 4 * _UPDATES) if pending else 0
    return 2 * _STATE_BYTES + 2 * (activations + window_and_taps) + kept


def _measure(
    backend: Backend, device: DeviceInfo, samples: int, name: str, rows: int, pending: int
) -> Metric:
    num_layers = max(_LAYERS, -(-_L2_MULTIPLE * device.l2_bytes // _STATE_BYTES))
    layers = [_Layer(backend, rows) for _ in range(num_layers)]
    shared = _Activations(backend, rows)

    def enqueue(stream: int) -> None:
        for layer in layers:
            gdn_step(
                shared.rows,
                shared.z,
                layer.weights,
                layer.state,
                commit=pending == 0,
                pending=layer.pending if pending else None,
                num_accepted=shared.num_accepted if pending else None,
                out=shared.out,
                state_settled=True,
                stream=stream,
            )

    seconds = backend.time_graph(enqueue, samples)
    return Metric(
        name=f"gdn_step.{name}.us",
        unit="us",
        better="lower",
        samples=[s / num_layers * 1e6 for s in seconds],
        tol_pct=5.0,
        case={
            "rows": rows,
            "pending_rows": pending,
            "h": _H,
            "hv": _HV,
            "dtype": _DTYPE,
            "bytes": _bytes_moved(rows, pending),
            "launches_per_sample": num_layers,
            "l2": "cold",
            "activations": "warm",
        },
    )


def measure_gdn_step(
    backend: Backend, device: DeviceInfo, samples: int, read_gb_s: float
) -> list[Metric]:
    """Time gdn_step as a model runs it.

    Each launch has a state, weights and pending rows of its own, which lie in memory; activations
    are shared and so in the L2, where a model's previous kernel leaves them.

    Two metrics step, with 1 and with 5 rows; the third replays 5 accepted rows and verifies 5, as a
    speculative cycle does at its longest. The last one sets the time of 1 row against that of
    reading and writing the state at the card's read bandwidth.
    """
    steps = [_measure(backend, device, samples, f"rows{r}", r, 0) for r in _ROWS]
    cycle = _measure(backend, device, samples, "replay5_rows5", 5, 5)
    traffic_us = 2 * _STATE_BYTES / (read_gb_s * 1e9) * 1e6
    ratio = Metric(
        name="gdn_step.over_state_traffic",
        unit="x",
        better="lower",
        samples=[us / traffic_us for us in steps[0].samples],
        tol_pct=5.0,
        case={"rows": _ROWS[0], "state_bytes": _STATE_BYTES, "read_gb_s": read_gb_s},
    )
    return [*steps, cycle, ratio]
