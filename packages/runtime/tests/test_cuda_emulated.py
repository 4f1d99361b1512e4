"""The CUDA backend without a GPU: everything but the kernels and the graphs."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from bytebound import Engine, SamplingParams
from bytebound.checkpoint import read_headers
from bytebound.config import ModelConfig
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.loading import load_weights
from bytebound.cuda.matrices import PackedMatrix
from bytebound.cuda.random_weights import random_weights
from bytebound.cuda.weights import iter_matrices
from bytebound.drafts import Draft, NgramDraft
from bytebound.names import resolve_model

from .checkpoints import random_checkpoint
from .cuda_models import (
    FOLDERS,
    SHAPE,
    TOLERANCE,
    WrongDraft,
    mtp_draft,
    reference,
    relative_error,
    some_ids,
)
from .emulated_kernels import emulate

CPU = torch.device("cpu")
MAX_LEN = 256


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> CudaExecutor:
    emulate(monkeypatch)
    return build(resolve_model("tiny"))


def build(folder: Path, kv_dtype: torch.dtype | None = None, chunk: int = 32) -> CudaExecutor:
    config = ModelConfig.from_folder(folder)
    weights = load_weights(folder, config, read_headers(folder, config), device=CPU)
    return CudaExecutor(weights, config, max_len=MAX_LEN, kv_dtype=kv_dtype, prefill_chunk=chunk)


@torch.inference_mode()
def test_logits_are_the_references(executor: CudaExecutor) -> None:
    ids, target = some_ids(70), reference(resolve_model("tiny"), MAX_LEN)
    assert relative_error(target.score(ids), executor.score(ids)) < TOLERANCE
    target.prefill(ids[:41])
    assert relative_error(target.prefill(ids[41:45]), prefilled(executor, ids[:45])) < TOLERANCE
    for start, count, kept in ((45, 1, 1), (46, 5, 2), (48, 8, 8), (56, 3, 1)):
        rows = executor.verify(ids[start : start + count])
        assert relative_error(target.verify(ids[start : start + count]), rows) < TOLERANCE
        executor.commit(kept)
        target.commit(kept)
        assert executor.position == target.position == start + kept
    # A prompt that goes on after a decode pass: the accepted rows are taken in first.
    assert relative_error(target.prefill(ids[57:63]), executor.prefill(ids[57:63])) < TOLERANCE


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


def test_warming_up_leaves_no_trace(executor: CudaExecutor) -> None:
    first = executor.prefill([5, 6, 7])
    executor.reset()
    executor.warm_up()
    assert executor.position == 0 and executor.last_hidden is None
    assert torch.equal(executor.prefill([5, 6, 7]), first)


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


@torch.inference_mode()
def test_going_back_to_a_snapshot(executor: CudaExecutor) -> None:
    """Also with rows that wait to be taken in: they belong to what was left."""
    ids = some_ids(60)
    executor.prefill(ids[:25])
    row = executor.prefill(ids[25:40])
    snapshot = executor.snapshot()
    expected = executor.verify(ids[40:43])
    assert snapshot.num_bytes == executor.snapshot_bytes
    executor.commit(2)
    for more in (ids[50:60], []):
        if more:
            executor.prefill(more)
        executor.verify([5, 6, 7])
        executor.commit(3)
        assert torch.equal(executor.restore(snapshot), row)
        assert executor.position == 40
        assert torch.equal(executor.verify(ids[40:43]), expected)
        executor.commit(1)


def test_greedy_with_drafts_is_plain_greedy(executor: CudaExecutor) -> None:
    config, ids = executor.config, some_ids(6)
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    plain = Engine(executor, config=config).generate(ids, params).token_ids
    mtp = mtp_draft(executor)
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
    mtp = mtp_draft(executor)
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


@pytest.mark.parametrize("kind", FOLDERS)
@torch.inference_mode()
def test_folders_in_4_bits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    emulate(monkeypatch)
    monkeypatch.setattr("bytebound.cuda.matrices.UNPACK_ROWS", 20)
    folder = FOLDERS[kind](tmp_path / "model")
    executor, target, ids = build(folder), reference(folder, MAX_LEN), some_ids(60)
    packed = [one for one in iter_matrices(executor.weights) if isinstance(one, PackedMatrix)]
    # Four of each of three layers and of the MTP head, its fc, and the output head.
    counts = {"gptq reordered": 0, "gptq": 17, "partly": 8}
    assert len(packed) == counts.get(kind, 18)
    target.prefill(ids[:50])
    executor.few_rows = 8
    executor.prefill(ids[:50])  # a chunk that unpacks the matrices, and one that does not
    assert relative_error(target.verify(ids[50:54]), executor.verify(ids[50:54])) < TOLERANCE
    assert relative_error(target.score(ids), executor.score(ids)) < TOLERANCE


@torch.inference_mode()
def test_random_weights_of_a_shape(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    emulate(monkeypatch)
    config = ModelConfig.from_folder(random_checkpoint(tmp_path, **SHAPE).folder)
    weights = [random_weights(config, dtype=torch.float16, device=CPU, seed=s) for s in (1, 1, 2)]
    rows = []
    for one in weights:
        executor = CudaExecutor(one, config, max_len=64)
        executor.prefill([1, 2, 3, 4, 5])
        rows.append(executor.verify([6, 7]))
        assert rows[-1].isfinite().all() and 0.1 < rows[-1].std() < 10
    assert torch.equal(rows[0], rows[1]) and not torch.equal(rows[0], rows[2])
    executor = CudaExecutor(weights[0], config, max_len=64)
    executor.prefill([1, 2, 3, 4, 5])
    executor.verify([6, 7])
    mtp = mtp_draft(executor)
    mtp.observe([2, 3], executor.last_hidden)
    assert mtp.last_out is not None and mtp.last_out.isfinite().all()
