"""The reference is the runtime's sampled acceptance, with the counters that the device keeps."""

import random

import pytest
from bytebound_kernels.ops.sample import weights_reference
from bytebound_kernels.ops.speculative_sample import speculative_sample_reference

torch = pytest.importorskip("torch")
speculation = pytest.importorskip("bytebound.speculation")
sampling = pytest.importorskip("bytebound.sampling")
base = pytest.importorskip("bytebound.drafts.base")

N = 40


@pytest.mark.parametrize("certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize("settings", [(1.0, 0, 1.0, 0.0), (0.7, 20, 0.9, 0.02), (0.0, 0, 1.0, 0.0)])
def test_agrees_with_the_runtime(settings, certain) -> None:
    temperature, top_k, top_p, min_p = settings
    params = sampling.SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    choose = random.Random(0)
    generator = torch.Generator().manual_seed(0)
    lengths = set()
    for seed in range(150):
        k = choose.randrange(1, 5)
        rows = 2 * torch.randn(k + 1, N, generator=generator)
        draft_rows = rows[:k] + 0.5 * torch.randn(k, N, generator=generator)
        sampler = sampling.Sampler(params, [], N, frozenset(), seed)
        draft_weights = torch.stack([weights_reference(row, *settings) for row in draft_rows])
        drafts = [int(row.argmax()) for row in draft_weights]
        proposal = base.Proposal(
            tuple(drafts),
            None if certain else draft_weights / draft_weights.sum(-1, keepdim=True),
        )
        emitted = list(speculation.accept(proposal, rows, sampler, 7))
        weights = torch.stack([weights_reference(row, *settings) for row in rows])
        words, ring = speculative_sample_reference(
            weights,
            drafts,
            seed,
            [7, *[0] * (8 + k)],
            [0] * 8,
            draft_weights=None if certain else draft_weights,
        )
        assert words[8 : 8 + len(emitted)] == emitted == ring[: len(emitted)]
        assert words[:5] == [7 + len(emitted), emitted[-1], len(emitted) - 1] + [len(emitted)] * 2
        lengths.add((k, len(emitted)))
    assert len(lengths) > 8


def test_a_row_without_probabilities_emits_minus_one() -> None:
    weights = torch.full((2, N), float("nan"), dtype=torch.float64)
    words, _ = speculative_sample_reference(weights, [3], 0, [7, *[0] * 9])
    assert words[:4] == [8, -1, 0, 1]
