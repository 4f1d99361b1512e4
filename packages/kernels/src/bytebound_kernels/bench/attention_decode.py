"""Attention decode at the shape of a 27B model, over caches that are too large for the L2."""

from math import prod
from typing import Any

from bytebound_kernels._device import DeviceInfo
from bytebound_kernels.bench.memory import Backend, DeviceArray, device_array
from bytebound_kernels.bench.report import Metric
from bytebound_kernels.ops.attention_decode import (
    attention_decode,
    attention_decode_workspace_bytes,
)

__all__ = ["measure_attention_decode"]

_NH, _NKV, _DH, _ROTARY_DIM = 24, 4, 256, 64
_DTYPE = "bfloat16"
_ITEMSIZES = {"float8_e4m3fn": 1, "bfloat16": 2, "float32": 4}
_L2_MULTIPLE = 4  # the caches of a sample are this many times the L2 before one comes again
_MIN_CALLS = 16  # of a sample, as many as a step of the model has: a graph's start is a part of it


class _Layer:
    """The arguments of one launch; the cache and the rows are its own."""

    def __init__(self, backend: Backend, rows: int, length: int, cache_dtype: str) -> None:
        def array(*shape: int, dtype: str = _DTYPE) -> DeviceArray:
            num_bytes = prod(shape) * _ITEMSIZES[dtype]
            return device_array(backend, backend.allocate(num_bytes), shape, dtype)

        self.rows = (
            array(rows, _NH * 2 * _DH),
            array(rows, _NKV * _DH),
            array(rows, _NKV * _DH),
            array(_DH),
            array(_DH),
            array(_ROTARY_DIM // 2, dtype="float32"),
        )
        self.out = array(rows, _NH * _DH)
        self.caches = tuple(array(_NKV, length, _DH, dtype=cache_dtype) for _ in range(2))
        self.scales: dict[str, Any] = {}
        if cache_dtype == "float8_e4m3fn":
            self.scales = {
                name: array(_NKV, length, dtype="float32") for name in ("k_scale", "v_scale")
            }


def _cache_bytes(length: int, cache_dtype: str) -> int:
    """Return the bytes of keys and values that a call has to read."""
    scale = 4 if cache_dtype == "float8_e4m3fn" else 0
    return 2 * _NKV * length * (_DH * _ITEMSIZES[cache_dtype] + scale)


def _seconds_per_call(
    backend: Backend, device: DeviceInfo, samples: int, rows: int, length: int, cache_dtype: str
) -> tuple[list[float], dict[str, Any]]:
    """Time calls whose last row sees ``length`` positions, as in the layers of one decode step."""
    num_bytes = _cache_bytes(length, cache_dtype)
    caches = max(4, -(-_L2_MULTIPLE * device.l2_bytes // num_bytes))
    calls = max(_MIN_CALLS, caches)
    layers = [_Layer(backend, rows, length, cache_dtype) for _ in range(caches)]
    p_position = backend.upload((length - rows).to_bytes(4, "little"))
    position = device_array(backend, p_position, (1,), "int32")
    workspace_bytes = attention_decode_workspace_bytes(rows, _NH, length)
    workspace = device_array(
        backend, backend.allocate(workspace_bytes), (workspace_bytes,), "uint8"
    )

    def enqueue(stream: int) -> None:
        for i in range(calls):
            layer = layers[i % caches]
            attention_decode(
                *layer.rows,
                position,
                *layer.caches,
                **layer.scales,
                workspace=workspace,
                out=layer.out,
                stream=stream,
            )

    seconds = [s / calls for s in backend.time_graph(enqueue, samples)]
    case: dict[str, Any] = {
        "rows": rows,
        "positions": length,
        "cache": cache_dtype,
        "NH": _NH,
        "NKV": _NKV,
        "DH": _DH,
        "bytes": num_bytes,
        "caches": caches,
        "launches_per_sample": calls,
        "l2": "cold",
    }
    return seconds, case


def measure_attention_decode(
    backend: Backend, device: DeviceInfo, samples: int, read_gb_s: float
) -> list[Metric]:
    """Time calls with cold caches, at 1 Ki and at 32 Ki positions, of one row and of five.

    Args:
        backend: where the memory comes from.
        device: the card.
        samples: per metric.
        read_gb_s: the card's measured read bandwidth, against which keys and values are set.
    """

    def times(rows: int, length: int, cache: str) -> tuple[list[float], dict[str, Any]]:
        return _seconds_per_call(backend, device, samples, rows, length, cache)

    def microseconds(name: str, timed: tuple[list[float], dict[str, Any]]) -> Metric:
        seconds, case = timed
        values = [s * 1e6 for s in seconds]
        return Metric(f"{name}.us", "us", "lower", values, 5.0, case)

    def percent(name: str, timed: tuple[list[float], dict[str, Any]]) -> Metric:
        seconds, case = timed
        limit = case["bytes"] / (read_gb_s * 1e9)
        values = [100 * limit / s for s in seconds]
        return Metric(f"{name}.percent_of_read", "%", "higher", values, 3.0, case)

    short = times(1, 1 << 10, "bfloat16")
    short_rows5 = times(5, 1 << 10, "bfloat16")
    long = times(1, 32 << 10, "bfloat16")
    long_rows5 = times(5, 32 << 10, "bfloat16")
    long_fp8 = times(1, 32 << 10, "float8_e4m3fn")
    ratio = [five / one for five, one in zip(long_rows5[0], long[0], strict=True)]
    return [
        microseconds("attention_1k_bf16", short),
        microseconds("attention_1k_bf16_rows5", short_rows5),
        microseconds("attention_32k_bf16", long),
        percent("attention_32k_bf16", long),
        Metric("attention_32k_bf16.rows5_over_rows1", "x", "lower", ratio, 3.0, long_rows5[1]),
        percent("attention_32k_fp8", long_fp8),
    ]
