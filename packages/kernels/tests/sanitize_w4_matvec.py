"""The part of sanitize.py for four-bit matrices: packing, and the product with a few rows."""

from math import prod
from typing import Any

from bytebound_kernels import (
    PackedW4,
    matvec_workspace_bytes,
    w4_matvec,
    w4_pack,
    w4_packed_bytes,
)
from bytebound_kernels.bench.memory import DeviceArray, device_array

ITEMSIZES = {"float32": 4, "int32": 4, "uint8": 1}

# [N, K]: one item that is not full, several with a rest, row blocks of several blocks of the grid.
SHAPES = ((1, 128), (77, 256), (200, 1024), (1001, 384))


class Exact:
    """Arrays in allocations of just their size."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def array(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        pointer = self._backend.allocate(prod(shape) * ITEMSIZES.get(dtype, 2))
        return device_array(self._backend, pointer, shape, dtype)

    def filled(self, num_bytes: int, content: bytes) -> DeviceArray:
        pointer = self._backend.upload(content * num_bytes)
        return device_array(self._backend, pointer, (num_bytes,), "uint8")

    def weight(
        self, n: int, k: int, scale_dtype: str, *, asymmetric: bool, interleaved: bool
    ) -> tuple[PackedW4, int]:
        """Pack a matrix, or two into one; return it with the number of launches."""
        num_bytes = w4_packed_bytes(n, k, asymmetric=asymmetric, interleaved=interleaved)
        weight = PackedW4(
            self.filled(num_bytes, b"\0"),
            n,
            k,
            asymmetric=asymmetric,
            scale_dtype=scale_dtype,
            interleaved=interleaved,
        )
        parts = ("gate", "up") if interleaved else (None,)
        for part in parts:
            zero_point = self.array((-(-n // 8), k // 128), "int32") if asymmetric else None
            w4_pack(
                self.array((n, k // 8), "int32"),
                self.array((n, k // 128), scale_dtype),
                zero_point,
                out=weight,
                part=part,
            )
        return weight, len(parts)


def run_w4_matvec(backend: Any) -> int:
    """Every kind of weight and epilogue, one launch and two, few blocks and many."""
    exact = Exact(backend)
    workspace = exact.filled(matvec_workspace_bytes(backend.device), b"\xff")
    launches = 0
    for n, k in SHAPES:
        for dtype in ("float16", "bfloat16"):
            for asymmetric in (False, True):
                for interleaved in (False, True):
                    weight, packs = exact.weight(
                        n, k, dtype, asymmetric=asymmetric, interleaved=interleaved
                    )
                    launches += packs
                    for rows, out_dtype, blocks in (
                        (1, dtype, None),
                        (5, "float32", 3),
                        (9, dtype, 7),
                        *((rows, "float32", 2) for rows in (2, 3, 4, 6, 7, 8)),
                    ):
                        x, out = exact.array((rows, k), dtype), exact.array((rows, n), out_dtype)
                        for more in ({},) if interleaved else ({}, {"residual": out}):
                            w4_matvec(
                                x, weight, out=out, workspace=workspace, num_blocks=blocks, **more
                            )
                            launches += 1 + (rows > 8)
                        if not interleaved:
                            launches += _beside(exact, x, weight, workspace, blocks)
    return launches


def _beside(
    exact: Exact, x: DeviceArray, weight: PackedW4, workspace: DeviceArray, blocks: int | None
) -> int:
    """A small matrix of seven rows beside; return the number of launches."""
    rows, dtype = x.shape[0], x.dtype
    w4_matvec(
        x,
        weight,
        out=exact.array((rows, weight.n), dtype),
        workspace=workspace,
        num_blocks=blocks,
        beside_weight=exact.array((7, weight.k), dtype),
        beside_out=exact.array((rows, 7), dtype),
    )
    return 1 + (rows > 8)
