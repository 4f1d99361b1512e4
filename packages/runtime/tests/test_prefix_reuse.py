"""Prefix reuse in whole engines: answers are those of an engine that keeps nothing."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound import Engine, GenerationResult, InvalidSettingError, SamplingParams
from bytebound.config import ModelConfig
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.random_weights import random_weights
from bytebound.decoder import HostDecoder
from bytebound.drafts import Draft, NgramDraft
from bytebound.executor import Executor
from bytebound.prompt_reader import PromptReader
from bytebound.scripted import ScriptedExecutor
from bytebound.text.tokenizer import Tokenizer

from .checkpoints import random_checkpoint
from .conftest import write_tokenizer
from .cuda_models import SHAPE, mtp_draft
from .emulated_kernels import emulate

CHUNK, MAX_LEN, TURN = 16, 200, 3
DRAFTS = ["none", "mtp", "ngram"]
BACKENDS = ["reference", "cuda from the host", "cuda"]
MakeEngine = Callable[[int | None], Engine]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    made = random_checkpoint(tmp_path_factory.mktemp("model"), seed=3, vocab_size=360, **shape)
    return write_tokenizer(made.folder)


@pytest.fixture(params=DRAFTS)
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
    """Build an engine that keeps so many bytes of states; prompts are cut small."""
    if request.param == "reference":

        def from_folder(snapshot_bytes: int | None) -> Engine:
            given: Any = NgramDraft(min_ngram=1) if draft == "ngram" else draft
            engine = Engine.from_pretrained(
                folder, device="cpu", dtype="float32", max_len=MAX_LEN, draft=given,
                num_draft_tokens=3, snapshot_bytes=snapshot_bytes,
            )  # fmt: skip
            engine.executor.prefill_chunk, engine.executor.prefill_floor = CHUNK, 5
            return engine

        return from_folder
    emulate(monkeypatch)
    config = ModelConfig.from_folder(random_checkpoint(tmp_path, **SHAPE).folder)
    weights = random_weights(config, dtype=torch.bfloat16, device=torch.device("cpu"), seed=5)

    def emulated(snapshot_bytes: int | None) -> Engine:
        executor = CudaExecutor(
            weights, config, max_len=MAX_LEN, prefill_chunk=CHUNK, prefill_floor=5, few_rows=9
        )
        drafts: dict[str, Draft | None] = {"none": None, "ngram": NgramDraft(min_ngram=1)}
        made = mtp_draft(executor) if draft == "mtp" else drafts[draft]
        reader = PromptReader(executor, made, turn_starts={TURN}, snapshot_bytes=snapshot_bytes)
        kind = CudaDecoder if request.param == "cuda" else HostDecoder
        decoder = kind(executor, made, 3, reader)
        return Engine(executor, draft=made, decoder=decoder, config=config)

    return emulated


def comparable(result: GenerationResult) -> tuple[Any, ...]:
    """Everything that must not vary from run to run."""
    stats = result.stats
    return result.token_ids, result.logprobs, stats.steps, stats.drafted, stats.accepted


REQUESTS = {
    "greedy": {"logprobs": 2},
    "sampled": {"temperature": 1.5, "seed": 7, "logprobs": 1},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5},
}


def test_answers_are_those_of_an_engine_that_keeps_nothing(make: MakeEngine) -> None:
    """E01: tokens, logprobs and what became of the guesses, over a conversation with edits."""
    warm, cold = make(None), make(0)
    choose, cached = random.Random(1), 0
    conversation = [choose.randrange(10, 350) for _ in range(40)]
    for turn in range(5):
        for kind, given in list(REQUESTS.items())[: 3 if turn == 0 else 1 + turn % 2]:
            params = SamplingParams(max_tokens=10, ignore_eos=True, **given)
            results = [engine.generate(conversation, params) for engine in (warm, cold)]
            assert comparable(results[0]) == comparable(results[1]), (turn, kind)
            assert results[1].stats.cached_tokens == 0
            cached += results[0].stats.cached_tokens
        if turn == 2:  # an abandoned answer, and an edit in mid-conversation
            stream = warm.stream([*conversation, 9, 8], SamplingParams(max_tokens=20))
            next(stream)
            stream.close()
            conversation[30] = 9
        answer = results[0].token_ids
        conversation += [*answer, TURN, *(choose.randrange(10, 350) for _ in range(12))]
    assert cached > 200


def test_scoring_in_between(make: MakeEngine) -> None:
    engine, prompt = make(None), [17 * i % 340 + 10 for i in range(60)]
    params = SamplingParams(max_tokens=8, ignore_eos=True, logprobs=1)
    first = engine.generate(prompt, params)
    again = engine.generate(prompt, params)
    assert comparable(again) == comparable(first)
    assert (first.stats.cached_tokens, again.stats.cached_tokens) == (0, 60)
    engine.score([5, *prompt])
    third = engine.generate(prompt, params)
    assert comparable(third) == comparable(first)
    assert third.stats.cached_tokens == 0


class TestConversation:
    def test_only_the_last_turns_are_read_again(self, folder: Path) -> None:
        """E02, E47: through the chat template, whatever it does to the history."""
        engine = Engine.from_pretrained(folder, device="cpu", max_len=1500, draft="none")
        floor, messages = engine.executor.prefill_floor, []
        params = SamplingParams(max_tokens=12, ignore_eos=True)
        for turn in range(8):
            messages.append({"role": "user", "content": f"the quick brown fox {turn} " * 4})
            prompt = engine.tokenizer.apply_chat_template(messages)
            result = engine.generate(prompt, params)
            again = len(prompt) - result.stats.cached_tokens
            if turn > 1:
                longest = max(len(engine.tokenizer.encode(one["content"])) for one in messages)
                # Answer and question are new; what is read with them is shorter than a turn.
                assert again < 3 * longest + 2 * floor + 40
                assert result.stats.cached_tokens > 0
            messages.append({"role": "assistant", "content": f"over the lazy dog {turn}"})
        assert result.stats.cached_tokens > 0.7 * len(prompt)

    def test_the_ids_that_start_a_turn(self, tokenizer: Tokenizer) -> None:
        (turn,) = tokenizer.turn_start_ids
        assert tokenizer.decode([turn], skip_special_tokens=False) == "<|im_start|>"
        ids = tokenizer.apply_chat_template([{"role": "user", "content": "<|im_start|> hello"}])
        assert ids.count(turn) == 2  # the user's own text starts no turn

    def test_scripts_report_it_too(self) -> None:
        executor: Executor = ScriptedExecutor([[5], [6], [7]], 40)
        engine = Engine(executor)
        prompt = list(range(10, 40)) * 20
        params = SamplingParams(max_tokens=3)
        for cached in (0, 600):
            result = engine.generate(prompt, params)
            assert (result.token_ids, result.stats.cached_tokens) == ([5, 6, 7], cached)
        assert engine.generate([*prompt, 3], params).stats.cached_tokens == 512


class TestBudget:
    @pytest.mark.parametrize("given", [0, "1MiB", 123_456, None])
    def test_it_is_in_the_plan(self, folder: Path, given: Any) -> None:
        engine = Engine.from_pretrained(folder, device="cpu", draft="none", snapshot_bytes=given)
        size = engine.executor.snapshot_bytes
        expected = {0: 0, "1MiB": 1 << 20, None: 16 * size}.get(given, given)
        assert engine.memory_plan.snapshots == expected
        assert engine.memory_plan.total > expected

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (1000, r"^snapshot_bytes=1000: one state of this model takes \d+ bytes; .* or 0 to"),
            ("1kB", r"^snapshot_bytes=1000: "),
            (-1, r"^snapshot_bytes=-1: expected a size such as"),
            (False, r"^snapshot_bytes=False: expected a size such as"),
            ("many", r"^snapshot_bytes='many': expected a size such as"),
        ],
    )
    def test_a_budget_that_keeps_nothing_is_refused(
        self, folder: Path, given: Any, message: str
    ) -> None:
        """E02: it would never hit, and nobody would know why."""
        with pytest.raises(InvalidSettingError, match=message):
            Engine.from_pretrained(folder, device="cpu", draft="none", snapshot_bytes=given)
