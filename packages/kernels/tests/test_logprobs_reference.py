"""The reference is what the runtime's sampler reports."""

import pytest
from bytebound_kernels.ops.logprobs import logprobs_reference

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("num_top", [0, 1, 5, 20])
def test_agrees_with_the_sampler(num_top) -> None:
    sampling = pytest.importorskip("bytebound.sampling")
    generator = torch.Generator().manual_seed(0)
    rows = (3 * torch.randn(4, 300, generator=generator)).bfloat16().float()  # full of ties
    ids = torch.tensor([0, 299, 17, int(rows[3].argmax())], dtype=torch.int32)
    values, out_ids = logprobs_reference(rows, ids, num_top)
    params = sampling.SamplingParams(logprobs=num_top)
    sampler = sampling.Sampler(params, [], 300, frozenset(), 0)
    for r, row in enumerate(rows):
        report = sampler.token_logprob(row, int(ids[r]))
        assert values[r, 0].item() == pytest.approx(report.logprob, abs=1e-12)
        top = report.top[:num_top]
        assert out_ids[r, 1:].tolist() == [token for token, _ in top]
        assert values[r, 1:].tolist() == pytest.approx([value for _, value in top], abs=1e-12)


def test_rows_without_a_finite_maximum_and_ids_outside() -> None:
    nan, inf = float("nan"), float("inf")
    rows = torch.tensor([[0.0, nan, 1.0], [0.0, inf, 1.0], [-inf] * 3, [0.0, -inf, 0.0]])
    ids = torch.tensor([0, 0, 0, 3], dtype=torch.int32)
    values, out_ids = logprobs_reference(rows, ids, 2)
    assert values[:3].isnan().all() and out_ids[:3].tolist() == [[0, -1, -1]] * 3
    assert values[3, 0].isnan() and out_ids[3].tolist() == [3, 0, 2]
    assert values[3, 1].item() == pytest.approx(-0.6931471805599453)
