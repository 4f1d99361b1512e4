"""The part of sanitize.py for 16-bit matrices times a few rows."""

from math import prod
from typing import Any

from bytebound_kernels import dense_matvec, matvec_workspace_bytes
from bytebound_kernels.bench.memory import DeviceArray, device_array

# [N, K]: below one item, both widths of an item, rows off the grid, row blocks of several blocks.
SHAPES = ((1, 64), (3, 128), (77, 192), (96, 5120), (1001, 256))


def run_dense_matvec(backend: Any) -> int:
    """Every epilogue and result, one launch and two, few blocks and many."""

    def exact(shape: tuple[int, ...], dtype: str) -> DeviceArray:
        num_bytes = prod(shape) * (4 if dtype == "float32" else 2)
        return device_array(backend, backend.allocate(num_bytes), shape, dtype)

    num_bytes = matvec_workspace_bytes(backend.device)
    pointer = backend.upload(b"\xff" * num_bytes)
    workspace = device_array(backend, pointer, (num_bytes,), "uint8")
    launches = 0
    for n, k in SHAPES:
        for dtype in ("float16", "bfloat16"):
            weight, up = (exact((n, k), dtype) for _ in range(2))
            for rows, out_dtype, num_blocks in ((1, dtype, None), (5, "float32", 3), (9, dtype, 7)):
                x, out = exact((rows, k), dtype), exact((rows, n), out_dtype)
                for more in ({}, {"up": up}, {"residual": out}):
                    dense_matvec(
                        x, weight, out=out, workspace=workspace, num_blocks=num_blocks, **more
                    )
                    launches += 1 + (rows > 8)
    return launches
