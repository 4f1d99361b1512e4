"""The part of sanitize.py for the ends of a decode step: gather, argmax, acceptance, sampling."""

from array import array
from collections.abc import Sequence
from math import prod
from typing import Any

from bytebound_kernels import (
    argmax,
    argmax_workspace_bytes,
    embedding_gather,
    history_append,
    logit_adjust,
    logprobs,
    logprobs_workspace_bytes,
    sample,
    sample_workspace_bytes,
    speculative_accept,
    speculative_sample,
    speculative_sample_workspace_bytes,
)
from bytebound_kernels.bench.memory import DeviceArray, device_array

TYPECODES = {"float32": "f", "float64": "d", "int32": "i", "int64": "q", "uint8": "B"}
ROWS = 3


class Exact:
    """Arrays in allocations of just their size."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def of(self, values: Sequence[float], dtype: str) -> DeviceArray:
        content = array(TYPECODES[dtype], values).tobytes()
        return device_array(self.backend, self.backend.upload(content), (len(values),), dtype)

    def zeros(self, num_bytes: int) -> DeviceArray:
        return self.of(bytes(num_bytes), "uint8")

    def empty(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        itemsize = array(TYPECODES[dtype]).itemsize if dtype in TYPECODES else 2
        pointer = self.backend.allocate(prod(shape) * itemsize)
        return device_array(self.backend, pointer, shape, dtype)

    def logits(self, rows: int, n: int) -> DeviceArray:
        values = [((7919 * i) % 1009) / 100.0 - 5.0 for i in range(rows * n)]
        return self.of(values, "float32").at(0, (rows, n))


def run_gather(exact: Exact) -> int:
    for dtype in ("float16", "bfloat16"):
        for out_dtype in (dtype, "float32"):
            for d in (1, 1000, 1028):
                ids = exact.of([0, -1, 4, 5], "int32")
                out = exact.empty((4, d), out_dtype)
                embedding_gather(ids, exact.empty((5, d), dtype), out=out)
    return 12


def run_argmax(exact: Exact, n: int) -> int:
    for dtype in ("float16", "bfloat16", "float32"):
        for id_map in (None, exact.empty((n,), "int32")):
            argmax(
                exact.empty((ROWS, n), dtype),
                out=exact.empty((ROWS,), "int32"),
                workspace=exact.zeros(argmax_workspace_bytes(ROWS)),
                id_map=id_map,
            )
    return 6


def run_accept(exact: Exact) -> int:
    for rows in (1, 5, 32):
        speculative_accept(
            exact.of(range(rows), "int32"),
            exact.of(range(rows - 1), "int32") if rows > 1 else None,
            cycle=exact.of([0] * (8 + rows), "int32"),
            output=exact.of([0] * rows, "int32"),
        )
    return 3


def run_adjust(exact: Exact, n: int) -> int:
    history = {"seen": exact.zeros(n), "counts": exact.of([0] * n, "int32")}
    ids = exact.of([0, n - 1, -1, n, 0], "int32")
    history_append(ids, exact.of([5], "int32"), **history)
    logit_adjust(
        exact.logits(ROWS, n),
        exact.of([1.1, 0.5, 0.1, 10.0], "float64"),
        out=exact.empty((ROWS, n), "float32"),
        generated=exact.of([2], "int32"),
        drafts=exact.of([0] * (ROWS - 1), "int32"),
        bias_ids=exact.of([n - 1, -1, n], "int32"),
        bias_values=exact.of([1.0, 2.0, 3.0], "float32"),
        banned_ids=exact.of([0, n], "int32"),
        end_ids=exact.of([n - 1], "int32"),
        **history,
    )
    return 2


def run_logprobs(exact: Exact, n: int) -> int:
    num_top = min(n, 20)
    logprobs(
        exact.logits(ROWS, n),
        exact.of([0, n - 1, n], "int32"),
        out_values=exact.empty((ROWS, 1 + num_top), "float64"),
        out_ids=exact.empty((ROWS, 1 + num_top), "int32"),
        workspace=exact.zeros(logprobs_workspace_bytes(ROWS, n, num_top)),
    )
    return 1


def run_sample(exact: Exact, n: int) -> int:
    seed = exact.of([7], "int64")
    weights, totals = exact.empty((ROWS, n), "float64"), exact.empty((ROWS,), "float64")
    ids = exact.empty((ROWS,), "int32")
    workspace = exact.zeros(sample_workspace_bytes(ROWS, n))
    logits = exact.logits(ROWS, n)
    cases = ((0.0, 0, 1.0, 0.0), (1.0, 7, 0.9, 0.01), (1.0, 0, 1.0, 0.0), (1.0, 0, 0.5, 0.0))
    for settings in cases:
        sample(
            logits,
            exact.of(settings, "float64"),
            seed=seed,
            position=exact.of([3], "int32"),
            out=ids,
            workspace=workspace,
            weights=weights,
            totals=totals,
        )
    for drawn in (False, True):
        draft = {"draft_weights": weights.at(0, (ROWS - 1, n))} if drawn else {}
        draft |= {"draft_totals": totals.at(0, (ROWS - 1,))} if drawn else {}
        speculative_sample(
            weights,
            totals,
            ids.at(0, (ROWS - 1,)),
            seed=seed,
            cycle=exact.of([0] * (8 + ROWS), "int32"),
            output=exact.of([0] * ROWS, "int32"),
            workspace=exact.zeros(speculative_sample_workspace_bytes(n)),
            **draft,
        )
    return 9 * len(cases) + 2


def run_small_ops(backend: Any) -> int:
    """Run each op at widths around a slice of 2048 ids; return the number of launches."""
    exact = Exact(backend)
    launches = run_gather(exact) + run_accept(exact)
    for n in (1, 9, 2048, 2049, 10_000):
        for run in (run_argmax, run_adjust, run_logprobs, run_sample):
            launches += run(exact, n)
    return launches
