"""The small ops of a decode step at the shapes of a 27B model, most of them at its ends.

Logits are as the step has them: written just before, so in the L2 where that is large enough. The
launches of a sample take turns on a few buffers.
"""

import math
import random
from array import array
from collections.abc import Callable, Sequence
from math import prod

from bytebound_kernels._device import DeviceInfo
from bytebound_kernels.bench.memory import Backend, DeviceArray, device_array
from bytebound_kernels.bench.report import Metric
from bytebound_kernels.ops.argmax import argmax, argmax_workspace_bytes
from bytebound_kernels.ops.embedding_gather import embedding_gather
from bytebound_kernels.ops.gdn_keep import gdn_keep
from bytebound_kernels.ops.history_append import history_append
from bytebound_kernels.ops.logit_adjust import logit_adjust
from bytebound_kernels.ops.logprobs import logprobs, logprobs_workspace_bytes
from bytebound_kernels.ops.sample import sample, sample_workspace_bytes
from bytebound_kernels.ops.speculative_accept import CYCLE_HEADER, speculative_accept
from bytebound_kernels.ops.speculative_sample import (
    speculative_sample,
    speculative_sample_workspace_bytes,
)

__all__ = ["measure_small_ops"]

_VOCAB = 248320
_D = 5120
_ROWS = 5  # of a speculative cycle
_LAYERS, _CHANNELS, _UPDATES = 48, 10240, 8240  # of the Gated DeltaNet layers
_PENDING = 8  # rows that there is room for
_BUFFERS = 4
_LAUNCHES = 32
_NUM_TOP = 5
_L2_MULTIPLE = 4  # the gathered rows are this many times the L2


class _Memory:
    """Device arrays with content, from a fixed seed."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._random = random.Random(0)

    def of(self, values: Sequence[float], typecode: str, dtype: str) -> DeviceArray:
        content = array(typecode, values)
        return device_array(
            self._backend, self._backend.upload(content.tobytes()), (len(values),), dtype
        )

    def zeros(self, num_bytes: int) -> DeviceArray:
        pointer = self._backend.upload(bytes(num_bytes))
        return device_array(self._backend, pointer, (num_bytes,), "uint8")

    def empty(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        itemsize = {"bfloat16": 2, "float64": 8}.get(dtype, 4)
        pointer = self._backend.allocate(prod(shape) * itemsize)
        return device_array(self._backend, pointer, shape, dtype)

    def ints(self, values: Sequence[int]) -> DeviceArray:
        return self.of(values, "i", "int32")

    def ids(self, count: int) -> DeviceArray:
        return self.ints([self._random.randrange(_VOCAB) for _ in range(count)])

    def logits(self, rows: int) -> DeviceArray:
        """Return normal numbers with the spread of a model's logits."""
        row = array("f", (self._random.gauss(0.0, 2.5) for _ in range(_VOCAB)))
        pointer = self._backend.upload(row.tobytes() * rows)
        return device_array(self._backend, pointer, (rows, _VOCAB), "float32")

    def weights(self, rows: int, num_zeros: int = 0) -> tuple[DeviceArray, DeviceArray]:
        """Return the weights of such logits, 0 for the first ids, and the sum of each row."""
        row = array("d", (math.exp(self._random.gauss(0.0, 2.5)) for _ in range(_VOCAB)))
        row[:num_zeros] = array("d", bytes(8 * num_zeros))
        pointer = self._backend.upload(row.tobytes() * rows)
        weights = device_array(self._backend, pointer, (rows, _VOCAB), "float64")
        return weights, self.of([sum(row)] * rows, "d", "float64")


def _timed(
    backend: Backend,
    samples: int,
    name: str,
    num_bytes: int,
    enqueue: Callable[[int, int], None],
    *,
    n: int | None = None,
    launches: int = _LAUNCHES,
    l2: str = "warm",
) -> Metric:
    """Time ``launches`` calls of ``enqueue(i, stream)`` in one graph."""

    def enqueue_all(stream: int) -> None:
        for i in range(launches):
            enqueue(i, stream)

    seconds = backend.time_graph(enqueue_all, samples)
    return Metric(
        name=f"{name}.us",
        unit="us",
        better="lower",
        samples=[s / launches * 1e6 for s in seconds],
        tol_pct=5.0,
        case={
            "bytes": num_bytes,
            "n": _VOCAB if n is None else n,
            "launches_per_sample": launches,
            "l2": l2,
        },
    )


def _measure_gather(backend: Backend, device: DeviceInfo, samples: int, memory: _Memory) -> Metric:
    row_bytes = 2 * _D
    table_rows = min(_VOCAB, backend.free_bytes() // 4 // row_bytes)
    table = memory.empty((table_rows, _D), "bfloat16")
    launches = -(-_L2_MULTIPLE * device.l2_bytes // (_ROWS * row_bytes))
    step = table_rows // (launches * _ROWS)
    ids = memory.ints([i * step for i in range(launches * _ROWS)])
    out = memory.empty((_ROWS, _D), "bfloat16")

    def enqueue(i: int, stream: int) -> None:
        embedding_gather(ids.at(4 * _ROWS * i, (_ROWS,)), table, out=out, stream=stream)

    num_bytes = 2 * _ROWS * row_bytes
    return _timed(
        backend, samples, "embedding_gather", num_bytes, enqueue, launches=launches, l2="cold"
    )


def _measure_argmax(backend: Backend, samples: int, memory: _Memory, rows: int) -> Metric:
    logits = [memory.logits(rows) for _ in range(_BUFFERS)]
    out = memory.empty((rows,), "int32")
    workspace = memory.zeros(argmax_workspace_bytes(rows))

    def enqueue(i: int, stream: int) -> None:
        argmax(logits[i % _BUFFERS], out=out, workspace=workspace, stream=stream)

    return _timed(backend, samples, f"argmax.rows{rows}", 4 * rows * _VOCAB, enqueue)


def _measure_sample(
    backend: Backend,
    samples: int,
    memory: _Memory,
    name: str,
    settings: Sequence[float],
    with_top_k: bool,
) -> Metric:
    logits = [memory.logits(1) for _ in range(_BUFFERS)]
    device_settings = memory.of(settings, "d", "float64")
    seed, position = memory.of([7], "q", "int64"), memory.ints([100])
    out = memory.empty((1,), "int32")
    workspace = memory.zeros(sample_workspace_bytes(1, _VOCAB))

    def enqueue(i: int, stream: int) -> None:
        sample(
            logits[i % _BUFFERS],
            device_settings,
            seed=seed,
            position=position,
            out=out,
            workspace=workspace,
            with_top_k=with_top_k,
            stream=stream,
        )

    return _timed(backend, samples, f"sample.{name}", 4 * _VOCAB, enqueue)


def _measure_adjust(backend: Backend, samples: int, memory: _Memory) -> Metric:
    logits = [memory.logits(_ROWS) for _ in range(_BUFFERS)]
    settings = memory.of([1.1, 0.5, 0.1, 0.0], "d", "float64")
    seen, counts = memory.zeros(_VOCAB), memory.zeros(4 * _VOCAB)
    counts = device_array(backend, counts.pointer, (_VOCAB,), "int32")
    drafts = memory.ids(_ROWS - 1)
    out = memory.empty((_ROWS, _VOCAB), "float32")

    def enqueue(i: int, stream: int) -> None:
        logit_adjust(
            logits[i % _BUFFERS],
            settings,
            out=out,
            seen=seen,
            counts=counts,
            drafts=drafts,
            stream=stream,
        )

    num_bytes = (8 * _ROWS + 5) * _VOCAB
    return _timed(backend, samples, f"logit_adjust.rows{_ROWS}", num_bytes, enqueue)


def _measure_logprobs(backend: Backend, samples: int, memory: _Memory) -> Metric:
    logits = [memory.logits(1) for _ in range(_BUFFERS)]
    ids = memory.ids(1)
    values = memory.empty((1, 1 + _NUM_TOP), "float64")
    out_ids = memory.empty((1, 1 + _NUM_TOP), "int32")
    workspace = memory.zeros(logprobs_workspace_bytes(1, _VOCAB, _NUM_TOP))

    def enqueue(i: int, stream: int) -> None:
        logprobs(
            logits[i % _BUFFERS],
            ids,
            out_values=values,
            out_ids=out_ids,
            workspace=workspace,
            stream=stream,
        )

    return _timed(backend, samples, f"logprobs.top{_NUM_TOP}", 4 * _VOCAB, enqueue)


def _measure_accept(backend: Backend, samples: int, memory: _Memory) -> Metric:
    ids = memory.ids(_ROWS)
    cycle = memory.ints([0] * (CYCLE_HEADER + _ROWS))
    output = memory.ints([0] * 1024)

    def enqueue(_: int, stream: int) -> None:
        speculative_accept(ids, drafts, cycle=cycle, output=output, stream=stream)

    drafts = ids.at(0, (_ROWS - 1,))
    num_bytes = 4 * (2 * _ROWS + CYCLE_HEADER + _ROWS)
    return _timed(backend, samples, f"speculative_accept.rows{_ROWS}", num_bytes, enqueue)


def _measure_history(backend: Backend, samples: int, memory: _Memory) -> Metric:
    ids, num_ids = memory.ids(_ROWS), memory.ints([_ROWS])
    seen, counts = memory.zeros(_VOCAB), memory.ints([0] * _VOCAB)

    def enqueue(_: int, stream: int) -> None:
        history_append(ids, num_ids, seen=seen, counts=counts, stream=stream)

    # An id is read, its mark written, its count read and written.
    num_bytes = 4 + _ROWS * (4 + 1 + 8)
    return _timed(backend, samples, f"history_append.ids{_ROWS}", num_bytes, enqueue)


def _measure_sampled_acceptance(
    backend: Backend, samples: int, memory: _Memory, *, stand: bool
) -> Metric:
    """Time cycles in which all drafts stand, or the first one does not.

    The row that the next token is drawn from is read, and with a refusal the draft's row too. A
    draft that was drawn from the target itself stands; one that the target never says does not.
    """
    drafts = memory.ints(range(_ROWS - 1))
    buffers = []
    for _ in range(_BUFFERS):
        weights, totals = memory.weights(_ROWS, 0 if stand else _ROWS - 1)
        drawn = weights.at(0, (_ROWS - 1, _VOCAB)), totals.at(0, (_ROWS - 1,))
        buffers.append((weights, totals, *(drawn if stand else memory.weights(_ROWS - 1))))
    seed = memory.of([7], "q", "int64")
    cycle, output = memory.ints([0] * (CYCLE_HEADER + _ROWS)), memory.ints([0] * 1024)
    workspace = memory.zeros(speculative_sample_workspace_bytes(_VOCAB))

    def enqueue(i: int, stream: int) -> None:
        weights, totals, draft_weights, draft_totals = buffers[i % _BUFFERS]
        speculative_sample(
            weights,
            totals,
            drafts,
            seed=seed,
            cycle=cycle,
            workspace=workspace,
            draft_weights=draft_weights,
            draft_totals=draft_totals,
            output=output,
            stream=stream,
        )

    name = f"speculative_sample.rows{_ROWS}.{'all_stand' if stand else 'none_stands'}"
    return _timed(backend, samples, name, 8 * _VOCAB * (1 if stand else 2), enqueue)


def _measure_keep(backend: Backend, samples: int, memory: _Memory) -> Metric:
    def rows(count: int, width: int) -> DeviceArray:
        return memory.empty((count, _LAYERS, width), "bfloat16")

    def updates(count: int) -> DeviceArray:
        return memory.empty((count, _LAYERS, _UPDATES), "float32")

    projected, pending = rows(_ROWS, _CHANNELS), rows(_PENDING, _CHANNELS)
    new_updates, pending_updates = updates(_ROWS), updates(_PENDING)
    windows = memory.empty((_LAYERS, _CHANNELS, 3), "bfloat16")
    num_accepted = memory.ints([3])

    def enqueue(_: int, stream: int) -> None:
        gdn_keep(
            projected,
            new_updates,
            pending_qkv=pending,
            pending_updates=pending_updates,
            windows=windows,
            num_accepted=num_accepted,
            stream=stream,
        )

    # Rows read and written, three accepted ones read, windows written.
    row_bytes = 2 * (2 * _CHANNELS + 4 * _UPDATES)
    num_bytes = _LAYERS * (_ROWS * row_bytes + 2 * (3 + 3) * _CHANNELS)
    return _timed(backend, samples, f"gdn_keep.rows{_ROWS}", num_bytes, enqueue, n=_CHANNELS)


def measure_small_ops(backend: Backend, device: DeviceInfo, samples: int) -> list[Metric]:
    """Time one call of each op, from a graph of many calls one after the other."""
    memory = _Memory(backend)
    return [
        _measure_gather(backend, device, samples, memory),
        _measure_argmax(backend, samples, memory, 1),
        _measure_argmax(backend, samples, memory, _ROWS),
        _measure_sample(backend, samples, memory, "top_p", (1.0, 0, 0.95, 0.0), False),
        _measure_sample(backend, samples, memory, "top_k_top_p", (0.7, 20, 0.95, 0.0), True),
        _measure_adjust(backend, samples, memory),
        _measure_logprobs(backend, samples, memory),
        _measure_history(backend, samples, memory),
        _measure_accept(backend, samples, memory),
        _measure_sampled_acceptance(backend, samples, memory, stand=True),
        _measure_sampled_acceptance(backend, samples, memory, stand=False),
        _measure_keep(backend, samples, memory),
    ]
