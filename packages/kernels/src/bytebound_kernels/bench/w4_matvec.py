"""The four-bit product at the shapes of a 27B model."""

from collections.abc import Sequence
from dataclasses import dataclass

from bytebound_kernels._device import DeviceInfo
from bytebound_kernels._matvec import matvec_workspace_bytes
from bytebound_kernels.bench.memory import Backend, device_array, random_activations
from bytebound_kernels.bench.report import Metric
from bytebound_kernels.ops.w4_matvec import PackedW4, w4_matvec, w4_packed_bytes

__all__ = ["measure_w4_matvec"]

_ALIGNMENT = 256  # bytes
_ARENA_BYTES = 2 << 30  # distinct weights, far more than an L2 holds
_ROWS = {"float16": (1, 5, 8), "bfloat16": (1, 5)}  # of each type of the activations


@dataclass(frozen=True, slots=True)
class _Matrix:
    name: str
    n: int
    k: int
    interleaved: bool = False
    float_out: bool = False


_MATRICES = (
    _Matrix("gate_up", 17408, 5120, interleaved=True),
    _Matrix("down", 5120, 17408),
    _Matrix("in_proj", 16384, 5120),
    _Matrix("out_proj", 5120, 6144),
    _Matrix("lm_head", 248320, 5120, float_out=True),
)


def measure_w4_matvec(
    backend: Backend, device: DeviceInfo, samples: int, read_gb_s: float
) -> list[Metric]:
    """Time each matrix in a graph of back-to-back calls over distinct weights.

    The time of a call is that of a sample divided by its calls: it includes the hand-over from one
    call to the next, as a decode step has it. The bytes are those of the weights. Activations are
    float16 where the name does not say bfloat16.
    """
    arena = backend.allocate(_ARENA_BYTES)
    workspace_bytes = matvec_workspace_bytes(device.index)
    workspace = device_array(
        backend,
        backend.upload(b"\xff" * workspace_bytes),
        (workspace_bytes,),
        "uint8",
    )
    metrics = []
    for matrix in _MATRICES:
        for dtype, all_rows in _ROWS.items():
            of_rows = [
                _measure(backend, matrix, dtype, rows, arena, workspace, samples, read_gb_s)
                for rows in all_rows
            ]
            metrics += [metric for pair in of_rows for metric in pair]
            metrics.append(_ratio(_name(matrix, dtype), of_rows[1][0], of_rows[0][0]))
    return metrics


def _name(matrix: _Matrix, dtype: str) -> str:
    return f"w4.{matrix.name}" + ("" if dtype == "float16" else f".{dtype}")


def _measure(
    backend: Backend,
    matrix: _Matrix,
    dtype: str,
    rows: int,
    arena: int,
    workspace: object,
    samples: int,
    read_gb_s: float,
) -> Sequence[Metric]:
    size = w4_packed_bytes(matrix.n, matrix.k, interleaved=matrix.interleaved)
    step = -(-size // _ALIGNMENT) * _ALIGNMENT
    calls = _ARENA_BYTES // step
    weights = [
        PackedW4(
            device_array(backend, arena + i * step, (size,), "uint8"),
            matrix.n,
            matrix.k,
            interleaved=matrix.interleaved,
        )
        for i in range(calls)
    ]
    x = random_activations(backend, (rows, matrix.k), dtype)
    out_dtype, itemsize = ("float32", 4) if matrix.float_out else (dtype, 2)
    out_memory = backend.allocate(rows * matrix.n * itemsize)
    out = device_array(backend, out_memory, (rows, matrix.n), out_dtype)

    def enqueue(stream: int) -> None:
        for weight in weights:
            w4_matvec(x, weight, out=out, workspace=workspace, stream=stream)

    seconds = [s / calls for s in backend.time_graph(enqueue, samples)]
    case = {
        "rows": rows,
        "n": 2 * matrix.n if matrix.interleaved else matrix.n,
        "k": matrix.k,
        "dtype": dtype,
        "bytes": size,
        "calls_per_sample": calls,
        "l2": "cold",
    }
    name = _name(matrix, dtype)
    percent = [size / s / 1e9 / read_gb_s * 100 for s in seconds]
    return (
        Metric(f"{name}.rows{rows}.us", "us", "lower", [s * 1e6 for s in seconds], 3.0, case),
        Metric(
            f"{name}.percent_of_read" if rows == 1 else f"{name}.rows{rows}.percent_of_read",
            "%",
            "higher",
            percent,
            3.0,
            {**case, "read_gb_s": read_gb_s},
        ),
    )


def _ratio(name: str, five: Metric, one: Metric) -> Metric:
    ratios = [a / b for a, b in zip(five.samples, one.samples, strict=True)]
    return Metric(f"{name}.rows5_over_rows1", "ratio", "lower", ratios, 3.0, {"bytes": 0})
