"""Runs every kernel once per path, for compute-sanitizer: python tests/sanitize.py [--only OP].

Small sizes only, since a checked kernel is slow; no PyTorch where CuPy is there, since its import
is slower still. Prints a line per op and exits with 0; what is wrong is for the sanitizer to say.
"""

import argparse
import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable

from bytebound_kernels import (
    GdnPending,
    GdnRows,
    GdnState,
    GdnWeights,
    _native,
    attention_decode,
    attention_decode_workspace_bytes,
    gdn_step,
    gdn_updates_width,
    rms_norm,
    rms_norm_project,
)
from bytebound_kernels.bench.memory import CupyBackend, DeviceArray, TorchBackend, device_array
from sanitize_dense_matvec import run_dense_matvec
from sanitize_small_ops import run_small_ops
from sanitize_w4_matmul import run_w4_matmul
from sanitize_w4_matvec import run_w4_matvec
from sanitize_weight_stream import run_gdn_keep, run_weight_stream

WIDTHS = (1, 3, 8, 127, 256, 1000, 8200, 17408)
PAIRS = (
    ("float16", "float16"),
    ("float16", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
    ("float32", "float32"),
)


def itemsize_of(dtype: str) -> int:
    return {"float32": 4, "int32": 4, "uint8": 1, "float8_e4m3fn": 1}.get(dtype, 2)


def find_backend() -> tuple[CupyBackend | TorchBackend, Callable[[], None]]:
    """Return a backend without a memory pool, in which bounds would be hidden, and its barrier."""
    try:
        import cupy
    except ImportError:
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        import torch

        return TorchBackend(torch), torch.cuda.synchronize
    cupy.cuda.set_allocator(None)
    return CupyBackend(cupy), cupy.cuda.runtime.deviceSynchronize


def exact(backend: CupyBackend | TorchBackend, shape: tuple[int, ...], dtype: str) -> DeviceArray:
    """Allocate just enough, so that an access beyond the end is outside of every allocation."""
    num_bytes = math.prod(shape) * itemsize_of(dtype)
    return device_array(backend, backend.allocate(num_bytes), shape, dtype)


def run_gdn_step(backend: CupyBackend | TorchBackend) -> int:
    """Step, verify and replay, in one and in two rounds over the value heads."""
    launches = 0
    for dtype in ("float16", "bfloat16"):
        for h, hv in ((1, 3), (2, 8)):
            channels = (2 * h + hv) * 128
            weights = GdnWeights(
                exact(backend, (channels, 4), dtype),
                *(exact(backend, (n,), "float32") for n in (hv, hv, 128)),
            )
            state = GdnState(
                exact(backend, (channels, 3), dtype), exact(backend, (hv, 128, 128), "float32")
            )
            # As the memory is filled this is a huge number, that is, all pending rows.
            num_accepted = exact(backend, (1,), "int32")
            for num_rows, num_pending in ((1, 0), (8, 0), (0, 3), (5, 8)):
                rows = GdnRows(*(exact(backend, (num_rows, c), dtype) for c in (channels, hv, hv)))
                size = max(num_rows, num_pending)
                pending = GdnPending(
                    exact(backend, (size, channels), dtype),
                    exact(backend, (size, gdn_updates_width(h, hv)), "float32"),
                )
                z, out = (exact(backend, (num_rows, hv * 128), dtype) for _ in range(2))
                replay = {"pending": pending, "num_accepted": num_accepted} if num_pending else {}
                if num_pending:
                    replay["pending_rows"] = num_pending
                for commit in (False,) if num_pending else (False, True):
                    gdn_step(rows, z, weights, state, commit=commit, out=out, **replay)
                    launches += 1
    return launches


def run_attention_decode(backend: CupyBackend | TorchBackend) -> int:
    """Every cache and number of query tiles, new rows on both sides of an edge, several leaves."""
    launches = 0
    # The fifth shape has more leaves than blocks, so that some are drawn; the last two have long
    # caches, which take more stages and another number of blocks.
    for (num_heads, num_kv_heads), rows, position, length in (
        ((2, 1), 1, 0, 1),
        ((6, 2), 3, 62, 68),
        ((6, 1), 5, 29, 40),
        ((7, 1), 8, 130, 200),
        ((100, 100), 2, 190, 192),
        ((6, 1), 1, 70, 8452),
        ((6, 1), 5, 126, 8452),
    ):
        for dtype, cache in (
            ("float16", "float16"),
            ("bfloat16", "bfloat16"),
            ("float16", "float8_e4m3fn"),
        ):
            widths = (num_heads * 512, num_kv_heads * 256, num_kv_heads * 256)
            activations = [exact(backend, (rows, n), dtype) for n in widths]
            norms = [exact(backend, (256,), dtype) for _ in range(2)]
            caches = [exact(backend, (num_kv_heads, length, 256), cache) for _ in range(2)]
            scales = {}
            if cache == "float8_e4m3fn":
                # Read in whole 16 bytes, as csrc/attention_decode.h says.
                whole = -(-length // 4) * 4
                scales = {
                    name: exact(backend, (num_kv_heads, whole), "float32").at(
                        0, (num_kv_heads, length)
                    )
                    for name in ("k_scale", "v_scale")
                }
            p_position = backend.upload(position.to_bytes(4, "little"))
            num_bytes = attention_decode_workspace_bytes(rows, num_heads, length)
            attention_decode(
                *activations,
                *norms,
                exact(backend, (32,), "float32"),
                device_array(backend, p_position, (1,), "int32"),
                *caches,
                **scales,
                workspace=exact(backend, (num_bytes,), "uint8"),
                out=exact(backend, (rows, num_heads * 256), dtype),
            )
            launches += 1
    return launches


def run_rms_norm(backend: CupyBackend | TorchBackend) -> int:
    """Rows of every length class, on and off the 16-byte grid."""
    launches = 0
    for x_dtype, w_dtype in PAIRS:
        for d in WIDTHS:
            for rows in (1, 3):
                x, out = (exact(backend, (rows, d), x_dtype) for _ in range(2))
                rms_norm(x, exact(backend, (d,), w_dtype), out=out)
                # One element off the 16-byte grid: the scalar path.
                odd = exact(backend, (rows * d + 1,), x_dtype)
                rms_norm(
                    odd.at(itemsize_of(x_dtype), (rows, d)), exact(backend, (d,), w_dtype), out=out
                )
                launches += 2
    return launches


def run_rms_norm_project(backend: CupyBackend | TorchBackend) -> int:
    """Each number of features of a block, with a rest, and rows longer than a block at once."""
    launches = 0
    for dtype in ("float16", "bfloat16"):
        for rows, n, d in ((1, 7, 64), (3, 50, 320), (8, 97, 1024), (2, 5, 8256), (16, 33, 192)):
            rms_norm_project(
                exact(backend, (rows, d), "float32"),
                exact(backend, (d,), "float32"),
                exact(backend, (n, d), dtype),
                out=exact(backend, (rows, d), dtype),
                projected=exact(backend, (rows, n), dtype),
            )
            launches += 1
    return launches


def run_read_bandwidth(backend: CupyBackend | TorchBackend) -> int:
    """Not a multiple of what the grid reads at once, so that the tail runs too."""
    num_bytes = (20 << 20) + 16
    memory, sink = backend.allocate(num_bytes), backend.allocate(4)
    _native.read_bandwidth(memory, sink, num_bytes=num_bytes, device=backend.device, stream=0)
    return 1


def run_prefill(backend: CupyBackend | TorchBackend) -> int:
    """The Triton kernels, which want tensors of PyTorch."""
    lacking = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if lacking:
        print(f"prefill: skipped, {' and '.join(lacking)} is not installed", flush=True)
        return 0
    from sanitize_prefill import run_attention_prefill, run_gdn_prefill

    return run_gdn_prefill() + run_attention_prefill()


# Each returns how many launches it made.
RUNS: dict[str, Callable[[CupyBackend | TorchBackend], int]] = {
    "read_bandwidth": run_read_bandwidth,
    "rms_norm": run_rms_norm,
    "rms_norm_project": run_rms_norm_project,
    "gdn_step": run_gdn_step,
    "gdn_keep": run_gdn_keep,
    "attention_decode": run_attention_decode,
    "dense_matvec": run_dense_matvec,
    "w4_matvec": run_w4_matvec,
    "w4_matmul": run_w4_matmul,
    "weight_stream": run_weight_stream,
    "small_ops": run_small_ops,
    "prefill": run_prefill,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run every kernel once per path.")
    parser.add_argument("--only", action="append", choices=tuple(RUNS), help="may be repeated")
    names = parser.parse_args().only or tuple(RUNS)
    backend, synchronize = find_backend()
    total = 0
    for name in names:
        began = time.monotonic()
        launches = RUNS[name](backend)
        synchronize()
        total += launches
        print(f"{name}: {launches} launches, {time.monotonic() - began:.1f} s", flush=True)
    print(f"{total} launches with {backend.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
