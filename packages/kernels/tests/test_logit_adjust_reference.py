"""The reference is what the runtime's sampler does to logits, bit for bit."""

import pytest
from bytebound_kernels.ops.history_append import history_append_reference
from bytebound_kernels.ops.logit_adjust import logit_adjust_reference

torch = pytest.importorskip("torch")
sampling = pytest.importorskip("bytebound.sampling")

N = 500
END_IDS = [7, 8]
CASES = [
    {},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.7},
    {"frequency_penalty": -0.3},
    {"repetition_penalty": 0.01, "presence_penalty": -1.1, "frequency_penalty": 0.1},
    {"repetition_penalty": 1e-38, "min_tokens": 3, "logit_bias": {3: 5.5, 9: -100, 11: 0.1}},
    {"repetition_penalty": 1e38, "min_tokens": 100, "logit_bias": {7: 2.0, 400: -3.3}},
]


def ints(values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case) or "none")
def test_agrees_with_the_sampler(case) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = 5 * torch.randn(5, N, generator=generator)
    params = sampling.SamplingParams(max_tokens=200, **case)
    prompt = [1, 2, 3, 400]
    sampler = sampling.Sampler(params, prompt, N, frozenset(END_IDS), 0)
    completion, drafts = [5, 6, 5, 5, 3], [5, 10, 10, 2]
    for token in completion:
        sampler.append(token)

    seen, counts = torch.zeros(N, dtype=torch.uint8), torch.zeros(N, dtype=torch.int32)
    history_append_reference(ints(prompt), seen=seen)
    history_append_reference(ints([*completion, 9, -1]), len(completion), seen=seen, counts=counts)
    bias = case.get("logit_bias", {})
    settings = torch.tensor(
        [
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
            params.min_tokens,
        ],
        dtype=torch.float64,
    )
    result = logit_adjust_reference(
        rows,
        settings,
        seen=seen,
        counts=counts,
        generated=len(completion),
        drafts=ints(drafts),
        bias_ids=ints([-1, *(i for i, value in bias.items() if value > -100)]),
        bias_values=torch.tensor([9.0, *(value for value in bias.values() if value > -100)]),
        banned_ids=ints([i for i, value in bias.items() if value == -100] + [N]),
        end_ids=ints(END_IDS),
    )
    for r, row in enumerate(rows):
        assert torch.equal(result[r], sampler.logits(row)), f"row {r}"
        if r < len(drafts):
            sampler.append(drafts[r])


def test_what_is_not_finite_becomes_nan_and_is_not_masked() -> None:
    nan, inf = float("nan"), float("inf")
    rows = torch.tensor([[0.0, nan, inf, -inf, 1.0]])
    none = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    result = logit_adjust_reference(rows, none, banned_ids=ints([1, 4]))
    assert result[0].isnan().tolist() == [False, True, True, True, False]
    assert result[0, 4] == -inf
    draft = logit_adjust_reference(rows, none, allow_minus_infinity=True)
    assert draft[0, 3] == -inf and draft[0].isnan().sum() == 2


def test_history_counts_what_was_accepted() -> None:
    seen, counts = torch.zeros(6, dtype=torch.uint8), torch.zeros(6, dtype=torch.int32)
    history_append_reference(ints([2, 2, 5, -1, 6, 1]), 5, seen=seen, counts=counts)
    assert seen.tolist() == [0, 0, 1, 0, 0, 1]
    assert counts.tolist() == [0, 0, 2, 0, 0, 1]
