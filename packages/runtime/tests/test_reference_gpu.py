"""The reference backend on a GPU: it agrees with the CPU, and speculation is exact there too."""

import functools
import random

import pytest
import torch
from bytebound import Engine, SamplingParams
from bytebound.reference.executor import ReferenceExecutor

pytestmark = pytest.mark.gpu

DTYPES = ["float32", "bfloat16"]
PROMPT = "The Python standard library provides"


def load(dtype: str, draft: str = "none", count: int = 4, device: str = "cuda") -> Engine:
    return Engine.from_pretrained(
        "tiny",
        backend="reference",
        device=device,
        dtype=dtype,
        draft=draft,
        num_draft_tokens=count,
    )


def test_logits_equal_the_cpus() -> None:
    on_gpu, on_cpu = load("float32"), load("float32", device="cpu")
    ids = on_cpu.tokenizer.encode(PROMPT * 20)
    expected = on_cpu.score(ids)
    spread = expected.std()
    torch.testing.assert_close(on_gpu.score(ids) / spread, expected / spread, atol=1e-3, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_whatever_comes_with_it(dtype: str) -> None:
    alone, together = load(dtype).executor, load(dtype).executor
    assert isinstance(alone, ReferenceExecutor) and isinstance(together, ReferenceExecutor)
    choose = random.Random(3)
    ids = [choose.randrange(4000) for _ in range(300)]
    alone.prefill(ids[:50])
    together.prefill(ids[:50])
    position = 50
    while position < 290:
        count = choose.randint(1, 9)
        kept = choose.randint(1, count)
        rows = together.verify(ids[position : position + kept] + [7] * (count - kept))
        for i in range(kept):
            assert torch.equal(rows[i], alone.verify([ids[position + i]])[0]), position + i
            alone.commit(1)
        together.commit(kept)
        position += kept


@functools.cache
def plain_greedy(dtype: str, params: SamplingParams) -> tuple[list[int], list[int]]:
    """The prompt, and what follows it without drafts."""
    plain = load(dtype)
    ids = plain.tokenizer.encode(PROMPT)
    return ids, plain.generate(ids, params).token_ids


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 3, 4, 8])
def test_greedy_with_drafts_is_plain_greedy(dtype: str, count: int) -> None:
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    ids, expected = plain_greedy(dtype, params)
    for draft in ("mtp", "ngram"):
        result = load(dtype, draft, count).generate(ids, params)
        assert result.token_ids == expected
        assert result.stats.accepted > 0


def test_the_same_request_gives_the_same_text() -> None:
    engine = load("bfloat16", "mtp")
    ids = engine.tokenizer.encode(PROMPT)
    params = SamplingParams(max_tokens=100, temperature=0.9, top_p=0.9, seed=11)
    first = engine.generate(ids, params).token_ids
    engine.generate(ids[:2], SamplingParams(max_tokens=30))
    assert engine.generate(ids, params).token_ids == first
