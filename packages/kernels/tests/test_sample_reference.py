"""The reference is the runtime's sampler: the same random words, distributions and draws."""

import pytest
from bytebound_kernels.ops.sample import (
    draw_reference,
    philox_uniform_reference,
    sample_reference,
    weights_reference,
)

torch = pytest.importorskip("torch")
philox = pytest.importorskip("bytebound.philox")
sampling = pytest.importorskip("bytebound.sampling")

SETTINGS = [
    (1.0, 0, 1.0, 0.0),
    (0.7, 20, 0.95, 0.0),
    (1.3, 0, 0.9, 0.0),
    (1.0, 50, 1.0, 0.05),
    (0.3, 3, 0.5, 0.1),
    (2.0, 0, 0.999, 0.02),
    (1e-3, 0, 0.5, 0.0),
    (0.0, 5, 0.5, 0.5),
    (1.0, 5000, 1e-9, 0.0),
]


def random_row(n, seed, *, ties):
    generator = torch.Generator().manual_seed(seed)
    row = 3 * torch.randn(n, generator=generator)
    return row.bfloat16().float() if ties else row


def sampler_of(settings, n, seed=11):
    temperature, top_k, top_p, min_p = settings
    params = sampling.SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return sampling.Sampler(params, [], n, frozenset(), seed)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_the_random_words_are_the_runtimes(seed) -> None:
    for position in (0, 1, 2**31 - 1, 2**40):
        for purpose in range(4):
            expected = philox.uniform(seed, position, purpose)
            assert philox_uniform_reference(seed, position, purpose) == expected


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s)))
def test_distributions_and_draws_are_the_samplers(settings, ties) -> None:
    n = 3000
    sampler = sampler_of(settings, n)
    for seed in range(3):
        row = random_row(n, seed, ties=ties)
        weights = weights_reference(row, *settings)
        probs = sampler.probs(row)
        assert torch.equal(weights > 0, probs > 0)
        torch.testing.assert_close(weights / weights.sum(), probs, rtol=1e-12, atol=0)
        for position in range(20):
            uniform = philox.uniform(11, position, 0)
            assert draw_reference(weights, uniform) == sampler.choose(row, position)


def test_rows_draw_with_the_numbers_of_their_positions() -> None:
    rows = torch.stack([random_row(500, seed, ties=True) for seed in range(5)])
    settings = torch.tensor([0.8, 40, 0.9, 0.01], dtype=torch.float64)
    sampler = sampler_of((0.8, 40, 0.9, 0.01), 500)
    ids, weights = sample_reference(rows, settings, 11, 100)
    assert weights.shape == (5, 500)
    assert ids == [sampler.choose(row, 100 + i) for i, row in enumerate(rows)]


def test_a_row_without_a_finite_maximum_has_no_id() -> None:
    nan, inf = float("nan"), float("inf")
    rows = torch.tensor([[0.0, nan], [0.0, inf], [-inf, -inf], [-inf, 0.0]])
    settings = torch.tensor([1.0, 0, 1.0, 0.0], dtype=torch.float64)
    ids, weights = sample_reference(rows, settings, 0, 0)
    assert ids == [-1, -1, -1, 1]
    assert weights[:3].isnan().all() and weights[3].tolist() == [0.0, 1.0]
