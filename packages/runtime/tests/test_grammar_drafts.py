"""Answers under a grammar are the same whatever is guessed: greedy, sampled, on either backend.

Drafts propose with the grammar (the MTP head), without it (n-grams, a draft that knows nothing of
it), right and wrong.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from bytebound import (
    Engine,
    Grammar,
    InvalidRequestError,
    Proposal,
    SamplingParams,
)
from bytebound.config import ModelConfig
from bytebound.constraint import Constraint
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.random_weights import random_weights
from bytebound.drafts import NgramDraft
from bytebound.executor import Observer
from bytebound.philox import Purpose
from bytebound.sampling import Sampler
from bytebound.text.tokenizer import Tokenizer

from .checkpoints import random_checkpoint
from .cuda_models import SHAPE, mtp_draft
from .emulated_kernels import emulate
from .grammar_runs import POINT, SHORT, CarelessDraft, SilentDraft, under
from .grammar_walks import PADDING, SCHEMAS, allowed_ids, compiler, end_of
from .test_sampling_distribution import SIGNIFICANCE, p_value

MODEL = {
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "max_position_embeddings": 512,
}


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path, tokenizer: Tokenizer
) -> Path:
    shape = {**MODEL, "vocab_size": tokenizer.vocab_size + PADDING}
    folder = random_checkpoint(tmp_path_factory.mktemp("model"), seed=8, **shape).folder
    shutil.copytree(tokenizer_folder, folder, dirs_exist_ok=True)
    return folder


def load(folder: Path, draft: Any = "none", count: int = 4) -> Engine:
    return Engine.from_pretrained(folder, device="cpu", draft=draft, num_draft_tokens=count)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Engine:
    return load(folder)


MODELLED = ("nested", "array", "enum", "reference", "tagged union", "types", "number", "draft 7")


class TestModels:
    @pytest.mark.parametrize("name", MODELLED)
    def test_greedy_output_with_drafts_is_plain_output(
        self, folder: Path, plain: Engine, name: str
    ) -> None:
        prompt = plain.tokenizer.encode("the quick brown fox")
        params = under(SCHEMAS[name], max_tokens=120)
        expected = plain.generate(prompt, params)
        if expected.finish_reason == "stop":
            jsonschema.validate(json.loads(expected.text), SCHEMAS[name])
        vocab_size = plain.executor.vocab_size
        careless = [CarelessDraft(vocab_size, drawn=drawn) for drawn in (False, True)]
        for draft, count in [("mtp", 1), ("mtp", 4), ("mtp", 8), ("ngram", 5)]:
            result = load(folder, draft, count).generate(prompt, params)
            assert result.token_ids == expected.token_ids, draft
            assert result.finish_reason == expected.finish_reason
            assert draft == "ngram" or result.stats.drafted > 0
        for own in careless:
            result = load(folder, own).generate(prompt, params)
            assert result.token_ids == expected.token_ids

    @pytest.mark.parametrize("thinking", [True, False])
    def test_a_trained_model_thinks_and_answers_alike_with_drafts(self, thinking: bool) -> None:
        schema = {**POINT, "properties": {**POINT["properties"], "on": SCHEMAS["lengths"]}}
        question = [{"role": "user", "content": "What is 2 + 3?"}]
        answers = set()
        for draft in ("none", "mtp", "ngram"):
            engine = Engine.from_pretrained("tiny", device="cpu", draft=draft, max_len=512)
            prompt = engine.tokenizer.apply_chat_template(question, enable_thinking=thinking)
            result = engine.generate(prompt, under(schema))
            assert result.finish_reason == "stop"
            thought, _, answer = result.text.rpartition("</think>")
            assert bool(thought) == thinking
            jsonschema.validate(json.loads(answer), schema)
            assert draft != "mtp" or result.stats.accepted > 0
            answers.add(tuple(result.token_ids))
        assert len(answers) == 1

    def test_guesses_of_the_head_keep_to_the_grammar(self, folder: Path, plain: Engine) -> None:
        """All of them: else each would be refused behind the first that leaves the form."""
        engine = load(folder, "mtp", 4)
        decoder, seen = engine.decoder, 0
        real = decoder.draft.propose  # type: ignore[attr-defined]

        def watched(count: int, sampler: Sampler) -> Proposal:
            nonlocal seen
            proposal: Proposal = real(count, sampler)
            assert sampler.constraint is not None
            assert sampler.constraint.admitted(proposal.ids) == len(proposal.ids)
            seen += len(proposal.ids)
            return proposal

        decoder.draft.propose = watched  # type: ignore[attr-defined]
        for temperature in (0.0, 1.0):
            params = under(SCHEMAS["tagged union"], temperature=temperature, seed=1, max_tokens=80)
            engine.generate([1, 2, 3], params)
        assert seen > 40

    @pytest.mark.parametrize("draft", ["none", "mtp", "ngram"])
    def test_sampled_answers_are_valid_and_repeat_with_their_seed(
        self, folder: Path, draft: str
    ) -> None:
        engine = load(folder, draft)
        texts = set()
        for seed in range(6):
            params = under(POINT, temperature=1.2, seed=seed)
            result = engine.generate([1, 2, 3], params)
            assert result.finish_reason == "stop"
            jsonschema.validate(json.loads(result.text), POINT)
            engine.generate([1, 2], SamplingParams(max_tokens=3))
            assert engine.generate([1, 2, 3], params).token_ids == result.token_ids
            texts.add(result.text)
        assert len(texts) > 3

    def test_a_request_does_not_depend_on_the_grammars_before(
        self, folder: Path, plain: Engine
    ) -> None:
        names = ["nested", "array", None, "enum", "array", "nested", None, "types"]
        for name in names:
            grammar = None if name is None else Grammar.json_schema(SCHEMAS[name])
            params = SamplingParams(max_tokens=60, grammar=grammar)
            fresh = load(folder).generate([5, 6, 7], params)
            assert plain.generate([5, 6, 7], params).token_ids == fresh.token_ids

    def test_logprobs_are_the_models_own(self, plain: Engine) -> None:
        """Not renormalised over what the grammar allows: the likeliest may be forbidden."""
        prompt = plain.tokenizer.encode("the quick")
        result = plain.generate(prompt, under(POINT, logprobs=3))
        assert result.logprobs is not None
        rows = torch.log_softmax(plain.score([*prompt, *result.token_ids]).double(), -1)
        forbidden = 0
        for i, item in enumerate(result.logprobs):
            row = rows[len(prompt) + i - 1]
            assert item.logprob == pytest.approx(float(row[item.token_id]), abs=1e-4)
            assert item.top[0][0] == int(row.argmax())
            forbidden += item.top[0][0] != item.token_id
        assert forbidden > 0

    def test_penalties_and_bias_apply_before_the_mask(self, plain: Engine) -> None:
        (true,) = {token for token in range(300) if plain.tokenizer.decode([token]) == "t"}
        params = under(SCHEMAS["types"] | {"type": "boolean"}, logit_bias={true: 100})
        assert json.loads(plain.generate([1], params).text) is True
        params = under({"type": "boolean"}, logit_bias={true: -100}, presence_penalty=1.0)
        assert json.loads(plain.generate([1], params).text) is False

    def test_a_dead_end_is_an_error_and_the_next_request_works(self, plain: Engine) -> None:
        """Every id that could close the string is banned."""
        tokenizer = plain.tokenizer
        closing = {i for i in range(tokenizer.vocab_size) if '"' in tokenizer.decode([i])}
        good = under({"type": "null"})
        before = plain.generate([1, 2], good)
        bad = under({"const": "ab"}, logit_bias=dict.fromkeys(closing, -100))
        with pytest.raises(InvalidRequestError, match=r"no token is left .* logit_bias"):
            plain.generate([1, 2], bad)
        assert plain.generate([1, 2], good).token_ids == before.token_ids
        assert json.loads(before.text) is None


class TestLookAhead:
    def constraint(self, tokenizer: Tokenizer) -> Constraint:
        return compiler(tokenizer).constraint(Grammar.json_schema(POINT), [1], [end_of(tokenizer)])

    def test_it_is_what_going_there_would_show_and_leaves_no_trace(
        self, tokenizer: Tokenizer
    ) -> None:
        ids = [*tokenizer.encode('{"x": 1, "on": true}')]
        ahead = self.constraint(tokenizer)
        for start in range(len(ids)):
            for count in range(len(ids) - start):
                there = self.constraint(tokenizer)
                for token in ids[: start + count]:
                    there.append(token)
                assert allowed_ids(ahead, ids[start : start + count]) == allowed_ids(there)
            ahead.append(ids[start])

    def test_guesses_are_admitted_up_to_the_first_that_is_not(self, tokenizer: Tokenizer) -> None:
        constraint, end = self.constraint(tokenizer), end_of(tokenizer)
        good = tokenizer.encode('{"x": 1, "on": true}')
        (bad,) = tokenizer.encode("?")
        for count in range(len(good)):
            assert constraint.admitted([*good[:count], bad, *good[count:]]) == count
            assert constraint.allowed([*good[:count], bad]) is None
            assert constraint.admitted([*good[:count], end]) == count
        assert constraint.admitted([*good, end, end]) == len(good) + 1
        assert constraint.allowed([*good, end]) is None
        assert allowed_ids(constraint, good) == [end]

    def test_a_token_against_the_grammar_is_a_bug_that_shows(self, tokenizer: Tokenizer) -> None:
        with pytest.raises(RuntimeError, match="against the grammar"):
            self.constraint(tokenizer).append(tokenizer.encode("x")[0])


class TableExecutor:
    """Logits that depend on the last id alone."""

    last_hidden: torch.Tensor | None = None
    prefill_chunk, prefill_floor, snapshot_bytes, epoch, max_len = 512, 32, 0, 0, 64

    def __init__(self, table: torch.Tensor) -> None:
        self.table, self.vocab_size, self.position = table, table.shape[1], 0

    def reset(self) -> None:
        self.position = 0
        self.epoch += 1

    def prefill(self, ids: Sequence[int], observer: Observer | None = None) -> torch.Tensor:
        self.position += len(ids)
        return self.table[ids[-1]]

    def verify(self, ids: Sequence[int]) -> torch.Tensor:
        return self.table[list(ids)]

    def commit(self, count: int) -> None:
        self.position += count


class HeldDraft:
    """Draws its guesses from another table, under the grammar, as the MTP head does."""

    name = "held"

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def begin(self, first_id: int) -> None:
        self.position, self.last = 1, first_id

    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        self.position += len(next_ids)
        self.last = next_ids[-1]

    def propose(self, count: int, sampler: Sampler) -> Proposal:
        ids, probs = list[int](), list[torch.Tensor]()
        for depth in range(count):
            chances = sampler.draft_probs(self.table[ids[-1] if ids else self.last], ids)
            if chances is None:
                break
            probs.append(chances)
            ids.append(sampler.draw(chances, self.position + depth, Purpose.DRAFT))
        return Proposal(tuple(ids), torch.stack(probs) if probs else None)


CHOICES = {"enum": ["the fox", "the dog", "a", 7]}


class TestDistribution:
    """Sampling with drafts follows the target's own distribution under the grammar."""

    PROMPT = (0,)

    def paths(
        self, table: torch.Tensor, constraint: Constraint, end: int, ids: tuple[int, ...] = ()
    ) -> Iterator[tuple[tuple[int, ...], float]]:
        """Every answer with its exact probability: a softmax over what is allowed, each time."""
        if ids[-1:] == (end,):
            yield ids, 1.0
            return
        allowed = allowed_ids(constraint, ids)
        row = table[ids[-1] if ids else self.PROMPT[-1]].double()[allowed]
        for token, chance in zip(allowed, torch.softmax(row, 0).tolist(), strict=True):
            for path, rest in self.paths(table, constraint, end, (*ids, token)):
                yield path, chance * rest

    @pytest.mark.parametrize("kind", ["silent", "held", "drawn", "picked"])
    def test_it_is_the_softmax_over_what_is_allowed(self, tokenizer: Tokenizer, kind: str) -> None:
        end, vocab_size = end_of(tokenizer), tokenizer.vocab_size
        generator = torch.Generator().manual_seed(2)
        table = torch.randn(vocab_size, vocab_size, generator=generator)
        belief = table + torch.randn(vocab_size, vocab_size, generator=generator)
        draft = {
            "silent": SilentDraft(vocab_size, drawn=False),
            "held": HeldDraft(belief),
            "drawn": CarelessDraft(vocab_size, drawn=True),
            "picked": CarelessDraft(vocab_size, drawn=False),
        }[kind]
        executor: Any = TableExecutor(table)
        engine = Engine(
            executor, draft=draft, num_draft_tokens=3, tokenizer=tokenizer, end_ids=[end]
        )
        grammar = Grammar.json_schema(CHOICES)
        constraint = engine.grammars.constraint(grammar, self.PROMPT, [end])
        exact = dict(self.paths(table, constraint, end))
        assert sum(exact.values()) == pytest.approx(1)
        assert len(exact) > 20
        place = {path: i for i, path in enumerate(exact)}
        counts = torch.zeros(len(exact), dtype=torch.float64)
        stood = 0
        for seed in range(1500):
            params = under(CHOICES, temperature=1.0, seed=seed)
            result = engine.generate(self.PROMPT, params)
            counts[place[tuple(result.token_ids)]] += 1
            stood += result.stats.accepted
        expected = torch.tensor(list(exact.values()), dtype=torch.float64)
        assert p_value(counts, expected) > SIGNIFICANCE
        assert stood > 500 or kind != "held"
        wrong = expected.sqrt() / expected.sqrt().sum()
        assert p_value(counts, wrong) < 1e-6


class TestCudaBackend:
    """Its sampler on the device knows no grammar: such a request is the host loop's."""

    @pytest.fixture
    def executor(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CudaExecutor:
        emulate(monkeypatch)
        config = ModelConfig.from_folder(random_checkpoint(tmp_path, **SHAPE).folder)
        weights = random_weights(config, dtype=torch.float16, device=torch.device("cpu"), seed=5)
        return CudaExecutor(weights, config, max_len=256)

    def engine(self, executor: CudaExecutor, tokenizer: Tokenizer, draft: str) -> Engine:
        made = {"none": None, "mtp": mtp_draft(executor), "ngram": NgramDraft()}[draft]
        return Engine(
            executor,
            draft=made,
            decoder=CudaDecoder(executor, made, 4),
            tokenizer=tokenizer,
            config=executor.config,
            end_ids=[end_of(tokenizer)],
        )

    def test_drafts_change_no_token_and_other_requests_stay_on_the_device(
        self, executor: CudaExecutor, tokenizer: Tokenizer
    ) -> None:
        prompt, free = tokenizer.encode("the fox"), SamplingParams(max_tokens=8)
        schema = {**POINT, "properties": {**POINT["properties"], "on": SHORT}}
        answers, others = set(), set()
        for draft in ("none", "mtp", "ngram"):
            engine = self.engine(executor, tokenizer, draft)
            others.add(tuple(engine.generate(prompt, free).token_ids))
            assert engine.decoder._sampler is not None  # type: ignore[attr-defined]
            result = engine.generate(prompt, under(schema, max_tokens=150))
            assert engine.decoder._sampler is None  # type: ignore[attr-defined]
            assert result.finish_reason == "stop"
            jsonschema.validate(json.loads(result.text), schema)
            assert draft != "mtp" or result.stats.drafted > 0
            answers.add(tuple(result.token_ids))
            others.add(tuple(engine.generate(prompt, free).token_ids))
        assert len(answers) == len(others) == 1

    def test_sampled_answers_repeat(self, executor: CudaExecutor, tokenizer: Tokenizer) -> None:
        engine = self.engine(executor, tokenizer, "mtp")
        for seed in range(4):
            params = under(POINT, temperature=1.0, seed=seed)
            result = engine.generate([5, 6], params)
            jsonschema.validate(json.loads(result.text), POINT)
            assert engine.generate([5, 6], params).token_ids == result.token_ids
