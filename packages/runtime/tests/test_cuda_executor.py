"""The CUDA executor on a GPU: it agrees with the reference, and with itself bit for bit."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from bytebound.checkpoint import read_headers
from bytebound.config import ModelConfig
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.loading import load_weights
from bytebound.cuda.state import KvCache
from bytebound.cuda.weights import ModelWeights
from bytebound.names import resolve_model
from bytebound.reference.executor import ReferenceExecutor
from bytebound.sampling import Sampler, SamplingParams

from .cuda_models import FOLDERS, TOLERANCE, mtp_draft, reference, relative_error, some_ids

pytestmark = pytest.mark.gpu

MAX_LEN = 1500
IDS = some_ids(1400, vocab=4000)


@pytest.fixture(scope="module")
def weights() -> ModelWeights:
    return load(resolve_model("tiny"))[0]


@pytest.fixture(scope="module")
def executor(weights: ModelWeights) -> CudaExecutor:
    return build(weights)


@pytest.fixture
def fresh(executor: CudaExecutor) -> Iterator[CudaExecutor]:
    executor.reset()
    yield executor


@pytest.fixture(scope="module")
def target() -> ReferenceExecutor:
    return reference(resolve_model("tiny"), MAX_LEN, "cuda")


def load(folder: Path) -> tuple[ModelWeights, ModelConfig]:
    config = ModelConfig.from_folder(folder)
    stored = read_headers(folder, config)
    return load_weights(folder, config, stored, device=torch.device("cuda", 0)), config


def build(
    weights: ModelWeights,
    *,
    chunk: int = 1024,
    kv_dtype: torch.dtype | None = None,
    config: ModelConfig | None = None,
) -> CudaExecutor:
    config = config or ModelConfig.from_folder(resolve_model("tiny"))
    return CudaExecutor(weights, config, max_len=MAX_LEN, kv_dtype=kv_dtype, prefill_chunk=chunk)


def decode(executor: CudaExecutor, ids: Sequence[int]) -> torch.Tensor:
    """Logits of each id, one row a pass."""
    rows = []
    for token in ids:
        rows.append(executor.verify([token])[0])
        executor.commit(1)
    return torch.stack(rows)


def agreement(expected: torch.Tensor, got: torch.Tensor) -> float:
    """Share of rows whose likeliest token is the same."""
    return float((expected.argmax(-1).cpu() == got.argmax(-1).cpu()).float().mean())


def test_logits_are_the_references(fresh: CudaExecutor, target: ReferenceExecutor) -> None:
    expected = target.score(IDS[:900])
    scored = fresh.score(IDS[:900])
    assert relative_error(expected, scored) < TOLERANCE / 2
    assert agreement(expected, scored) > 0.95
    fresh.prefill(IDS[:600])
    decoded = decode(fresh, IDS[600:900])
    assert relative_error(expected[600:], decoded) < TOLERANCE
    assert agreement(expected[600:], decoded) > 0.95


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 63, 64, 65])
def test_short_prompts(fresh: CudaExecutor, target: ReferenceExecutor, count: int) -> None:
    expected = target.score(IDS[: count + 9])
    assert relative_error(expected[count - 1], fresh.prefill(IDS[:count])) < TOLERANCE
    rows = fresh.verify(IDS[count : count + 8])
    assert relative_error(expected[count : count + 8], rows) < TOLERANCE
    fresh.commit(8)
    assert relative_error(expected[count + 8], fresh.verify([IDS[count + 8]])[0]) < TOLERANCE


def test_a_row_has_the_same_bits_whatever_comes_with_it(fresh: CudaExecutor) -> None:
    choose, position, rounds = random.Random(3), 50, []
    fresh.prefill(IDS[:50])
    while position < 400:
        count = choose.randint(1, 8)
        kept = choose.randint(1, count)
        rows = fresh.verify(IDS[position : position + kept] + [7] * (count - kept))
        rounds.append(rows[:kept])
        fresh.commit(kept)
        position += kept
    fresh.reset()
    fresh.prefill(IDS[:50])
    together = torch.cat(rounds)
    alone = decode(fresh, IDS[50:position])
    differing = [50 + i for i in range(len(alone)) if not torch.equal(alone[i], together[i])]
    assert not differing, differing


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("count", [0, 1, 4, 7])
def test_recordings_do_what_eager_turns_do(
    weights: ModelWeights, monkeypatch: pytest.MonkeyPatch, count: int, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=50, top_p=0.9, logprobs=3)
    decoders, results = [], []
    for recorded in (True, False):
        executor = build(weights)
        draft = mtp_draft(executor) if count else None
        decoders.append(CudaDecoder(executor, draft, max(count, 1)))
        monkeypatch.setattr(decoders[-1]._recordings, "_can_record", recorded)
        results.append([turns(decoders[-1], params, seed) for seed in (1, 2)])
    assert results[0] == results[1]
    same_state(*(decoder.executor for decoder in decoders), int(decoders[0].cycle.words[0]) - 1)


def turns(decoder: CudaDecoder, params: SamplingParams, seed: int) -> list[object]:
    """What 80 turns report."""
    sampler = Sampler(params, IDS[:20], decoder.executor.vocab_size, frozenset(), seed)
    seen = list[object]()
    step = decoder.begin(IDS[:20], sampler, 1000)
    for _ in range(80):
        taken = list(step.tokens)
        logprobs = [step.logprob(place, token) for place, token in enumerate(taken)]
        seen.append((step.guesses, taken, logprobs))
        step = decoder.advance(taken)
    torch.cuda.synchronize()
    return seen


def same_state(first: CudaExecutor, second: CudaExecutor, length: int) -> None:
    for one, other in zip(first.state.layers, second.state.layers, strict=True):
        if isinstance(one, KvCache) and isinstance(other, KvCache):
            assert torch.equal(one.k[:, :length], other.k[:, :length])
            assert torch.equal(one.v[:, :length], other.v[:, :length])
        elif not isinstance(one, KvCache) and not isinstance(other, KvCache):
            assert torch.equal(one.settled.recurrent, other.settled.recurrent)
            assert torch.equal(one.settled.conv_window, other.settled.conv_window)


@pytest.mark.parametrize("chunk", [1, 5, 64, 100, 1000])
def test_prompts_cut_anywhere_are_close(
    weights: ModelWeights, fresh: CudaExecutor, chunk: int
) -> None:
    count = 30 if chunk < 64 else 1200
    expected = fresh.prefill(IDS[:count])
    cut = build(weights, chunk=chunk)
    assert relative_error(expected, cut.prefill(IDS[:count])) < TOLERANCE
    assert relative_error(fresh.verify(IDS[-4:]), cut.verify(IDS[-4:])) < TOLERANCE


def test_a_prompt_goes_on_after_decoding(fresh: CudaExecutor, target: ReferenceExecutor) -> None:
    expected = target.score(IDS[:100])
    fresh.prefill(IDS[:40])
    fresh.verify([*IDS[40:45], 7, 7])
    fresh.commit(5)
    assert relative_error(expected[59], fresh.prefill(IDS[45:60])) < TOLERANCE
    assert fresh.position == 60
    assert relative_error(expected[60:64], fresh.verify(IDS[60:64])) < TOLERANCE


def test_a_reset_leaves_no_trace(weights: ModelWeights, fresh: CudaExecutor) -> None:
    first = fresh.prefill(IDS[:33])
    rows = fresh.verify(IDS[33:38])
    fresh.commit(3)
    decode(fresh, IDS[36:90])
    fresh.verify([1, 2, 3])
    fresh.reset()
    assert torch.equal(fresh.prefill(IDS[:33]), first)
    assert torch.equal(fresh.verify(IDS[33:38]), rows)
    other = build(weights)
    assert torch.equal(other.prefill(IDS[:33]), first)
    assert torch.equal(other.verify(IDS[33:38]), rows)


def test_a_pass_that_is_not_committed_leaves_no_trace(fresh: CudaExecutor) -> None:
    fresh.prefill(IDS[:10])
    fresh.verify(IDS[10:13])
    fresh.commit(2)
    fresh.verify([5, 6, 7])
    again = fresh.verify(IDS[12:14])
    fresh.reset()
    fresh.prefill(IDS[:10])
    decode(fresh, IDS[10:12])
    assert torch.equal(fresh.verify(IDS[12:14]), again)


def test_the_last_position_can_be_used(fresh: CudaExecutor) -> None:
    fresh.prefill(IDS[: MAX_LEN - 1000] + IDS[:997])
    assert fresh.verify([1, 2, 3]).isfinite().all()
    fresh.commit(3)
    assert fresh.position == MAX_LEN


def test_a_float8_cache_is_close(weights: ModelWeights, fresh: CudaExecutor) -> None:
    rounded = build(weights, kv_dtype=torch.float8_e4m3fn)
    for executor in (fresh, rounded):
        executor.prefill(IDS[:400])
    expected, got = decode(fresh, IDS[400:440]), decode(rounded, IDS[400:440])
    assert 0 < relative_error(expected, got) < 5e-2
    assert agreement(expected, got) > 0.9


@pytest.mark.parametrize("kind", FOLDERS)
def test_folders_in_4_bits(tmp_path: Path, kind: str) -> None:
    folder = FOLDERS[kind](tmp_path / "model")
    weights, config = load(folder)
    executor = build(weights, config=config)
    ids = some_ids(520)
    expected = reference(folder, MAX_LEN, "cuda").score(ids)
    assert relative_error(expected, executor.score(ids)) < TOLERANCE
    executor.prefill(ids[:400])  # unpacks the matrices
    executor.prefill(ids[400:450])  # does not
    rows = [executor.verify(ids[450:456])]
    executor.commit(6)
    rows.append(decode(executor, ids[456:]))
    assert relative_error(expected[450:], torch.cat(rows)) < TOLERANCE
    executor.reset()
    executor.prefill(ids[:400])
    executor.prefill(ids[400:450])
    assert torch.equal(decode(executor, ids[450:]), torch.cat(rows))
