"""The card's read bandwidth and RMSNorm."""

from bytebound_kernels import _native
from bytebound_kernels._device import DeviceInfo
from bytebound_kernels.bench.memory import Backend, device_array
from bytebound_kernels.bench.report import Metric
from bytebound_kernels.ops.rms_norm import rms_norm

__all__ = ["measure_read_bandwidth", "measure_rms_norms"]

_ALIGNMENT = 256  # bytes, of every buffer in an arena
_READ_BYTES = 4 << 30
_READ_LAUNCHES = 4
_ROWS = (1, 8, 4096)
_D = 5120
_L2_MULTIPLE = 4  # a rotation touches this many times the L2 before it comes round


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def measure_read_bandwidth(backend: Backend, samples: int) -> Metric:
    """Read a buffer far larger than the L2; the card's limit for everything else."""
    num_bytes = min(_READ_BYTES, backend.free_bytes() // 4) // _ALIGNMENT * _ALIGNMENT
    memory = backend.allocate(num_bytes)
    sink = backend.allocate(_ALIGNMENT)

    def enqueue(stream: int) -> None:
        for _ in range(_READ_LAUNCHES):
            _native.read_bandwidth(
                memory, sink, num_bytes=num_bytes, device=backend.device, stream=stream
            )

    seconds = backend.time_graph(enqueue, samples)
    return Metric(
        name="read_gb_s",
        unit="GB/s",
        better="higher",
        samples=[_READ_LAUNCHES * num_bytes / s / 1e9 for s in seconds],
        tol_pct=3.0,
        case={"bytes": num_bytes, "launches_per_sample": _READ_LAUNCHES, "l2": "cold"},
    )


def measure_rms_norms(backend: Backend, device: DeviceInfo, samples: int) -> list[Metric]:
    """Time rms_norm over one row, a few rows and a prompt."""
    return [_measure_rms_norm(backend, device, samples, rows, _D, "bfloat16") for rows in _ROWS]


def _measure_rms_norm(
    backend: Backend, device: DeviceInfo, samples: int, rows: int, d: int, dtype: str
) -> Metric:
    """Time rms_norm with cold caches: each launch of a sample has buffers of its own.

    The time of a launch is that of a sample divided by its launches, so it includes the gap between
    two kernels of a graph, as a decode step has it.
    """
    itemsize = 2
    tensor_bytes = _round_up(rows * d * itemsize, _ALIGNMENT)
    weight_bytes = _round_up(d * itemsize, _ALIGNMENT)
    slot_bytes = 2 * tensor_bytes + weight_bytes
    launches = max(4, -(-_L2_MULTIPLE * device.l2_bytes // slot_bytes))
    arena = backend.allocate(launches * slot_bytes)

    slots = []
    for i in range(launches):
        x = device_array(backend, arena + i * slot_bytes, (rows, d), dtype)
        slots.append((x, x.at(2 * tensor_bytes, (d,)), x.at(tensor_bytes, (rows, d))))

    def enqueue(stream: int) -> None:
        for x, weight, out in slots:
            rms_norm(x, weight, out=out, stream=stream)

    seconds = backend.time_graph(enqueue, samples)
    return Metric(
        name=f"rms_norm.d{d}.rows{rows}.us",
        unit="us",
        better="lower",
        samples=[s / launches * 1e6 for s in seconds],
        tol_pct=5.0,
        case={
            "rows": rows,
            "d": d,
            "dtype": dtype,
            "bytes": (2 * rows + 1) * d * itemsize,
            "launches_per_sample": launches,
            "l2": "cold",
        },
    )
