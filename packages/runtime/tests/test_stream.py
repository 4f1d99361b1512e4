"""The weight stream against the graph of kernels on a CPU: the same bits, whatever happens.

With the kernels' references the two have the same arithmetic, the gates among them.
"""

import random
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import bytebound_kernels as bk
import pytest
import torch
from bytebound import Engine, SamplingParams
from bytebound.config import ModelConfig
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.diagnosis import explain_non_finite
from bytebound.cuda.diff import run_diff
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.pairing import reference_of
from bytebound.cuda.random_weights import random_weights
from bytebound.cuda.stream import Activations, StreamStep, row_bytes
from bytebound.drafts import Draft, NgramDraft
from bytebound.prompt_reader import PromptReader

from .checkpoints import random_checkpoint
from .cuda_models import (
    FOLDERS,
    REQUESTS,
    SHAPE,
    KnowingDraft,
    WrongDraft,
    gated_delta_states,
    mtp_draft,
    some_ids,
)
from .emulated_kernels import Kernels, emulate
from .emulated_models import CPU, cuda_executor

MAX_LEN = 128
PROMPT = some_ids(9)
# Rows of a pass, and how many of them are committed; 0: the next pass takes their place.
PASSES = ((1, 1), (1, 1), (1, 1), (5, 3), (5, 0), (3, 2), (1, 1), (8, 8), (2, 1), (8, 1), (1, 1))
LAYERS = {
    "three": SHAPE["layer_types"],
    "attention first": ["full_attention", "linear_attention", "full_attention"],
    "attention alone": ["full_attention"] * 2,
    "none between": ["linear_attention", "full_attention", "full_attention", "linear_attention"],
    "no attention": ["linear_attention"] * 2,
    "more than one launch takes": ["full_attention", *["linear_attention"] * 5, "full_attention"],
    "more before the head": ["full_attention", *["linear_attention"] * 4],
}


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    return emulate(monkeypatch)


def build(tmp_path: Path, engine: str, **shape: Any) -> CudaExecutor:
    """Random weights in 4 bits, the same for both engines."""
    config = ModelConfig.from_folder(random_checkpoint(tmp_path, **{**SHAPE, **shape}).folder)
    weights = random_weights(config, dtype=torch.float16, device=CPU, seed=5)
    return CudaExecutor(
        weights, config, max_len=MAX_LEN, prefill_chunk=16, prefill_floor=5, few_rows=4,
        engine=engine,
    )  # fmt: skip


def held(executor: CudaExecutor) -> list[torch.Tensor]:
    """Everything that one pass leaves for the next, the host's own numbers apart."""
    state = executor.state
    deltas = gated_delta_states(state)
    return [
        *(tensor for one in deltas for tensor in (*one.settled, *one.pending)),
        *(cache.view(torch.uint8) for cache in state.caches),
        state.num_accepted,
        state.position,
    ]


def take_passes(executor: CudaExecutor, passes: Sequence[tuple[int, int]]) -> list[torch.Tensor]:
    """Logits, hidden rows and states of all passes behind a prompt."""
    found, more = [executor.prefill(PROMPT)], random.Random(4)
    for rows, kept in passes:
        found.append(executor.verify([more.randrange(350) for _ in range(rows)]))
        assert executor.last_hidden is not None
        found += [executor.last_hidden, *(one.clone() for one in held(executor))]
        if kept:
            executor.commit(kept)
    return found


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("layers", LAYERS)
@torch.inference_mode()
def test_rows_and_states_are_those_of_the_graph(tmp_path: Path, layers: str) -> None:
    types = LAYERS[layers]
    shape = {"layer_types": types, "num_hidden_layers": len(types)}
    executors = [build(tmp_path, name, **shape) for name in ("graph", "stream")]
    assert isinstance(executors[1].step, StreamStep)
    found = [take_passes(one, PASSES) for one in executors]
    assert same(*found) and all(one.float().isfinite().all() for one in found[0])
    # A prompt that goes on takes the pending rows of the stream in.
    assert same(*([one.prefill([3, 4, 5]), *held(one)] for one in executors))


def test_a_launch_holds_as_many_ops_as_it_can(tmp_path: Path) -> None:
    def counts(types: list[str]) -> list[int]:
        shape = {"layer_types": types, "num_hidden_layers": len(types)}
        step = build(tmp_path, "stream", **shape).step
        assert isinstance(step, StreamStep)
        return [len(segment.program.ops) for segment in step.segments]

    linear, full = "linear_attention", "full_attention"
    # The flagship's: three layers between two attentions are one launch.
    assert counts([linear, linear, linear, full] * 2) == [29, 33, 6]
    assert counts([full, *[linear] * 5, full]) == [2, 31, 20, 6]
    assert max(counts([linear] * 9)) <= bk.STREAM_MAX_OPS


@pytest.mark.parametrize("kind", ["symmetric", "asymmetric"])
@torch.inference_mode()
def test_folders_in_4_bits(tmp_path: Path, kind: str) -> None:
    folder = FOLDERS[kind](tmp_path / "model")
    graph, stream = (cuda_executor(folder, max_len=MAX_LEN, engine=e) for e in ("graph", "stream"))
    assert same(take_passes(graph, PASSES), take_passes(stream, PASSES))


@torch.inference_mode()
def test_a_float8_cache(tmp_path: Path) -> None:
    folder, kind = FOLDERS["symmetric"](tmp_path / "model"), torch.float8_e4m3fn
    graph, stream = (
        cuda_executor(folder, max_len=MAX_LEN, kv_dtype=kind, engine=engine)
        for engine in ("graph", "stream")
    )
    assert same(take_passes(graph, PASSES), take_passes(stream, PASSES))


@torch.inference_mode()
def test_a_row_has_the_same_bits_whatever_comes_with_it(tmp_path: Path) -> None:
    executor, ids = build(tmp_path, "stream"), some_ids(40)
    executor.prefill(ids[:20])
    alone = []
    for i in range(20, 28):
        alone.append(executor.verify([ids[i]])[0])
        executor.commit(1)
    executor.reset()
    executor.prefill(ids[:20])
    assert torch.equal(executor.verify(ids[20:28]), torch.stack(alone))


@pytest.mark.parametrize("kind", ["symmetric", "partly", "gptq"])
def test_weights_that_a_stream_cannot_read(tmp_path: Path, kind: str) -> None:
    """Engines refuse such a folder before (test_stream_limits.py); nothing is computed wrong."""
    executor = cuda_executor(FOLDERS[kind](tmp_path / "model"), max_len=MAX_LEN)
    if kind == "symmetric":
        StreamStep.over(executor.step, executor.weights, executor.state)
        return
    with pytest.raises(TypeError, match=r"no product of a (Gated)?DenseMatrix"):
        StreamStep.over(executor.step, executor.weights, executor.state)


def test_activations_have_places_of_their_own(tmp_path: Path) -> None:
    config = build(tmp_path, "graph").config
    activations = Activations.empty(config, CPU)
    parts = [getattr(activations, field.name) for field in fields(activations)][1:]
    assert activations.arena.shape == (8, row_bytes(config))
    for value, part in enumerate(parts):
        assert part.shape[:2] in ((8, config.num_linear_layers), (8, 3))
        assert part.data_ptr() % 256 == activations.arena.data_ptr() % 256
        part.fill_(value)
    assert all(bool((part == value).all()) for value, part in enumerate(parts))


# Whole engines.


def make_engine(executor: CudaExecutor, draft: str, count: int = 3, **reader: Any) -> Engine:
    made: Draft | None = None
    if draft == "mtp":
        made = mtp_draft(executor)
    elif draft != "none":
        made = NgramDraft(min_ngram=1) if draft == "ngram" else WrongDraft()
    reading = PromptReader(executor, made, **reader)
    decoder = CudaDecoder(executor, made, count, reading)
    decoder.warm_up()
    return Engine(executor, draft=made, decoder=decoder, config=executor.config, end_ids=[3])


def comparable(result: Any) -> tuple[Any, ...]:
    return result.token_ids, result.logprobs, result.stats.steps, result.stats.accepted


@pytest.mark.parametrize("draft", ["none", "mtp", "ngram", "wrong"])
def test_answers_are_those_of_the_graph(tmp_path: Path, draft: str) -> None:
    graph, stream = (make_engine(build(tmp_path, one), draft) for one in ("graph", "stream"))
    for kind in REQUESTS.values():
        params = SamplingParams(**{"max_tokens": 40, "ignore_eos": True, **kind})
        assert comparable(stream.generate(PROMPT, params)) == comparable(
            graph.generate(PROMPT, params)
        )


@pytest.mark.parametrize("count", range(1, 8))
def test_greedy_with_mtp_is_plain_greedy(tmp_path: Path, count: int) -> None:
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    executor = build(tmp_path, "stream")
    plain = make_engine(executor, "none").generate(PROMPT, params).token_ids
    with_guesses = make_engine(executor, "mtp", count).generate(PROMPT, params)
    assert with_guesses.token_ids == plain
    assert with_guesses.stats.drafted >= 58 * count


def test_any_number_of_guesses_may_stand(tmp_path: Path) -> None:
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    executor = build(tmp_path, "stream")
    plain = make_engine(executor, "none").generate(PROMPT, params).token_ids
    draft = KnowingDraft([*PROMPT, *plain])
    decoder = CudaDecoder(executor, draft, 7, PromptReader(executor, draft))
    own = Engine(executor, draft=draft, decoder=decoder, config=executor.config)
    result = own.generate(PROMPT, params)
    assert result.token_ids == plain
    assert 2.5 < result.stats.mean_accepted_len < 7


@pytest.mark.parametrize("draft", ["none", "mtp"])
def test_conversations_take_turns(tmp_path: Path, draft: str) -> None:
    """Kept states and parked conversations, which go back to rows that a stream has written."""
    budget = {"snapshot_bytes": None, "conversation_bytes": 1 << 26, "turn_starts": {3}}
    warm = make_engine(build(tmp_path, "stream"), draft, **budget)
    cold = make_engine(build(tmp_path, "graph"), draft, snapshot_bytes=0)
    choose, kinds = random.Random(1), list(REQUESTS.values())
    talks = [[choose.randrange(10, 350) for _ in range(30)] for _ in range(2)]
    cached = 0
    for turn in range(4):
        talk, kind = talks[turn % 2], kinds[3 * (turn // 2)]
        params = SamplingParams(**{**kind, "max_tokens": 9, "ignore_eos": True})
        got, expected = warm.generate(talk, params), cold.generate(talk, params)
        assert comparable(got) == comparable(expected)
        cached += got.stats.cached_tokens
        talk += [*got.token_ids, 3, *(choose.randrange(10, 350) for _ in range(8))]
    assert cached > 30


# Tools that look into a pass.


def test_a_diff_runs_op_by_op(tmp_path: Path) -> None:
    executor = build(tmp_path, "stream")
    step = executor.step
    reference = reference_of(executor.weights, executor.config, max_len=MAX_LEN)
    report = run_diff(reference, executor, some_ids(20), rows=2)
    assert report.first is None and report.unseen == []
    assert any(one.run.startswith("step") for one in report.differences)
    assert executor.step is step


def test_a_search_for_nan_runs_op_by_op(tmp_path: Path) -> None:
    executor = build(tmp_path, "stream")
    step, weights = executor.step, executor.weights
    executor.weights.norm[3] = torch.nan
    found = explain_non_finite(executor, PROMPT)
    assert found.startswith("norm made them of finite values, first at position 7; element 3 of")
    assert executor.step is step and executor.weights is weights
