"""The reference is the runtime's greedy acceptance, with the counters that the device keeps."""

import random

import pytest
from bytebound_kernels.ops.speculative_accept import speculative_accept_reference


def test_by_hand() -> None:
    cycle = [10, 0, 0, 0, 4, 0, 0, 0, 9, 9, 9, 9]
    words, ring = speculative_accept_reference([5, 6, 7, 8], [5, 6, 9], cycle, [0, 0, 0, 0, 0])
    assert words == [13, 7, 2, 3, 7, 0, 0, 0, 5, 6, 7, -1]
    assert ring == [6, 7, 0, 0, 5]
    words, ring = speculative_accept_reference([5, -1, 7, 8], [5, -1, 7], cycle)
    assert words == [12, -1, 1, 2, 6, 0, 0, 0, 5, -1, -1, -1] and ring == []
    words, _ = speculative_accept_reference([3], [], [1, *[0] * 8])
    assert words == [2, 3, 0, 1, 1, 0, 0, 0, 3]


def test_agrees_with_the_runtime() -> None:
    torch = pytest.importorskip("torch")
    speculation = pytest.importorskip("bytebound.speculation")
    sampling = pytest.importorskip("bytebound.sampling")
    base = pytest.importorskip("bytebound.drafts.base")
    choose = random.Random(0)
    for _ in range(100):
        k = choose.randrange(5)
        ids = [choose.randrange(3) for _ in range(k + 1)]
        drafts = [choose.randrange(3) for _ in range(k)]
        rows = torch.nn.functional.one_hot(torch.tensor(ids), 3).float()
        sampler = sampling.Sampler(sampling.SamplingParams(), [], 3, frozenset(), 0)
        emitted = list(speculation.accept(base.Proposal(tuple(drafts)), rows, sampler, 7))
        words, _ = speculative_accept_reference(ids, drafts, [7, *[0] * (8 + k)])
        assert words[8 : 8 + len(emitted)] == emitted
        assert words[:4] == [7 + len(emitted), emitted[-1], len(emitted) - 1, len(emitted)]
