"""The four-bit product of a prompt's rows at the shapes of a 27B model, by both of its ways.

w4_matmul reads the packed matrix; w4_unpack_cublas writes it out in 16 bits and calls PyTorch's
product. Without SwiGLU and residual, which the second way has no part in. The launches of a sample
take turns on distinct weights, so that caches are cold.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from bytebound_kernels.bench.report import Metric
from bytebound_kernels.ops.w4_matmul import w4_matmul, w4_matmul_workspace_bytes
from bytebound_kernels.ops.w4_matvec import PackedW4, w4_packed_bytes
from bytebound_kernels.ops.w4_unpack import w4_unpack

__all__ = ["measure_w4_matmul"]

_MATRICES = (("gate_up", 34816, 5120), ("down", 5120, 17408))
_ROWS = {  # of each type of the activations
    torch.float16: (17, 32, 64, 128, 256, 512, 2048, 8192),
    torch.bfloat16: (17, 2048),
}
_WEIGHTS = 8  # distinct ones: 375 MB, far more than an L2 holds
_FILL = 0x3C  # scales of 1.06, codes of 12 and 3


def measure_w4_matmul(samples: int) -> list[Metric]:
    """Time one product, from a graph of several over distinct weights.

    Activations, and what the matrix is unpacked to, are float16 where the name does not say
    bfloat16.
    """
    return [
        metric
        for name, n, k in _MATRICES
        for dtype in _ROWS
        for metric in _measure(name, n, k, dtype, samples)
    ]


def _measure(name: str, n: int, k: int, dtype: torch.dtype, samples: int) -> list[Metric]:
    size = w4_packed_bytes(n, k)
    data = torch.full((_WEIGHTS, size), _FILL, dtype=torch.uint8, device="cuda")
    weights = [PackedW4(row, n, k) for row in data]
    workspace_bytes = w4_matmul_workspace_bytes(torch.cuda.current_device())
    workspace = torch.full((workspace_bytes,), 255, dtype=torch.uint8, device="cuda")
    scratch = torch.empty(n, k, dtype=dtype, device="cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    most = max(_ROWS[dtype])
    all_x = (torch.randn(most, k, generator=generator, device="cuda") * 0.01).to(dtype)
    all_out = torch.empty(most, n, dtype=dtype, device="cuda")

    dtype_name = str(dtype).removeprefix("torch.")
    if dtype != torch.float16:
        name = f"{name}.{dtype_name}"
    case: dict[str, Any] = {"n": n, "k": k, "dtype": dtype_name, "bytes": size, "l2": "cold"}
    unpack = [partial(w4_unpack, w, out=scratch) for w in weights]
    metrics = [_metric(f"w4_unpack.{name}.us", unpack, samples, case)]
    for rows in _ROWS[dtype]:
        x, out = all_x[:rows], all_out[:rows]

        def product(w: PackedW4, x: torch.Tensor = x, out: torch.Tensor = out) -> None:
            w4_matmul(x, w, out=out, workspace=workspace)

        def library(w: PackedW4, x: torch.Tensor = x, out: torch.Tensor = out) -> None:
            torch.mm(x, w4_unpack(w, out=scratch).T, out=out)

        for way, call in (("w4_matmul", product), ("w4_unpack_cublas", library)):
            calls = [partial(call, w) for w in weights]
            of_rows = {**case, "rows": rows, "flop": 2 * rows * n * k}
            metrics.append(_metric(f"{way}.{name}.m{rows}.us", calls, samples, of_rows))
    return metrics


def _metric(
    name: str, calls: Sequence[Callable[[], Any]], samples: int, case: dict[str, Any]
) -> Metric:
    """Capture all calls in one graph and replay it; microseconds of one call."""
    cuda: Any = torch.cuda
    stream = cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        calls[0]()  # loads kernels and a library's workspace, which must not happen under capture
    stream.synchronize()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    microseconds = []
    with cuda.stream(stream):
        for _ in range(3):
            graph.replay()
        for _ in range(samples):
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            microseconds.append(float(begin.elapsed_time(end)) / len(calls) * 1e3)
    case = {**case, "calls_per_sample": len(calls)}
    return Metric(name, "us", "lower", microseconds, 3.0, case)
