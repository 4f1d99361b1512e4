"""Packing of stored 4-bit matrices at the shapes of a 27B model, as at the load of a folder."""

from dataclasses import dataclass

from bytebound_kernels._device import DeviceInfo
from bytebound_kernels.bench.memory import Backend, device_array
from bytebound_kernels.bench.report import Metric
from bytebound_kernels.ops.w4_matvec import PackedW4, w4_pack, w4_packed_bytes

__all__ = ["measure_w4_pack"]

_ALIGNMENT = 256  # bytes
_GROUP = 128
_L2_MULTIPLE = 4  # the matrices of a sample are this many times the L2 before one comes again


@dataclass(frozen=True, slots=True)
class _Matrix:
    name: str
    n: int
    k: int
    part: str | None = None

    @property
    def code_bytes(self) -> int:
        return self.n * self.k // 2

    @property
    def scale_bytes(self) -> int:
        return self.n * self.k // _GROUP * 2

    @property
    def packed_bytes(self) -> int:
        return w4_packed_bytes(self.n, self.k, interleaved=self.part is not None)

    @property
    def bytes_moved(self) -> int:
        """What a call reads and writes: packed words as a whole, in which half may be another's."""
        words = self.code_bytes * (1 if self.part is None else 2)
        return self.code_bytes + 2 * words + 2 * self.scale_bytes


_MATRICES = (_Matrix("gate", 17408, 5120, part="gate"), _Matrix("down", 5120, 17408))


def measure_w4_pack(backend: Backend, device: DeviceInfo, samples: int) -> list[Metric]:
    """Time a call for each matrix, from a graph of several over distinct ones.

    The bytes are those of the stored codes and scales, and the packed ones, which are read and
    written.
    """
    return [_measure(backend, device, matrix, samples) for matrix in _MATRICES]


def _measure(backend: Backend, device: DeviceInfo, matrix: _Matrix, samples: int) -> Metric:
    n, k = matrix.n, matrix.k
    sizes = (matrix.code_bytes, matrix.scale_bytes, matrix.packed_bytes)
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    calls = max(4, -(-_L2_MULTIPLE * device.l2_bytes // starts[-1]))
    arena = backend.allocate(calls * starts[-1])
    stored = []
    for i in range(calls):
        codes, scale, data = (arena + i * starts[-1] + start for start in starts[:-1])
        stored.append(
            (
                device_array(backend, codes, (n, k // 8), "int32"),
                device_array(backend, scale, (n, k // _GROUP), "float16"),
                PackedW4(
                    device_array(backend, data, (matrix.packed_bytes,), "uint8"),
                    n,
                    k,
                    interleaved=matrix.part is not None,
                ),
            )
        )

    def enqueue(stream: int) -> None:
        for packed, scales, out in stored:
            w4_pack(packed, scales, out=out, part=matrix.part, stream=stream)

    seconds = backend.time_graph(enqueue, samples)
    case = {
        "n": n,
        "k": k,
        "dtype": "float16",
        "bytes": matrix.bytes_moved,
        "calls_per_sample": calls,
        "l2": "cold",
    }
    microseconds = [s / calls * 1e6 for s in seconds]
    return Metric(f"w4_pack.{matrix.name}.us", "us", "lower", microseconds, 5.0, case)
