"""Conversations that take turns in whole engines, whose answers must not show it.

On the reference, and on the CUDA backend with plain references in place of its kernels.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound import Engine, InvalidSettingError, SamplingParams
from bytebound.config import ModelConfig
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.random_weights import random_weights
from bytebound.drafts import Draft, NgramDraft
from bytebound.prompt_reader import PromptReader, cuts

from .cuda_models import SHAPE, mtp_draft
from .emulated_kernels import emulate
from .test_prefix_reuse import REQUESTS, comparable, folder
from .test_prompt_reader import PLENTY

__all__ = ["folder"]  # a fixture

CHUNK, FLOOR, TURN, MAX_LEN = 16, 5, 3, 200
BACKENDS = {"reference": None, "cuda": torch.bfloat16, "cuda, fp8": torch.float8_e4m3fn}
MakeEngine = Callable[[int], Engine]


@pytest.fixture(params=["none", "mtp", "ngram"])
def draft(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=BACKENDS)
def make(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    folder: Path,
    draft: str,
) -> MakeEngine:
    """Build an engine that parks in so many bytes; with 0 it keeps nothing at all."""
    kv_dtype = BACKENDS[request.param]
    if kv_dtype is None:

        def from_folder(conversation_bytes: int) -> Engine:
            engine = Engine.from_pretrained(
                folder, device="cpu", dtype="float32", max_len=MAX_LEN, num_draft_tokens=3,
                draft=NgramDraft(min_ngram=1) if draft == "ngram" else draft,
                snapshot_bytes=None if conversation_bytes else 0,
                conversation_bytes=conversation_bytes,
            )  # fmt: skip
            engine.executor.prefill_chunk, engine.executor.prefill_floor = CHUNK, FLOOR
            return engine

        return from_folder
    emulate(monkeypatch)
    config = ModelConfig.from_folder(random_checkpoint_of(tmp_path))
    weights = random_weights(config, dtype=torch.bfloat16, device=torch.device("cpu"), seed=5)

    def emulated(conversation_bytes: int) -> Engine:
        executor = CudaExecutor(
            weights, config, max_len=MAX_LEN, kv_dtype=kv_dtype,
            prefill_chunk=CHUNK, prefill_floor=FLOOR,
        )  # fmt: skip
        drafts: dict[str, Draft | None] = {"none": None, "ngram": NgramDraft(min_ngram=1)}
        made = mtp_draft(executor, kv_dtype) if draft == "mtp" else drafts[draft]
        reader = PromptReader(
            executor, made, turn_starts={TURN},
            snapshot_bytes=None if conversation_bytes else 0,
            conversation_bytes=conversation_bytes,
        )  # fmt: skip
        decoder = CudaDecoder(executor, made, 3, reader)
        return Engine(executor, draft=made, decoder=decoder, config=config)

    return emulated


def random_checkpoint_of(path: Path) -> Path:
    from .checkpoints import random_checkpoint

    return random_checkpoint(path, **SHAPE).folder


def shared_stop(engine: Engine, prompt: list[int], other: list[int], *, resident: bool) -> int:
    """The last end of a pass of both, kept of the other, up to which they are the same."""

    def stops(ids: list[int]) -> list[int]:
        turns = engine.reader.turn_starts
        return [*cuts(ids, chunk=CHUNK, floor=FLOOR, turn_starts=turns), len(ids)]

    kept = stops(other)
    if not resident and len(kept) > 1 and kept[-1] - kept[-2] < 2 * FLOOR:
        kept.pop()  # its end was not worth parking
    both = {*stops(prompt)} & {*kept}
    return max((stop for stop in both if prompt[:stop] == other[:stop]), default=0)


def test_conversations_take_turns(make: MakeEngine) -> None:
    """E01: tokens, logprobs and what became of the guesses; and what was not read again."""
    warm, cold = make(PLENTY), make(0)
    choose, turn_id = random.Random(1), min(warm.reader.turn_starts)
    instructions = [choose.randrange(10, 350) for _ in range(20)]
    talks = [
        [*instructions, turn_id, *(choose.randrange(10, 350) for _ in range(20))] for _ in range(3)
    ]
    last, kinds, before = [list[int]() for _ in talks], list(REQUESTS.values()), -1
    for turn in range(3):
        for index in choose.sample(range(3), 3):
            prompt = talks[index]
            params = SamplingParams(max_tokens=7, ignore_eos=True, **kinds[(turn + index) % 3])
            got, expected = warm.generate(prompt, params), cold.generate(prompt, params)
            assert comparable(got) == comparable(expected), (turn, index)
            assert expected.stats.cached_tokens == 0
            cached = max(
                shared_stop(warm, prompt, other, resident=number == before)
                for number, other in enumerate(last)
            )
            assert got.stats.cached_tokens == cached
            assert cached >= CHUNK or not any(last)
            last[index], before = prompt, index
            new = [choose.randrange(10, 350) for _ in range(8)]
            talks[index] = [*prompt, *got.token_ids, turn_id, *new]
    assert warm.reader.beginnings.parked >= 5
    parked = warm.reader.parked
    assert parked is not None
    assert 0 < parked.num_bytes <= parked.reserved_bytes <= PLENTY


@pytest.mark.parametrize("draft", ["mtp"])
def test_a_tight_budget(make: MakeEngine) -> None:
    """Whatever has to go, answers are right and the bound holds."""
    sizes = make(PLENTY)
    params = SamplingParams(max_tokens=3, ignore_eos=True, logprobs=1)
    choose = random.Random(2)
    talks = [[choose.randrange(10, 350) for _ in range(50)] for _ in range(4)]
    expected = [comparable(sizes.generate(talk, params)) for talk in talks]
    assert sizes.reader.parked is not None
    warm = make(sizes.reader.parked.num_bytes // 2)
    for index in (0, 1, 0, 2, 3, 2, 1, 1, 0):
        assert comparable(warm.generate(talks[index], params)) == expected[index]
        assert warm.reader.parked is not None
        assert warm.reader.parked.num_bytes <= warm.reader.parked.budget
    assert warm.reader.parked.evictions > 0
    assert warm.reader.beginnings.parked > 0


class GivenUpError(Exception):
    pass


@pytest.mark.parametrize("draft", ["mtp"])
@pytest.mark.parametrize("error", [GivenUpError, KeyboardInterrupt])
def test_a_prompt_that_is_given_up_between_two_passes(
    make: MakeEngine, error: type[BaseException]
) -> None:
    """Its passes so far are not lost, and nothing else is wrong afterwards."""
    warm, cold = make(PLENTY), make(0)
    params = SamplingParams(max_tokens=4, ignore_eos=True, logprobs=1)
    choose = random.Random(3)
    before, long = ([choose.randrange(10, 350) for _ in range(count)] for count in (60, 150))
    warm.generate(before, params)
    passes = 0

    def give_up() -> None:
        nonlocal passes
        passes += 1
        if passes == 6:
            raise error

    warm.reader.before_pass = give_up
    with pytest.raises(error):
        warm.generate(long, params)
    assert passes == 6
    warm.reader.before_pass = None
    # Of 60 ids the last cut is behind 48: the other 12 are worth parking too.
    for prompt, cached in ((before, 60), (long, 5 * CHUNK), (before, 60)):
        got = warm.generate(prompt, params)
        assert comparable(got) == comparable(cold.generate(prompt, params))
        assert got.stats.cached_tokens == cached


class TestBudget:
    @pytest.mark.parametrize("given", [0, "0", "1MiB", 123_456])
    def test_it_is_in_the_plan_and_no_part_of_its_total(self, folder: Path, given: Any) -> None:
        engine = Engine.from_pretrained(
            folder, device="cpu", draft="none", conversation_bytes=given
        )
        assert engine.memory_plan is not None
        expected = {0: 0, "0": 0, "1MiB": 1 << 20}.get(given, given)
        assert engine.memory_plan.conversations == expected
        assert engine.memory_plan.total == sum(size for _, size in engine.memory_plan.rows())
        assert "conversations" not in dict(engine.memory_plan.rows())
        assert (engine.reader.parked is None) == (expected == 0)

    def test_left_to_the_engine_it_holds_four_contexts(self, folder: Path) -> None:
        given: dict[str, Any] = {"device": "cpu", "draft": "mtp", "max_len": 300}
        assert Engine.from_pretrained(folder, **given).reader.parked is None
        plan = Engine.from_pretrained(folder, **given, conversation_bytes=None).memory_plan
        assert plan is not None
        assert plan.conversations == 4 * (plan.kv + plan.mtp_kv + plan.snapshots)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (-1, r"^conversation_bytes=-1: expected a size such as"),
            (False, r"^conversation_bytes=False: expected a size such as"),
            ("many", r"^conversation_bytes='many': expected a size such as"),
            ("900TiB", r"^conversation_bytes=\d+: \d+ bytes of the host's memory are available; "),
        ],
    )
    def test_what_is_no_budget_is_refused(self, folder: Path, given: Any, message: str) -> None:
        with pytest.raises(InvalidSettingError, match=message):
            Engine.from_pretrained(folder, device="cpu", draft="none", conversation_bytes=given)
