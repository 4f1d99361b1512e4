"""16-bit matrices times a few rows, at the shapes of a 27B model, with cold caches."""

from typing import Any

from bytebound_kernels._device import DeviceInfo
from bytebound_kernels._matvec import matvec_workspace_bytes
from bytebound_kernels.bench.memory import Backend, BenchError, DeviceArray, device_array
from bytebound_kernels.bench.report import Metric
from bytebound_kernels.ops.dense_matvec import dense_matvec

__all__ = ["measure_dense_matvec"]

_D, _F = 5120, 17408
_AB_FEATURES = 96  # the two small projections of a Gated DeltaNet layer
_DTYPE = "bfloat16"
_ITEMSIZE = 2
_L2_MULTIPLE = 4  # the weights of a sample are this many times the L2 before one comes again


class _Layers:
    """Matrices of one shape, enough of them to be cold, and what a product needs besides."""

    def __init__(
        self, backend: Backend, device: DeviceInfo, rows: int, n: int, num_matrices: int
    ) -> None:
        matrix_bytes = n * _D * _ITEMSIZE
        self.num_bytes = num_matrices * matrix_bytes
        self.calls = max(4, -(-_L2_MULTIPLE * device.l2_bytes // self.num_bytes))
        if self.calls * self.num_bytes > backend.free_bytes():
            raise BenchError(
                f"dense_matvec: {self.calls * self.num_bytes} bytes of weights do not fit into "
                f"{backend.free_bytes()} free bytes"
            )

        def array(shape: tuple[int, int]) -> DeviceArray:
            pointer = backend.allocate(shape[0] * shape[1] * _ITEMSIZE)
            return device_array(backend, pointer, shape, _DTYPE)

        self._weights = [[array((n, _D)) for _ in range(num_matrices)] for _ in range(self.calls)]
        self._x, self._out = array((rows, _D)), array((rows, n))
        workspace_bytes = matvec_workspace_bytes(device.index)
        pointer = backend.upload(b"\xff" * workspace_bytes)
        self._workspace = device_array(backend, pointer, (workspace_bytes,), "uint8")

    def enqueue(self, stream: int) -> None:
        for weight, *up in self._weights:
            dense_matvec(
                self._x,
                weight,
                up=up[0] if up else None,
                out=self._out,
                workspace=self._workspace,
                stream=stream,
            )


def _seconds_per_call(
    backend: Backend, device: DeviceInfo, samples: int, rows: int, n: int, num_matrices: int
) -> tuple[list[float], dict[str, Any]]:
    layers = _Layers(backend, device, rows, n, num_matrices)
    seconds = [s / layers.calls for s in backend.time_graph(layers.enqueue, samples)]
    case: dict[str, Any] = {
        "rows": rows,
        "n": n,
        "k": _D,
        "matrices": num_matrices,
        "dtype": _DTYPE,
        "bytes": layers.num_bytes,
        "launches_per_sample": layers.calls,
        "l2": "cold",
    }
    return seconds, case


def measure_dense_matvec(
    backend: Backend, device: DeviceInfo, samples: int, read_gb_s: float
) -> list[Metric]:
    """Time one row times gate and up with SwiGLU, and times the small projections.

    Args:
        backend: where the memory comes from.
        device: the card.
        samples: per metric.
        read_gb_s: the card's measured read bandwidth, against which the weights are set.
    """
    gate_up, case = _seconds_per_call(backend, device, samples, 1, _F, 2)
    rows5, case_rows5 = _seconds_per_call(backend, device, samples, 5, _F, 2)
    ab, case_ab = _seconds_per_call(backend, device, samples, 1, _AB_FEATURES, 1)
    limit = case["bytes"] / (read_gb_s * 1e9)
    percent = [100 * limit / s for s in gate_up]
    ratio = [five / one for five, one in zip(rows5, gate_up, strict=True)]
    return [
        Metric("dense.gate_up.us", "us", "lower", [s * 1e6 for s in gate_up], 5.0, case),
        Metric("dense.gate_up.percent_of_read", "%", "higher", percent, 3.0, case),
        Metric("dense.gate_up.rows5_over_rows1", "x", "lower", ratio, 3.0, case_rows5),
        Metric("dense.ab.us", "us", "lower", [s * 1e6 for s in ab], 5.0, case_ab),
    ]
