"""The reference is the formula, checked by hand and against the runtime's sampler."""

import pytest
from bytebound_kernels.ops.argmax import argmax_reference

torch = pytest.importorskip("torch")


def test_ties_go_to_the_lowest_index_and_nan_to_minus_one() -> None:
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor(
        [
            [1.0, 3.0, 3.0, 2.0],
            [-0.0, 0.0, -1.0, 0.0],
            [-inf, -inf, -inf, -inf],
            [inf, 0.0, inf, nan],
            [0.0, -inf, inf, inf],
        ]
    )
    assert argmax_reference(logits).tolist() == [1, 0, 0, -1, 2]
    id_map = torch.tensor([10, 20, 30, 40], dtype=torch.int32)
    assert argmax_reference(logits, id_map=id_map).tolist() == [20, 10, 10, -1, 30]


def test_agrees_with_the_sampler() -> None:
    sampling = pytest.importorskip("bytebound.sampling")
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 1000, generator=generator).mul(3).bfloat16().float()  # full of ties
    sampler = sampling.Sampler(sampling.SamplingParams(), [], 1000, frozenset(), 0)
    result = argmax_reference(logits)
    assert result.dtype == torch.int32
    assert result.tolist() == [sampler.argmax(row) for row in logits]
