"""Parked conversations on a GPU: through page-locked memory and back, the same bits."""

import random
from typing import Any

import pytest
import torch
from bytebound import Engine, SamplingParams
from bytebound.cuda.executor import CudaExecutor
from bytebound.parked import ParkedConversations
from bytebound.prompt_reader import PromptReader

from .test_prefix_reuse_gpu import words

pytestmark = pytest.mark.gpu

BUDGET = 1 << 30


def load(**settings: Any) -> Engine:
    return Engine.from_pretrained("tiny", backend="cuda", **settings)


def parked(reader: PromptReader) -> ParkedConversations:
    assert reader.parked is not None
    return reader.parked


def some_ids(seed: int, count: int, vocab: int = 900) -> list[int]:
    choose = random.Random(seed)
    return [choose.randrange(10, vocab) for _ in range(count)]


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "fp8"])
@pytest.mark.parametrize("draft", ["none", "mtp", "ngram"])
def test_conversations_take_turns(draft: str, kv_dtype: str) -> None:
    """E01, E38: a main thread, a sub-agent and titles in between, greedy and sampled."""
    warm = load(draft=draft, kv_dtype=kv_dtype, max_len=8192, conversation_bytes=BUDGET)
    cold = load(draft=draft, kv_dtype=kv_dtype, max_len=8192, snapshot_bytes=0)
    requests = (
        SamplingParams(max_tokens=40, ignore_eos=True, logprobs=2),
        SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.9, seed=3),
    )
    choose = random.Random(1)
    system = {"role": "system", "content": words(choose, 300)}
    talks = [[system], [system], [{"role": "system", "content": words(choose, 250)}]]
    for turn in range(3):
        for talk in talks:
            talk.append({"role": "user", "content": words(choose, 350)})
            prompt = warm.tokenizer.apply_chat_template(talk)
            for params in requests:
                one, other = warm.generate(prompt, params), cold.generate(prompt, params)
                assert one.token_ids == other.token_ids
                assert one.logprobs == other.logprobs
                assert one.stats.accepted == other.stats.accepted
                assert other.stats.cached_tokens == 0
            assert one.stats.cached_tokens == len(prompt)
            talk.append({"role": "assistant", "content": one.text})
            title = warm.tokenizer.apply_chat_template([{"role": "user", "content": "A title?"}])
            assert warm.generate(title, requests[0]).logprobs == (
                cold.generate(title, requests[0]).logprobs
            )
        assert turn == 0 or warm.reader.beginnings.parked >= 3 * turn
    store = parked(warm.reader)
    assert 0 < store.num_bytes <= store.reserved_bytes <= BUDGET
    assert store._store.pinned
    assert all(page.is_pinned() for page in store._store._free)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "fp8"])
def test_caches_and_states_are_the_same_bits(kv_dtype: str) -> None:
    """All of the prompt's positions in every cache, after a copy out and a copy in."""
    engine = load(draft="mtp", kv_dtype=kv_dtype, max_len=8192, conversation_bytes=BUDGET)
    executor, draft, reader = engine.executor, engine.draft, engine.reader
    assert isinstance(executor, CudaExecutor)
    one, other = some_ids(1, 5000), some_ids(2, 6000)

    def held() -> list[torch.Tensor]:
        caches = [cache[:, : len(one)].clone() for cache in executor.caches]
        rows = [cache[:, : len(one) - 1].clone() for cache in draft.caches]  # type: ignore[union-attr]
        return [*caches, *rows, *(state.clone() for state in executor.state.kept())]

    with torch.inference_mode():
        row = reader.read(one).clone()
        before = held()
        reader.read(other)
        assert torch.equal(reader.read(one), row)
        assert reader.cached_tokens == len(one)
        for was, found in zip(before, held(), strict=True):
            assert torch.equal(was.view(torch.uint8), found.view(torch.uint8))


def test_memory_of_the_device_stays_what_it_was() -> None:
    """E03: what is parked lies on the host, in no more than the budget, turn after turn."""
    engine = load(draft="mtp", max_len=8192, conversation_bytes=64 << 20)
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    held = list[int]()
    for turn in range(60):
        engine.generate(some_ids(turn % 7, 1500 + 100 * (turn % 5)), params)
        held.append(torch.cuda.memory_reserved())
        store = parked(engine.reader)
        assert store.num_bytes <= store.budget
        assert store._store.reserved_bytes <= store.budget
    assert store.evictions > 0
    assert max(held[20:]) == held[20]


def test_a_device_without_room_to_bring_one_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read again: no request is lost for what only saves time."""
    engine, cold = (load(draft="mtp", max_len=8192, **more) for more in (
        {"conversation_bytes": BUDGET}, {"snapshot_bytes": 0},
    ))  # fmt: skip
    params = SamplingParams(max_tokens=20, ignore_eos=True, logprobs=1)
    one, other = some_ids(1, 3000), some_ids(2, 3000)
    engine.generate(one, params)
    engine.generate(other, params)

    def full(*given: Any, **named: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory, for the test")

    with monkeypatch.context() as patched:
        patched.setattr(parked(engine.reader)._store, "read", full)
        got = engine.generate(one, params)
    assert got.logprobs == cold.generate(one, params).logprobs
    assert got.stats.cached_tokens == 0
    again = engine.generate(other, params)
    assert again.logprobs == cold.generate(other, params).logprobs
    assert again.stats.cached_tokens == 3000
