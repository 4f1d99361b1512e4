"""The CUDA backend without a GPU: everything but the kernels and the graphs."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from bytebound import Engine, SamplingParams
from bytebound.checkpoint import load_checkpoint, read_headers
from bytebound.config import ModelConfig
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.loading import load_weights
from bytebound.cuda.mtp import CudaMtpDraft
from bytebound.drafts import Draft, NgramDraft, Proposal
from bytebound.names import resolve_model
from bytebound.reference.executor import ReferenceExecutor

from .emulated_kernels import emulate

CPU = torch.device("cpu")
MAX_LEN = 256


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> CudaExecutor:
    emulate(monkeypatch)
    return build(resolve_model("tiny"))


def build(folder: Path, kv_dtype: torch.dtype = torch.bfloat16, chunk: int = 32) -> CudaExecutor:
    config = ModelConfig.from_folder(folder)
    weights = load_weights(folder, config, read_headers(folder, config), device=CPU)
    return CudaExecutor(weights, config, max_len=MAX_LEN, kv_dtype=kv_dtype, prefill_chunk=chunk)


def reference(folder: Path) -> ReferenceExecutor:
    config = ModelConfig.from_folder(folder)
    loaded = load_checkpoint(folder, config, dtype=torch.float32, device=CPU)
    return ReferenceExecutor(loaded.weights, config, max_len=MAX_LEN)


def some_ids(count: int, seed: int = 1) -> list[int]:
    choose = random.Random(seed)
    return [choose.randrange(4000) for _ in range(count)]


def relative_error(expected: torch.Tensor, got: torch.Tensor) -> float:
    expected, got = expected.double(), got.double()
    return float((expected - got).square().mean().sqrt() / expected.square().mean().sqrt())


@torch.inference_mode()
def test_logits_are_the_references(executor: CudaExecutor) -> None:
    ids, target = some_ids(70), reference(resolve_model("tiny"))
    assert relative_error(target.score(ids), executor.score(ids)) < 2e-2
    target.prefill(ids[:41])
    assert relative_error(target.prefill(ids[41:45]), prefilled(executor, ids[:45])) < 2e-2
    for start, count, kept in ((45, 1, 1), (46, 5, 2), (48, 8, 8), (56, 3, 1)):
        rows = executor.verify(ids[start : start + count])
        assert relative_error(target.verify(ids[start : start + count]), rows) < 2e-2
        executor.commit(kept)
        target.commit(kept)
        assert executor.position == target.position == start + kept
    # A prompt that goes on after a decode pass: the accepted rows are taken in first.
    assert relative_error(target.prefill(ids[57:63]), executor.prefill(ids[57:63])) < 2e-2


def prefilled(executor: CudaExecutor, ids: Sequence[int]) -> torch.Tensor:
    executor.reset()
    return executor.prefill(ids)


@torch.inference_mode()
def test_a_row_has_the_same_bits_whatever_comes_with_it(executor: CudaExecutor) -> None:
    choose, ids = random.Random(3), some_ids(90)
    rounds, position = [], 20
    executor.prefill(ids[:20])
    while position < 60:
        count = choose.randint(1, 8)
        kept = choose.randint(1, count)
        rows = executor.verify(ids[position : position + kept] + [7] * (count - kept))
        rounds.append(rows[:kept])
        executor.commit(kept)
        position += kept
    prefilled(executor, ids[:20])
    for i, row in enumerate(torch.cat(rounds)):
        assert torch.equal(executor.verify([ids[20 + i]])[0], row), i
        executor.commit(1)


@torch.inference_mode()
def test_a_pass_that_is_not_committed_leaves_no_trace(executor: CudaExecutor) -> None:
    ids = some_ids(40)
    executor.prefill(ids[:10])
    executor.verify(ids[10:13])
    executor.commit(2)
    executor.verify([5, 6, 7])
    again = executor.verify(ids[12:14])
    prefilled(executor, ids[:10])
    executor.verify(ids[10:12])
    executor.commit(2)
    assert torch.equal(executor.verify(ids[12:14]), again)


class WrongDraft:
    """Guesses that hardly ever stand."""

    name = "wrong"

    def begin(self, first_id: int) -> None:
        self.choose = random.Random(first_id)

    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        pass

    def propose(self, count: int, sampler: object) -> Proposal:
        return Proposal(tuple(self.choose.randrange(4000) for _ in range(count)))


def test_greedy_with_drafts_is_plain_greedy(executor: CudaExecutor) -> None:
    config, ids = executor.config, some_ids(6)
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    plain = Engine(executor, config=config).generate(ids, params).token_ids
    mtp = CudaMtpDraft(executor.weights, config, executor.step.workspaces, max_len=MAX_LEN)
    drafts: list[Draft] = [mtp, NgramDraft(), WrongDraft()]
    for draft in drafts:
        result = Engine(executor, config=config, draft=draft, num_draft_tokens=4).generate(
            ids, params
        )
        assert result.token_ids == plain, draft.name
        assert result.stats.accepted > (5 if draft is mtp else -1)


def test_drafts_are_the_references(executor: CudaExecutor) -> None:
    config, prompt = executor.config, some_ids(45)
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    mtp = CudaMtpDraft(executor.weights, config, executor.step.workspaces, max_len=MAX_LEN)
    own = Engine(executor, config=config, draft=mtp).generate(prompt, params)
    target = Engine.from_pretrained("tiny", backend="reference", device="cpu", dtype="float32")
    expected = target.generate(prompt, params)
    if own.token_ids == expected.token_ids:
        assert abs(own.stats.accepted - expected.stats.accepted) <= 2


@torch.inference_mode()
def test_a_float8_cache_is_close(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)
    ids = some_ids(40)
    exact = build(resolve_model("tiny"))
    rounded = build(resolve_model("tiny"), kv_dtype=torch.float8_e4m3fn)
    exact.prefill(ids[:30])
    rounded.prefill(ids[:30])
    assert relative_error(exact.verify(ids[30:34]), rounded.verify(ids[30:34])) < 5e-2
