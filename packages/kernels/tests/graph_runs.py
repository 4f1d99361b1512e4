"""Ten thousand runs of an op out of a graph, compared bit for bit on the device."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

RUNS = 10_000
RUNS_OF_A_GRAPH = 100
_POISON = 0xA5  # in every byte: the bits of no result here


class Case(NamedTuple):
    """A call and what it leaves behind; all of it contiguous."""

    call: Callable[[], Any]
    results: Mapping[str, torch.Tensor]  # written, not read: poisoned before each run
    state: Mapping[str, torch.Tensor] = {}  # read and written: put back before each run
    kept: Mapping[str, torch.Tensor] = {}  # workspaces that a call leaves as it found them


def assert_runs_repeat(case: Case) -> None:
    """Run a call eagerly once and ten thousand times from a graph, whose bits are the same."""
    start = {name: tensor.clone() for name, tensor in case.state.items()}
    written = {**case.results, **case.state, **case.kept}
    kept = {name: tensor.clone() for name, tensor in case.kept.items()}

    def run() -> None:
        for tensor in case.results.values():
            tensor.view(torch.uint8).fill_(_POISON)
        for name, tensor in case.state.items():
            tensor.copy_(start[name])
        case.call()

    run()  # loads what is loaded lazily, which must not happen under capture
    expected = {name: tensor.view(torch.uint8).clone() for name, tensor in written.items()}
    for name, tensor in kept.items():
        assert torch.equal(expected[name], tensor.view(torch.uint8)), f"{name} has changed"
    changed = [name for name in case.results if not (expected[name] != _POISON).any()]
    assert not changed, f"{changed} were not written"

    differing = torch.zeros(len(written), dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(RUNS_OF_A_GRAPH):
            run()
            for i, (name, tensor) in enumerate(written.items()):
                differing[i] += (tensor.view(torch.uint8) != expected[name]).sum()
    assert not differing.any(), "the capture itself ran something"
    for _ in range(RUNS // RUNS_OF_A_GRAPH):
        graph.replay()
    counts = dict(zip(written, differing.tolist(), strict=True))
    assert not any(counts.values()), f"bytes that differ within {RUNS} runs: {counts}"
