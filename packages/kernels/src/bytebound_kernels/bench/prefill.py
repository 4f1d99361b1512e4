"""The passes over many tokens, at the shape of one layer of a 27B model.

They are PyTorch's, so this part of the benchmark needs PyTorch and Triton. A pass moves far more
bytes than the L2 holds, so its caches are cold whatever ran before.
"""

from collections.abc import Callable
from typing import Any

import torch

from bytebound_kernels.bench.report import Metric
from bytebound_kernels.prefill import (
    attention_prefill,
    attention_prefill_workspace_bytes,
    gdn_prefill,
    gdn_prefill_workspace_bytes,
)

__all__ = ["measure_prefill"]

_H, _HV, _K = 16, 48, 128
_NH, _NKV, _DH = 24, 4, 256


def measure_prefill(samples: int) -> list[Metric]:
    """Time one Gated DeltaNet layer and one attention layer over prompts, each as a CUDA graph."""
    metrics = [_measure_gdn(tokens, samples) for tokens in (512, 2048, 8192)]
    for tokens in (512, 2048, 8192):
        metrics.append(_measure_attention(tokens, samples, torch.bfloat16, "triton"))
        metrics.append(_measure_attention(tokens, samples, torch.bfloat16, "sdpa"))
        metrics.append(_measure_attention(tokens, samples, torch.float8_e4m3fn, "triton"))
    return metrics


def _random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(0)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def _measure_gdn(tokens: int, samples: int) -> Metric:
    channels, value_dim = (2 * _H + _HV) * _K, _HV * _K
    qkv, z = _random(tokens, channels), _random(tokens, value_dim)
    a, b = _random(tokens, _HV), _random(tokens, _HV)
    conv_weight, norm_weight = _random(channels, 4), _random(_K)
    a_log, dt_bias = _random(_HV, dtype=torch.float32), _random(_HV, dtype=torch.float32)
    window, state = _random(channels, 3), torch.zeros(_HV, _K, _K, device="cuda")
    out = torch.empty_like(z)
    size = gdn_prefill_workspace_bytes(tokens, key_heads=_H, value_heads=_HV)
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda")

    def enqueue() -> None:
        gdn_prefill(
            qkv, z, a, b, conv_weight, a_log, dt_bias, norm_weight, window, state, out,
            workspace=workspace,
        )  # fmt: skip

    case: dict[str, Any] = {"tokens": tokens, "h": _H, "hv": _HV, "k": _K, "dtype": "bfloat16"}
    return _metric(f"gdn_prefill.t{tokens}.ms", enqueue, samples, case)


def _measure_attention(tokens: int, samples: int, cache: torch.dtype, backend: str) -> Metric:
    q_gate = _random(tokens, _NH * 2 * _DH)
    k, v = _random(tokens, _NKV * _DH), _random(tokens, _NKV * _DH)
    norm = _random(_DH)
    inv_freq = 1e7 ** -(torch.arange(0, 64, 2, device="cuda") / 64)
    k_cache, v_cache = (torch.zeros(_NKV, tokens, _DH, device="cuda").to(cache) for _ in "kv")
    float8 = cache == torch.float8_e4m3fn
    k_scale, v_scale = (torch.zeros(_NKV, tokens, device="cuda") if float8 else None for _ in "kv")
    out = torch.empty(tokens, _NH * _DH, dtype=q_gate.dtype, device="cuda")
    size = attention_prefill_workspace_bytes(tokens, _NH)
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda")

    def enqueue() -> None:
        attention_prefill(
            q_gate, k, v, norm, norm, inv_freq, 0, k_cache, v_cache,
            out=out, workspace=workspace, k_scale=k_scale, v_scale=v_scale, backend=backend,
        )  # fmt: skip

    case: dict[str, Any] = {
        "tokens": tokens,
        "nh": _NH,
        "nkv": _NKV,
        "dh": _DH,
        "dtype": "bfloat16",
        "cache": "float8_e4m3fn" if float8 else "bfloat16",
        "backend": backend,
    }
    kind = ".float8" if float8 else "" if backend == "triton" else f".{backend}"
    return _metric(f"attention_prefill{kind}.t{tokens}.ms", enqueue, samples, case)


def _metric(name: str, enqueue: Callable[[], None], samples: int, case: dict[str, Any]) -> Metric:
    """Capture one pass, replay it, keep every sample in milliseconds."""
    cuda: Any = torch.cuda
    stream = cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        enqueue()  # compiles the kernels, which must not happen under capture
    stream.synchronize()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, stream=stream):
        enqueue()
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    milliseconds = []
    with cuda.stream(stream):
        for _ in range(3):
            graph.replay()
        for _ in range(samples):
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            milliseconds.append(float(begin.elapsed_time(end)))
    return Metric(name, "ms", "lower", milliseconds, 5.0, case)
