"""The part of sanitize.py for the weight stream, and for what moves on behind it.

Blocks of the weight stream wait for each other, and a checked kernel is slow: one launch for each
kind of weight and some numbers of rows, of the smallest sizes that take every path. What is handed
over is polled, on purpose without a barrier, and racecheck looks at shared memory alone.
"""

from itertools import product
from math import prod
from typing import Any

from bytebound_kernels import (
    GdnPending,
    GdnRows,
    GdnState,
    GdnWeights,
    StreamGatedDelta,
    StreamGates,
    StreamNorm,
    StreamProduct,
    StreamProgram,
    StreamReplay,
    gdn_keep,
    gdn_updates_width,
    weight_stream,
    weight_stream_table_bytes,
    weight_stream_workspace_bytes,
)
from bytebound_kernels.bench.memory import DeviceArray, device_array
from sanitize_w4_matvec import ITEMSIZES, Exact

_ROWS = 8  # of every tensor
_D, _F, _H, _HV = 256, 128, 1, 2
_CHANNELS, _VALUES = (2 * _H + _HV) * 128, _HV * 128
_UPDATES = gdn_updates_width(_H, _HV)


def _absent(exact: Exact, backend: Any, shape: tuple[int, ...], dtype: str) -> DeviceArray:
    """Allocate for what is handed over: every bit is set."""
    filled = exact.filled(prod(shape) * ITEMSIZES.get(dtype, 2), b"\xff")
    return device_array(backend, filled.pointer, shape, dtype)


def run_weight_stream(backend: Any) -> int:
    """Launches for each kind of weight and of few rows, with every kind of op and epilogue."""
    exact = Exact(backend)
    workspace = exact.filled(weight_stream_workspace_bytes(backend.device), b"\xff")
    launches = 0
    for asymmetric, rows in product((False, True), (1, 3, 5, 8)):

        def result(width: int, dtype: str = "float16") -> DeviceArray:
            return _absent(exact, backend, (_ROWS, width), dtype)

        def norm(x: DeviceArray) -> StreamNorm:
            return StreamNorm(x, exact.array((_D,), "float32"), exact.array((_ROWS, _D), "float16"))

        weights = []
        for n, k, interleaved in (
            (_CHANNELS, _D, False),
            (_VALUES, _D, False),
            (_D, _VALUES, False),
            (_F, _D, True),
            (_D, _F, False),
            (77, _D, False),
        ):
            weight, packs = exact.weight(
                n, k, "float16", asymmetric=asymmetric, interleaved=interleaved
            )
            weights.append(weight)
            launches += packs
        x, qkv, z = exact.array((_ROWS, _D), "float32"), result(_CHANNELS), result(_VALUES)
        a, b = result(_HV), result(_HV)
        middle, inner, behind = result(_D, "float32"), result(_F), result(_D, "float32")
        delta = StreamGatedDelta(
            GdnRows(qkv, a, b),
            z,
            GdnWeights(
                exact.array((_CHANNELS, 4), "float16"),
                *(exact.array((n,), "float32") for n in (_HV, _HV, 128)),
            ),
            GdnState(
                exact.array((_CHANNELS, 3), "float16"), exact.array((_HV, 128, 128), "float32")
            ),
            GdnPending(
                exact.array((_ROWS, _CHANNELS), "float16"),
                exact.array((_ROWS, _UPDATES), "float32"),
            ),
            # As the memory is filled this is a huge number, that is, all pending rows.
            exact.array((1,), "int32"),
            result(_VALUES),
            result(_UPDATES, "float32"),
        )
        ops = [
            StreamReplay(delta),
            norm(x),
            StreamProduct(weights[0], qkv),
            StreamProduct(weights[1], z),
            StreamGates(exact.array((_HV, _D), "float16"), a),
            StreamGates(exact.array((_HV, _D), "float16"), b),
            delta,
            StreamProduct(weights[2], middle, delta.out, x),
            norm(middle),
            StreamProduct(weights[3], inner, scale=0.25),
            StreamProduct(weights[4], behind, inner, middle, 4.0),
            norm(behind),
            StreamProduct(weights[5], result(77, "float32")),
        ]
        table = exact.filled(weight_stream_table_bytes(len(ops)), b"\0")
        weight_stream(
            StreamProgram(ops, table=table),
            rows=rows,
            workspace=workspace,
        )
        launches += 1
    return launches


def run_gdn_keep(backend: Any) -> int:
    """Fewer pairs than a block has threads and more, few rows and all."""
    exact = Exact(backend)
    launches = 0
    for dtype in ("float16", "bfloat16"):
        for rows, layers, channels, width in ((1, 1, 2, 4), (5, 3, 514, 12), (8, 2, 512, 4)):
            gdn_keep(
                exact.array((rows, layers, channels), dtype),
                exact.array((rows, layers, width), "float32"),
                pending_qkv=exact.array((_ROWS, layers, channels), dtype),
                pending_updates=exact.array((_ROWS, layers, width), "float32"),
                windows=exact.array((layers, channels, 3), dtype),
                num_accepted=exact.array((1,), "int32"),
            )
            launches += 1
    return launches
