"""The norm of a Gated DeltaNet layer with its two small projections, in one launch and in two."""

from collections.abc import Callable
from math import prod

from bytebound_kernels._device import DeviceInfo
from bytebound_kernels._matvec import matvec_workspace_bytes
from bytebound_kernels.bench.memory import Backend, DeviceArray, device_array
from bytebound_kernels.bench.report import Metric
from bytebound_kernels.ops.dense_matvec import dense_matvec
from bytebound_kernels.ops.rms_norm import rms_norm
from bytebound_kernels.ops.rms_norm_project import rms_norm_project

__all__ = ["measure_rms_norm_project"]

_D = 5120
_N = 96  # two numbers for each of 48 value heads
_ROWS = (1, 5, 8)
_DTYPE = "bfloat16"
_L2_MULTIPLE = 4  # the weights of a sample are this many times the L2 before one comes again


class _Layers:
    """Norms and projections, enough of them to be cold, and rows that stay in the L2."""

    def __init__(self, backend: Backend, device: DeviceInfo) -> None:
        self._backend = backend
        self.weight_bytes = 4 * _D + 2 * _N * _D
        self.calls = -(-_L2_MULTIPLE * device.l2_bytes // self.weight_bytes)
        self._weights = [
            (self._array((_D,), "float32"), self._array((_N, _D), _DTYPE))
            for _ in range(self.calls)
        ]
        num_bytes = matvec_workspace_bytes(device.index)
        pointer = backend.upload(b"\xff" * num_bytes)
        self._workspace = device_array(backend, pointer, (num_bytes,), "uint8")

    def _array(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        num_bytes = prod(shape) * (4 if dtype == "float32" else 2)
        return device_array(self._backend, self._backend.allocate(num_bytes), shape, dtype)

    def ways(self, rows: int) -> dict[str, Callable[[int], None]]:
        """Return what is timed: the op, the same work in two launches, and the norm alone."""
        x, y = self._array((rows, _D), "float32"), self._array((rows, _D), _DTYPE)
        g = self._array((rows, _N), _DTYPE)

        def one_launch(stream: int) -> None:
            for weight, projection in self._weights:
                rms_norm_project(x, weight, projection, out=y, projected=g, stream=stream)

        def two_launches(stream: int) -> None:
            for weight, projection in self._weights:
                rms_norm(x, weight, out=y, stream=stream)
                dense_matvec(y, projection, out=g, workspace=self._workspace, stream=stream)

        def norm_alone(stream: int) -> None:
            for weight, _ in self._weights:
                rms_norm(x, weight, out=y, stream=stream)

        return {"us": one_launch, "two_launches_us": two_launches, "norm_alone_us": norm_alone}


def measure_rms_norm_project(backend: Backend, device: DeviceInfo, samples: int) -> list[Metric]:
    """Time a call for one row, for those of a verify pass and for the most that a pass has."""
    layers = _Layers(backend, device)
    metrics = []
    for rows in _ROWS:
        for name, enqueue in layers.ways(rows).items():
            norm_alone = name.startswith("norm")
            weight_bytes = 4 * _D if norm_alone else layers.weight_bytes
            metrics.append(
                Metric(
                    name=f"rms_norm_project.rows{rows}.{name}",
                    unit="us",
                    better="lower",
                    samples=[s / layers.calls * 1e6 for s in backend.time_graph(enqueue, samples)],
                    tol_pct=5.0,
                    case={
                        "rows": rows,
                        "n": 0 if norm_alone else _N,
                        "d": _D,
                        "dtype": _DTYPE,
                        "bytes": weight_bytes,
                        "launches_per_sample": layers.calls * (2 if name.startswith("two") else 1),
                        "l2": "cold",  # for the weights,
                    },
                )
            )
    return metrics
