"""Requests on a random checkpoint: what they depend on, what they do not, and what is refused."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bytebound import (
    ContextOverflowError,
    Engine,
    GenerationResult,
    InvalidRequestError,
    NonFiniteLogitsError,
    Proposal,
    SamplingParams,
)
from bytebound.drafts import NgramDraft
from bytebound.reference.executor import ReferenceExecutor
from bytebound.sampling import Sampler

from .checkpoints import random_checkpoint

SHAPE = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
MAX_LEN = 512
DRAFTS = ["none", "mtp", "ngram"]
PROMPT = [5, 9, 17, 5, 9, 80, 33, 5, 9]
LENGTH = 30

# Everything that changes the target's rows, alone and together.
ADJUSTED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"presence_penalty": 2.0},
    "frequency": {"frequency_penalty": 1.5},
    "negative frequency": {"frequency_penalty": -1.0},
    "bias": {"logit_bias": {7: 6.0, 8: 5.0, 9: -100}},
    "all": {
        "repetition_penalty": 1.2,
        "presence_penalty": 1.0,
        "frequency_penalty": 0.5,
        "logit_bias": {7: 3.0, 5: -100},
        "min_tokens": 30,
    },
}


@dataclass(frozen=True)
class Engines:
    folder: Path
    by_draft: dict[str, Engine]

    def fresh(self, draft: Any, **settings: Any) -> Engine:
        return load(self.folder, draft, **settings)


def load(folder: Path, draft: Any, **settings: Any) -> Engine:
    given = {"device": "cpu", "dtype": "float32", "max_len": MAX_LEN, **settings}
    if draft == "ngram":
        draft = NgramDraft(min_ngram=1)  # a random model hardly ever repeats two ids
    return Engine.from_pretrained(folder, draft=draft, num_draft_tokens=3, **given)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    folder = random_checkpoint(tmp_path_factory.mktemp("model"), seed=3, **SHAPE).folder
    return Engines(folder, {draft: load(folder, draft) for draft in DRAFTS})


@pytest.fixture(params=DRAFTS)
def engine(request: pytest.FixtureRequest, engines: Engines) -> Engine:
    return engines.by_draft[request.param]


def greedy(max_tokens: int = LENGTH, **params: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **params)


def sampled(seed: int | None, **params: Any) -> SamplingParams:
    return greedy(**{"temperature": 2.0, "seed": seed, **params})


def comparable(result: GenerationResult) -> tuple[Any, ...]:
    """Everything that must not vary from run to run."""
    stats = result.stats
    return result.token_ids, result.logprobs, stats.steps, stats.drafted, stats.accepted


class HalfRight:
    """Proposes the known continuation, and one wrong id at a depth that changes."""

    name = "half right"

    def __init__(self, completion: list[int], prompt_length: int) -> None:
        self.future = [0] * prompt_length + completion

    def begin(self, first_id: int) -> None:
        self.seen = 1
        self.asked = 0

    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        self.seen += len(next_ids)

    def propose(self, count: int, sampler: Sampler) -> Proposal:
        ids = self.future[self.seen : self.seen + count]
        self.asked += 1
        wrong = self.asked % 4
        if wrong < len(ids):
            # Often an id that penalties must not count, now or later.
            ids[wrong] = (ids[wrong] + self.asked % 3 + 1) % 151
        return Proposal(tuple(ids))


class TestDraftsChangeNothing:
    @pytest.mark.parametrize("adjusted", ADJUSTED.values(), ids=ADJUSTED.keys())
    def test_greedy_ids_and_logprobs_are_the_same_bits(
        self, engines: Engines, adjusted: dict[str, Any]
    ) -> None:
        """Penalties, bias and masks see what plain decoding shows them, refused guesses never."""
        params = greedy(60, logprobs=5, **adjusted)
        plain = engines.by_draft["none"].generate(PROMPT, params)
        half_right = engines.fresh(HalfRight(plain.token_ids, len(PROMPT)))
        for engine in (engines.by_draft["mtp"], engines.by_draft["ngram"], half_right):
            result = engine.generate(PROMPT, params)
            assert result.token_ids == plain.token_ids
            assert result.logprobs == plain.logprobs
            assert result.stats.drafted > result.stats.accepted
        assert result.stats.accepted > 30

    @pytest.mark.parametrize("temperature", [0.0, 1.5])
    def test_a_banned_token_never_appears(self, engine: Engine, temperature: float) -> None:
        params = {"temperature": temperature, "seed": 1}
        free = Counter(engine.generate(PROMPT, greedy(100, **params)).token_ids)
        frequent = [token for token, _ in free.most_common(5)]
        banned = greedy(100, logit_bias=dict.fromkeys(frequent, -100), **params)
        assert not {*engine.generate(PROMPT, banned).token_ids} & {*frequent}

    def test_equal_logits_give_the_lowest_id(self, engines: Engines) -> None:
        for draft in DRAFTS:
            engine = engines.fresh(draft)
            head(engine).zero_()
            assert engine.generate(PROMPT, greedy(12)).token_ids == [0] * 12


class TestLogprobs:
    @pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
    def test_they_are_the_models_own_distribution(self, engine: Engine, temperature: float) -> None:
        params = greedy(
            temperature=temperature, seed=2, logprobs=151, top_p=0.9, presence_penalty=1.0
        )
        result = engine.generate(PROMPT, params)
        rows = engine.score(PROMPT + result.token_ids)[len(PROMPT) - 1 : -1]
        expected = torch.log_softmax(rows.double(), -1)
        assert result.logprobs is not None
        assert [one.token_id for one in result.logprobs] == result.token_ids
        for one, row in zip(result.logprobs, expected, strict=True):
            assert one.logprob == pytest.approx(float(row[one.token_id]), abs=1e-3)
            assert sum(np.exp([value for _, value in one.top])) == pytest.approx(1)

    def test_score_is_the_executors_and_predicts_the_next_id(self, engine: Engine) -> None:
        ids = PROMPT + engine.generate(PROMPT, greedy()).token_ids
        rows = engine.score(ids)
        assert (rows.dtype, rows.device.type, rows.shape) == (torch.float32, "cpu", (len(ids), 151))
        assert torch.equal(rows, engine.executor.score(ids))
        assert rows.argmax(-1).tolist()[len(PROMPT) - 1 : -1] == ids[len(PROMPT) :]


class TestSeeds:
    def test_same_seed_same_text_other_seed_other_text(self, engine: Engine) -> None:
        first = engine.generate(PROMPT, sampled(1, logprobs=1))
        assert comparable(engine.generate(PROMPT, sampled(1, logprobs=1))) == comparable(first)
        assert engine.generate(PROMPT, sampled(2)).token_ids != first.token_ids

    def test_the_engines_seed_serves_requests_that_bring_none(self, engines: Engines) -> None:
        first, again, other = (engines.fresh("mtp", seed=seed) for seed in (1, 1, 2))
        ids = first.generate(PROMPT, sampled(None)).token_ids
        assert first.generate(PROMPT, sampled(None)).token_ids == ids
        assert again.generate(PROMPT, sampled(None)).token_ids == ids
        assert again.generate(PROMPT, sampled(0)).token_ids != ids
        assert other.generate(PROMPT, sampled(None)).token_ids != ids
        assert other.generate(PROMPT, sampled(1)).token_ids == ids

    def test_without_any_seed_runs_differ(self, engine: Engine) -> None:
        runs = [engine.generate(PROMPT, sampled(None)).token_ids for _ in range(2)]
        assert runs[0] != runs[1]


class TestContext:
    LIMIT = 32

    @pytest.fixture(params=DRAFTS)
    def small(self, request: pytest.FixtureRequest, engines: Engines) -> Engine:
        return engines.fresh(request.param, max_len=self.LIMIT)

    @pytest.mark.parametrize("room", [1, 2, 5])
    def test_a_completion_ends_where_the_context_does(
        self, small: Engine, engines: Engines, room: int
    ) -> None:
        prompt = [3 + i % 7 for i in range(self.LIMIT - room)]
        result = small.generate(prompt, greedy(100))
        assert result.token_ids == engines.by_draft["none"].generate(prompt, greedy(room)).token_ids
        assert (result.finish_reason, result.stats.prompt_tokens) == ("length", len(prompt))

    @pytest.mark.parametrize("over", [0, 1])
    def test_a_prompt_that_leaves_no_room_is_refused_with_both_counts(
        self, small: Engine, over: int
    ) -> None:
        prompt = [3] * (self.LIMIT + over)
        with pytest.raises(ContextOverflowError, match=rf"{len(prompt)} tokens.*{self.LIMIT}.*max"):
            small.stream(prompt, greedy())
        assert small.generate([3], greedy(5)).stats.completion_tokens == 5

    def test_without_completion_a_prompt_may_fill_the_context(self, small: Engine) -> None:
        assert small.generate([3] * self.LIMIT, greedy(0)).token_ids == []
        with pytest.raises(ContextOverflowError):
            small.generate([3] * (self.LIMIT + 1), greedy(0))

    def test_score_takes_a_full_context_and_no_more(self, small: Engine) -> None:
        assert len(small.score([3] * self.LIMIT)) == self.LIMIT
        with pytest.raises(ContextOverflowError, match=rf"{self.LIMIT + 1} tokens.*{self.LIMIT}"):
            small.score([3] * (self.LIMIT + 1))


def finish(engine: Engine) -> None:
    engine.generate([80, 80, 80, 2], sampled(9, max_tokens=30))


def abandon(engine: Engine) -> None:
    stream = engine.stream([80, 80, 80, 2], sampled(9))
    for _ in range(3):
        next(stream)
    stream.close()


def forget(engine: Engine) -> None:
    """Start a request and never close it."""
    engine.unfinished = engine.stream([80, 2], sampled(9))
    next(engine.unfinished)


def score(engine: Engine) -> None:
    engine.score([80, 80, 2, 5])


def be_refused(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError):
        engine.generate([999])


class TestOneAfterAnother:
    @pytest.mark.parametrize("earlier", [finish, abandon, forget, score, be_refused])
    def test_a_request_does_not_depend_on_what_came_before(
        self, engine: Engine, engines: Engines, earlier: Callable[[Engine], None]
    ) -> None:
        for params in (greedy(logprobs=3), sampled(4, logprobs=3)):
            alone = engines.fresh(getattr(engine.draft, "name", "none")).generate(PROMPT, params)
            earlier(engine)
            assert comparable(engine.generate(PROMPT, params)) == comparable(alone)

    @pytest.mark.parametrize("first_starts", ["before", "between", "after"])
    def test_a_second_request_ends_the_first_and_is_right(
        self, engine: Engine, first_starts: str
    ) -> None:
        """Also when the first stream was made and asks for its first event too late."""
        alone = engine.generate(PROMPT, greedy()).token_ids
        first = engine.stream([80, 2, 80], greedy())
        if first_starts == "before":
            next(first)
        second = engine.stream(PROMPT, greedy())
        ids: list[int] = []
        if first_starts != "after":
            ids += [*next(second).token_ids, *next(second).token_ids]
        with pytest.raises(InvalidRequestError, match="another request was started"):
            next(first)
        ids += [token for event in second for token in event.token_ids]
        assert ids == alone

    def test_scoring_ends_a_request(self, engine: Engine) -> None:
        stream: Iterator[Any] = engine.stream(PROMPT, greedy())
        next(stream)
        engine.score(PROMPT)
        with pytest.raises(InvalidRequestError, match="one request at a time"):
            next(stream)

    def test_a_refused_request_ends_nothing(self, engine: Engine) -> None:
        alone = engine.generate(PROMPT, greedy()).token_ids
        stream = engine.stream(PROMPT, greedy())
        ids = [*next(stream).token_ids]
        be_refused(engine)
        assert ids + [token for event in stream for token in event.token_ids] == alone


class TestPrompt:
    @pytest.mark.parametrize(
        ("prompt", "message"),
        [
            ([], "prompt is empty"),
            (torch.empty(0, dtype=torch.long), "prompt is empty"),
            ([5, True], "prompt id 1 is True; expected an id of the vocabulary, 0 to 150"),
            ([5, 1.0], r"prompt id 1 is 1\.0; expected"),
            ([5, -1], "prompt id 1 is -1; expected .* 0 to 150"),
            ([151], "prompt id 0 is 151; expected .* 0 to 150"),
            ([5, None], "prompt id 1 is None"),
            (["5"], "prompt id 0 is '5'"),
            ([[5, 6]], r"prompt id 0 is \[5, 6\]"),
            ("hello", "prompt is a str; expected a list of token ids"),
            (b"hello", "prompt is a bytes"),
            ({"input_ids": [5]}, "prompt is a dict"),
            (5, "prompt is a int"),
            (None, "prompt is a NoneType"),
            (torch.tensor([[5, 6]]), r"prompt id 0 is \[5, 6\]"),
            (torch.tensor([5.0]), r"prompt id 0 is 5\.0"),
            (torch.tensor([True]), "prompt id 0 is True"),
            (torch.tensor(5), "prompt is a Tensor"),
            (np.array([[5, 6]]), "prompt id 0 is array"),
            (np.array([5.0]), r"prompt id 0 is np\.float64"),
            (np.array([True]), "prompt id 0 is np.True_"),
        ],
        ids=repr,
    )
    def test_a_wrong_prompt_is_named(self, engine: Engine, prompt: Any, message: str) -> None:
        for method in (engine.generate, engine.stream, engine.score):
            with pytest.raises(InvalidRequestError, match=message):
                method(prompt)

    @pytest.mark.parametrize(
        "form",
        [torch.tensor, tuple, iter, np.array, lambda ids: np.array(ids, dtype=np.uint8)],
        ids=["tensor", "tuple", "iterator", "array", "bytes array"],
    )
    def test_ids_come_in_any_container(self, engine: Engine, form: Callable[..., Any]) -> None:
        expected = engine.generate(PROMPT, greedy(8))
        result = engine.generate(form(PROMPT), greedy(8))
        assert result.token_ids == expected.token_ids
        assert [(type(one), one) for one in result.prompt_ids or []] == [(int, i) for i in PROMPT]
        assert torch.equal(engine.score(form(PROMPT)), engine.score(PROMPT))


def head(engine: Engine) -> torch.Tensor:
    assert isinstance(engine.executor, ReferenceExecutor)
    return engine.executor.weights.lm_head


class TestNonFinite:
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize("draft", DRAFTS)
    def test_a_broken_head_is_an_error_and_a_healed_one_works(
        self, engines: Engines, draft: str, temperature: float, value: float
    ) -> None:
        engine = engines.fresh(draft)
        params = greedy(temperature=temperature, seed=1, logprobs=1)
        before = comparable(engine.generate(PROMPT, params))
        row = head(engine)[7].clone()
        head(engine)[7] = value
        with pytest.raises(NonFiniteLogitsError, match="finite"):
            engine.generate(PROMPT, params)
        head(engine)[7] = row
        assert comparable(engine.generate(PROMPT, params)) == before

    @pytest.mark.parametrize("draft", DRAFTS)
    def test_what_one_request_broke_the_next_does_not_see(
        self, engines: Engines, draft: str
    ) -> None:
        """One embedding row is NaN, and fills the caches of a prompt that holds it."""
        engine = engines.fresh(draft)
        assert isinstance(engine.executor, ReferenceExecutor)
        params = greedy(logprobs=1)
        before = comparable(engine.generate(PROMPT, params))
        unused = next(i for i in range(1, 151) if i not in {*PROMPT, *before[0]})
        healthy = engines.fresh(draft)
        engine.executor.weights.embed_tokens[unused] = float("nan")
        with pytest.raises(NonFiniteLogitsError):
            engine.generate([unused] * 60, params)
        assert comparable(healthy.generate(PROMPT, params)) == before
        assert comparable(engine.generate(PROMPT, params)) == before
