"""Prefix reuse on a GPU: the same bits after other prompts, and memory that levels off."""

import random

import pytest
import torch
from bytebound import SamplingParams
from bytebound.cuda.executor import CudaExecutor
from bytebound.prompt_reader import PromptReader

from .cuda_models import Loader

pytestmark = pytest.mark.gpu


def words(choose: random.Random, count: int) -> str:
    return " ".join(
        choose.choice(("the", "bicycle", "history", "of", "wheel", "frame", "three", "a"))
        for _ in range(count)
    )


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])  # auto: that of the activations
@pytest.mark.parametrize("draft", ["none", "mtp", "ngram"])
def test_answers_are_those_of_an_engine_that_keeps_nothing(
    load: Loader, draft: str, kv_dtype: str
) -> None:
    """E01, E38: over a conversation with an edit, greedy and sampled, with logprobs."""
    warm, cold = (load(draft=draft, kv_dtype=kv_dtype, snapshot_bytes=given) for given in (None, 0))
    requests = (
        SamplingParams(max_tokens=40, ignore_eos=True, logprobs=2),
        SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.9, seed=3),
    )
    choose, messages, cached = random.Random(1), list[dict[str, str]](), 0
    for turn in range(6):
        messages.append({"role": "user", "content": words(choose, 350)})
        prompt = warm.tokenizer.apply_chat_template(messages)
        for params in (*requests, requests[0]):
            one, other = warm.generate(prompt, params), cold.generate(prompt, params)
            assert one.token_ids == other.token_ids
            assert one.logprobs == other.logprobs
            assert one.stats.accepted == other.stats.accepted
            assert other.stats.cached_tokens == 0
            cached += one.stats.cached_tokens
        assert one.stats.cached_tokens == len(prompt)
        messages.append({"role": "assistant", "content": one.text})
        if turn == 3:
            messages[2] = {"role": "user", "content": words(choose, 300)}
    assert cached > 10_000


def test_states_are_the_same_bits(load: Loader) -> None:
    """Every piece of the state after a hit, at cuts that lie at no round number."""
    warm, cold = load(draft="mtp", max_len=8192), load(draft="mtp", max_len=8192)
    one, other = warm.executor, cold.executor
    assert isinstance(one, CudaExecutor) and isinstance(other, CudaExecutor)
    reader = PromptReader(one, warm.draft, turn_starts={7})
    plain = PromptReader(other, cold.draft, turn_starts={7}, snapshot_bytes=0)
    choose, prompt = random.Random(2), list[int]()
    for _ in range(8):
        prompt += [choose.randrange(10, 900) for _ in range(choose.randrange(250, 900))]
        prompt.append(7)
        assert torch.equal(reader.read(prompt), plain.read(prompt))
        for a, b in zip(one.state.kept(), other.state.kept(), strict=True):
            assert torch.equal(a, b)
        for token in (11, 12, 13):
            assert torch.equal(one.verify([token]), other.verify([token]))
            one.commit(1)
            other.commit(1)
    assert reader.cached_tokens > 2000


def test_memory_levels_off_over_a_long_conversation(load: Loader) -> None:
    """E03 on the device: 300 turns under a budget of 16 states; then the longest prompt."""
    engine = load(draft="mtp", max_len=8192)
    executor = engine.executor
    assert isinstance(executor, CudaExecutor)
    executor.prefill_chunk = chunk = 256  # so that states are kept often enough to fill the budget
    choose = random.Random(3)
    prompt = [choose.randrange(10, 900) for _ in range(300)]
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    reserved, allocated = list[int](), list[int]()
    for turn in range(300):
        prompt += [choose.randrange(10, 900) for _ in range(25)]
        stats = engine.generate(prompt, params).stats
        assert turn == 0 or stats.cached_tokens >= len(prompt) - chunk - 25
        reserved.append(torch.cuda.memory_reserved())
        allocated.append(torch.cuda.memory_allocated())
    assert engine.memory_plan is not None
    budget, state = engine.memory_plan.snapshots, executor.snapshot_bytes
    assert 16 * state <= budget and len(prompt) > 17 * chunk
    assert max(reserved) - reserved[0] <= budget + (32 << 20)
    # From the turn on in which the budget is used up it is the same states over again.
    assert max(allocated[200:]) - min(allocated[200:]) < 2 * state
    longest = (prompt + prompt)[: 8192 - 4]
    assert engine.generate(longest, params).stats.completion_tokens == 4
