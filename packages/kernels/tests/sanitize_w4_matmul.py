"""The part of sanitize.py for the four-bit product of many rows, and for unpacking."""

from math import prod
from typing import Any

from bytebound_kernels import (
    PackedW4,
    w4_matmul,
    w4_matmul_workspace_bytes,
    w4_packed_bytes,
    w4_unpack,
)
from bytebound_kernels.bench.memory import DeviceArray, device_array

# One unit, an odd number of row blocks, more units than blocks of the grid.
SHAPES = ((1, 128), (77, 384), (900, 3200))
ROWS = (5, 33, 130)  # each width of a tile


def run_w4_matmul(backend: Any) -> int:
    """Every tile, epilogue, scheme and result."""

    def exact(shape: tuple[int, ...], dtype: str) -> DeviceArray:
        num_bytes = prod(shape) * {"uint8": 1, "float32": 4}.get(dtype, 2)
        return device_array(backend, backend.allocate(num_bytes), shape, dtype)

    num_bytes = w4_matmul_workspace_bytes(backend.device)
    pointer = backend.upload(b"\xff" * num_bytes)
    workspace = device_array(backend, pointer, (num_bytes,), "uint8")
    launches = 0
    for n, k in SHAPES:
        for asymmetric, interleaved in ((False, False), (True, False), (True, True)):
            size = w4_packed_bytes(n, k, asymmetric=asymmetric, interleaved=interleaved)
            weight = PackedW4(
                exact((size,), "uint8"), n, k, asymmetric=asymmetric, interleaved=interleaved
            )
            for dtype in ("float16", "bfloat16"):
                w4_unpack(weight, out=exact((2 * n if interleaved else n, k), dtype))
                launches += 1
                for rows in ROWS:
                    x, out = exact((rows, k), dtype), exact((rows, n), dtype)
                    wide = exact((rows, n), "float32")
                    w4_matmul(x, weight, out=out, workspace=workspace)
                    w4_matmul(
                        x,
                        weight,
                        out=wide,
                        workspace=workspace,
                        residual=None if interleaved else wide,
                    )
                    launches += 2
    return launches
