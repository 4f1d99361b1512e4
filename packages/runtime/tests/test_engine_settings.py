"""Settings of an engine and parameters of a request: each has its effect, or is refused by name."""

import re
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bytebound import (
    CudaUnavailableError,
    Engine,
    Grammar,
    InvalidRequestError,
    InvalidSettingError,
    Proposal,
    SamplingParams,
)
from bytebound.sampling import Sampler
from bytebound.settings import check_max_len

from .checkpoints import random_checkpoint, write_json

SHAPE = {
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "vocab_size": 360,
    "max_position_embeddings": 256,
}
EOS = 359
PROMPT = [5, 9, 17, 80, 33, 5, 9]
UNUSED = 358  # an id that the answers below do not hold


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    folder = random_checkpoint(tmp_path_factory.mktemp("model"), seed=6, **SHAPE).folder
    shutil.copytree(tokenizer_folder, folder, dirs_exist_ok=True)
    return folder


def load(folder: Path, **settings: Any) -> Engine:
    return Engine.from_pretrained(folder, **{"device": "cpu", "draft": "none", **settings})


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return load(folder, draft="mtp", num_draft_tokens=2)


class TestSettings:
    @pytest.mark.parametrize(
        ("name", "value", "way_out"),
        [
            ("backend", "gpu", "one of auto, reference, cuda"),
            ("backend", "refrence", "did you mean 'reference'?"),
            ("backend", None, "one of auto"),
            ("draft", "MTP", "one of none, mtp, ngram"),
            ("draft", "ngrams", "did you mean 'ngram'?"),
            ("draft", None, "one of none, mtp, ngram"),
            ("draft", 4, "or an object that has name, begin, observe, propose"),
            ("dtype", "float16", "one of float32, bfloat16"),
            ("dtype", "float", "did you mean 'float32'?"),
            ("dtype", torch.int8, "one of float32, bfloat16"),
            ("device", "tpu", "expected 'cpu', 'cuda'"),
            ("device", "meta", "expected 'cpu', 'cuda'"),
            ("device", [0], "expected 'cpu', 'cuda'"),
            ("kv_dtype", "int8", "use 'auto'"),
            ("kv_dtype", None, "use 'auto'"),
            ("draft_vocab", "ids.txt", "use None"),
            *(("num_draft_tokens", value, "from 1 to 8") for value in (0, 9, -1, 2.0, True, "4")),
            *(("max_len", value, "from 1 to 256") for value in (0, -1, 257, 8192.0, True, "64")),
            *(("seed", value, "a whole number") for value in (1.5, "1", True, 2**64)),
        ],
        ids=repr,
    )
    def test_an_impossible_setting_is_named_with_its_value_and_the_way_out(
        self, folder: Path, name: str, value: Any, way_out: str
    ) -> None:
        shown = getattr(value, "removeprefix", lambda _: value)("torch.")
        shown = "int8" if isinstance(value, torch.dtype) else shown
        expected = rf"^{name}={re.escape(repr(shown))}: .*{re.escape(way_out)}"
        with pytest.raises(InvalidSettingError, match=expected):
            load(folder, **{name: value})

    @pytest.mark.parametrize("setting", [{"backend": "cuda"}, {"device": "cuda:99"}], ids=str)
    def test_what_needs_cuda_says_what_works_without(
        self, folder: Path, setting: dict[str, str]
    ) -> None:
        with pytest.raises(CudaUnavailableError, match=r"use (backend='reference'|'cpu')"):
            load(folder, **setting)

    def test_an_unknown_setting_is_refused(self, folder: Path) -> None:
        with pytest.raises(TypeError, match="draft_tokens"):
            load(folder, draft_tokens=4)

    def test_settings_are_checked_before_a_weight_is_read(
        self, folder: Path, tmp_path: Path
    ) -> None:
        shutil.copy(folder / "config.json", tmp_path)
        for setting in ({"max_len": 0}, {"dtype": "int4"}, {"seed": "a"}, {"draft": "x"}):
            with pytest.raises(InvalidSettingError):
                load(tmp_path, **setting)

    def test_the_default_context_is_capped_by_the_model(self, engine: Engine, folder: Path) -> None:
        assert engine.max_len == load(folder, max_len=None).max_len == 256
        longer = replace(engine.config, max_position_embeddings=100_000)
        assert check_max_len(None, longer) == 8192

    @pytest.mark.parametrize("source", ["config", "generation config", "tokenizer"])
    def test_end_ids_of_every_source_end_the_answer(
        self, folder: Path, tmp_path: Path, source: str
    ) -> None:
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        write_json(tmp_path / "generation_config.json", {"eos_token_id": [7, 8]})
        engine = load(tmp_path)
        eos = engine.tokenizer.encode("<|im_end|>", parse_control=True)
        for end in {"config": [EOS], "generation config": [7, 8], "tokenizer": eos}[source]:
            params = SamplingParams(max_tokens=3, logit_bias={end: 100})
            result = engine.generate(PROMPT, params)
            assert (result.token_ids, result.text, result.finish_reason) == ([end], "", "stop")


class TestDefaults:
    OWN = {  # noqa: RUF012
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
    }

    @pytest.fixture
    def defaults(self, folder: Path, tmp_path: Path) -> Callable[..., Engine]:
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)

        def with_generation_config(**values: Any) -> Engine:
            write_json(tmp_path / "generation_config.json", values)
            return load(tmp_path, seed=5)

        return with_generation_config

    def test_the_models_own_come_before_the_built_in(
        self, engine: Engine, defaults: Callable[..., Engine]
    ) -> None:
        assert engine.default_params() == SamplingParams()
        own = {name: value for name, value in self.OWN.items() if name != "do_sample"}
        assert defaults(**self.OWN).default_params() == SamplingParams(**own)

    def test_the_requests_come_first_and_an_explicit_0_counts(
        self, defaults: Callable[..., Engine]
    ) -> None:
        given = {"temperature": 0, "top_k": 0, "min_p": 0.0, "top_p": 1, "repetition_penalty": 1}
        engine = defaults(**self.OWN)
        assert engine.default_params(**given) == SamplingParams(**given)
        assert engine.default_params(temperature=0).top_k == 20
        unset = dict.fromkeys(given)
        assert engine.default_params(**unset, max_tokens=7) == engine.default_params(max_tokens=7)

    def test_a_model_that_does_not_sample_is_greedy(self, defaults: Callable[..., Engine]) -> None:
        params = defaults(**{**self.OWN, "do_sample": False}).default_params()
        assert params == SamplingParams(repetition_penalty=1.1)

    def test_a_model_that_samples_without_a_temperature_has_1(
        self, defaults: Callable[..., Engine]
    ) -> None:
        engine = defaults(do_sample=True, top_k=20)
        assert engine.default_params() == SamplingParams(temperature=1.0, top_k=20)
        assert engine.default_params(temperature=0.0).greedy

    def test_a_request_without_parameters_uses_them(self, defaults: Callable[..., Engine]) -> None:
        engine = defaults(do_sample=True, temperature=3.0)
        ids = engine.generate(PROMPT).token_ids
        assert ids == engine.generate(PROMPT, SamplingParams(temperature=3.0)).token_ids
        assert ids != engine.generate(PROMPT, SamplingParams()).token_ids

    def test_a_wrong_override_is_refused(self, engine: Engine) -> None:
        with pytest.raises(InvalidRequestError, match=r"^top_p: got 2"):
            engine.default_params(top_p=2)
        with pytest.raises(TypeError, match="topp"):
            engine.default_params(topp=0.5)


class OwnDraft:
    """Whatever ``make(count, sampler)`` returns."""

    name = "own"

    def __init__(self, make: Callable[[int, Sampler], Proposal]) -> None:
        self.make = make

    def begin(self, first_id: int) -> None:
        self.ids = [first_id]

    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        assert hidden is not None
        assert hidden.shape == (len(next_ids), 64)
        self.ids += next_ids

    def propose(self, count: int, sampler: Sampler) -> Proposal:
        assert self.ids[: len(PROMPT)] == PROMPT
        return self.make(count, sampler)


def stated(*shape: int, value: float = 1 / 360) -> torch.Tensor:
    return torch.full(shape, value, dtype=torch.float64)


class TestDrafts:
    @pytest.mark.parametrize(
        "make",
        [
            lambda count, sampler: Proposal(()),
            lambda count, sampler: Proposal((0,) * count),
            lambda count, sampler: Proposal(tuple(range(40, 40 + count))),
            lambda count, sampler: Proposal((359,), stated(1, 360)),
        ],
        ids=["nothing", "always 0", "garbage", "one with probs"],
    )
    def test_a_draft_of_ones_own_changes_no_greedy_token(
        self, folder: Path, engine: Engine, make: Callable[[int, Sampler], Proposal]
    ) -> None:
        params = SamplingParams(max_tokens=30, logprobs=1)
        result = load(folder, draft=OwnDraft(make)).generate(PROMPT, params)
        expected = load(folder).generate(PROMPT, params)
        assert (result.token_ids, result.logprobs) == (expected.token_ids, expected.logprobs)

    @pytest.mark.parametrize(
        ("proposal", "message"),
        [
            (Proposal((1,) * 5), "5 ids, expected at most 4"),
            (Proposal((1,) * 20), "20 ids, expected at most 4"),
            (Proposal((1, 360)), "id 360, expected 0 to 359"),
            (Proposal((-1,)), "id -1, expected 0 to 359"),
            (Proposal((True,)), "id True"),
            (Proposal((1.0,)), r"id 1\.0"),
            (Proposal((1, 2), stated(1, 360)), r"probs of shape \(1, 360\), expected \(2, 360\)"),
            (Proposal((1,), stated(1, 300)), r"probs of shape \(1, 300\), expected \(1, 360\)"),
            (Proposal((1,), stated(360)), r"probs of shape \(360,\), expected \(1, 360\)"),
            (Proposal((1,), stated(1, 360, value=0.0)), r"id 1 with probability 0\.0"),
            (Proposal((1,), stated(1, 360, value=np.nan)), "id 1 with probability nan"),
            (Proposal((1,), stated(1, 360, value=0.5)), r"probs with sums \[180\.0\]"),
        ],
        ids=[
            "5 ids",
            "20 ids",
            "id 360",
            "id -1",
            "id True",
            "id 1.0",
            "probs for 1 of 2",
            "probs of another vocabulary",
            "probs without rows",
            "probability 0",
            "probability NaN",
            "sum 180",
        ],
    )
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_proposal_against_the_contract_is_an_error_that_names_the_draft(
        self, folder: Path, proposal: Proposal, message: str, temperature: float
    ) -> None:
        good = True

        def make(count: int, sampler: Sampler) -> Proposal:
            return Proposal((1,)) if good else proposal

        engine = load(folder, draft=OwnDraft(make))
        params = SamplingParams(max_tokens=12, temperature=temperature, seed=1)
        before = engine.generate(PROMPT, params).token_ids
        good = False
        with pytest.raises(InvalidSettingError, match=rf"^draft 'own' proposed {message}"):
            engine.generate(PROMPT, params)
        good = True
        assert engine.generate(PROMPT, params).token_ids == before

    def test_mtp_drafts_when_asked_for(self, engine: Engine) -> None:
        stats = engine.generate(PROMPT, SamplingParams(max_tokens=10)).stats
        assert stats.drafted >= stats.steps

    def test_a_checkpoint_without_mtp_warns_and_runs(self, tmp_path: Path) -> None:
        folder = random_checkpoint(tmp_path, seed=6, mtp=False, **SHAPE).folder
        with pytest.warns(UserWarning, match=r"no MTP head.*draft='none'"):
            engine = load(folder, draft="mtp")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            silent = load(folder, draft="none")
        params = SamplingParams(max_tokens=10)
        result = engine.generate(PROMPT, params)
        assert result.token_ids == silent.generate(PROMPT, params).token_ids
        assert result.stats.drafted == 0


HOT = {"temperature": 3.0, "seed": 1}
ENDING = {"logit_bias": {EOS: 100}}

# Parameter: what both requests share, a value that changes the answer, and one that does not.
EFFECTS: dict[str, list[tuple[dict[str, Any], Any, Any]]] = {
    "max_tokens": [({}, 7, 20), (ENDING, 0, 5)],
    "temperature": [({"seed": 1}, 3.0, 1e-9), ({"seed": 1, "temperature": 1.0}, 3.0, 1)],
    "top_p": [(HOT, 0.5, 1), ({}, None, 0.1)],
    "top_k": [(HOT, 5, 360), (HOT, 1, 1000), ({}, None, 2)],
    "min_p": [(HOT, 0.3, 1e-300), ({}, None, 0.9)],
    "repetition_penalty": [({}, 2.0, 1), (HOT, 1.5, 1.0)],
    "presence_penalty": [(HOT, 2.0, 0), ({"max_tokens": 1}, None, 2.0)],
    "frequency_penalty": [(HOT, 2.0, 0), ({"max_tokens": 1}, None, 2.0)],
    "logit_bias": [({}, {UNUSED: 100}, {UNUSED: -100}), (HOT, {UNUSED: 50}, {UNUSED: 0})],
    "seed": [(HOT, 2, 1), ({"temperature": 1.0, "seed": 1}, 2, 1), ({}, None, 2)],
    "stop": [({}, "$first", "never said"), ({}, ["$first"], [])],
    "stop_token_ids": [({}, ["$first"], [UNUSED])],
    "ignore_eos": [(ENDING, True, False), ({}, None, True)],
    "min_tokens": [(ENDING, 5, 0), ({}, None, 5)],
    "logprobs": [({}, 2, None)],
    "grammar": [({}, Grammar.json_object(), None)],
}


class TestParameters:
    """Greedy requests where nothing else is said, on an engine that drafts."""

    def test_every_parameter_is_tried(self) -> None:
        assert set(EFFECTS) == {field.name for field in fields(SamplingParams)}

    @pytest.mark.parametrize(
        ("name", "shared", "other", "same"),
        [(name, *case) for name, cases in EFFECTS.items() for case in cases],
        ids=repr,
    )
    def test_one_value_changes_the_answer_and_one_does_not(
        self, engine: Engine, name: str, shared: dict[str, Any], other: Any, same: Any
    ) -> None:
        base = {"max_tokens": 20, **shared}
        answer = engine.generate(PROMPT, SamplingParams(**base))

        def ask(value: Any) -> tuple[Any, ...]:
            if "$first" in (value if isinstance(value, (str, list)) else ()):
                token = answer.token_ids[4]
                given = token if name == "stop_token_ids" else engine.tokenizer.decode([token])
                value = [given]
            result = engine.generate(PROMPT, SamplingParams(**{**base, name: value}))
            return result.token_ids, result.text, result.logprobs

        expected = (answer.token_ids, answer.text, answer.logprobs)
        assert ask(same) == expected
        if other is not None:
            assert ask(other) != expected

    def test_greedy_is_the_same_ten_times_with_others_in_between(self, engine: Engine) -> None:
        params = SamplingParams(max_tokens=12)
        runs = set()
        for seed in range(10):
            runs.add(tuple(engine.generate(PROMPT, params).token_ids))
            hot = SamplingParams(max_tokens=5, temperature=3.0, seed=seed)
            engine.generate(PROMPT[: 1 + seed % 5], hot)
        assert len(runs) == 1
