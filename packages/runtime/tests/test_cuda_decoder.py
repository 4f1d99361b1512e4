"""The decode loop on the device against the loop on the host, without a GPU: the same tokens."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bytebound import (
    Engine,
    InvalidSettingError,
    NonFiniteLogitsError,
    SamplingParams,
    StepTimeoutError,
)
from bytebound.config import ModelConfig
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.random_weights import random_weights
from bytebound.cuda.sampling import LIST_SIZE, MAX_LOGPROBS
from bytebound.decoder import HostDecoder
from bytebound.drafts import Draft, NgramDraft, Proposal

from .checkpoints import random_checkpoint
from .cuda_models import REQUESTS, SHAPE, WrongDraft, mtp_draft, some_ids
from .emulated_kernels import emulate
from .test_watchdog import FakeEvent, FakeTime, watchdog

MAX_LEN = 128
DRAFTS = ("none", "mtp", "ngram", "wrong", "drawn")
PROMPT = some_ids(9)


class DrawnDraft(WrongDraft):
    """Guesses that were drawn from a distribution, which it hands over."""

    name = "drawn"

    def propose(self, count: int, sampler: object) -> Proposal:
        count = self.choose.randint(0, count)
        probs = torch.full((count, SHAPE["vocab_size"]), 1 / SHAPE["vocab_size"]).double()
        ids = tuple(self.choose.randrange(SHAPE["vocab_size"]) for _ in range(count))
        return Proposal(ids, probs if count else None)


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CudaExecutor:
    emulate(monkeypatch)
    config = ModelConfig.from_folder(random_checkpoint(tmp_path, **SHAPE).folder)
    weights = random_weights(config, dtype=torch.float16, device=torch.device("cpu"), seed=5)
    return CudaExecutor(weights, config, max_len=MAX_LEN)


def make_draft(name: str, executor: CudaExecutor) -> Draft | None:
    made = {"ngram": NgramDraft, "wrong": WrongDraft, "drawn": DrawnDraft}
    if name == "mtp":
        return mtp_draft(executor)
    return made[name]() if name in made else None


def engine(executor: CudaExecutor, draft: str, count: int, *, on_device: bool) -> Engine:
    made = make_draft(draft, executor)
    kind = CudaDecoder if on_device else HostDecoder
    decoder = kind(executor, made, count)
    return Engine(executor, draft=made, decoder=decoder, config=executor.config, end_ids=[3])


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("kind", REQUESTS)
def test_tokens_are_those_of_the_host(executor: CudaExecutor, kind: str, draft: str) -> None:
    params = SamplingParams(**{"max_tokens": 40, "ignore_eos": True, **REQUESTS[kind]})
    host = engine(executor, draft, 3, on_device=False).generate(PROMPT, params)
    own = engine(executor, draft, 3, on_device=True)
    for _ in range(2):
        result = own.generate(PROMPT, params)
        # Near the end the host guesses less, and so draws with other numbers of the same seed.
        alike = 40 - 4 if params.temperature and draft == "mtp" else 40
        assert result.token_ids[:alike] == host.token_ids[:alike]
        assert len(result.token_ids) == len(host.token_ids) == 40
        assert result.finish_reason == host.finish_reason
        if alike == 40:
            assert result.stats.steps == host.stats.steps
            assert result.stats.accepted == host.stats.accepted
        assert (result.logprobs is None) == (params.logprobs is None)
        for got, wanted in list(zip(result.logprobs or (), host.logprobs or (), strict=True))[
            :alike
        ]:
            assert got.token_id == wanted.token_id
            assert [token for token, _ in got.top] == [token for token, _ in wanted.top]
            values = zip(got.top, wanted.top, strict=True)
            assert all(abs(a - b) < 1e-9 for (_, a), (_, b) in values)
            assert got.logprob == pytest.approx(wanted.logprob, abs=1e-9)
        own.generate(PROMPT[:3], SamplingParams(max_tokens=7, temperature=2.0, seed=1))


@pytest.mark.parametrize(
    "penalties",
    [{"presence_penalty": -2.0}, {"frequency_penalty": -2.0, "repetition_penalty": 1.3}],
    ids=["presence", "frequency"],
)
def test_penalties_count_what_a_reply_goes_on_from(
    executor: CudaExecutor, penalties: dict[str, float]
) -> None:
    params = SamplingParams(max_tokens=25, ignore_eos=True, **penalties)
    prompt = [*some_ids(10), *[7] * 20]
    found = {}
    for continues in (0, 20):
        for on_device in (False, True):
            events = engine(executor, "none", 1, on_device=on_device).stream(
                prompt, params, continues=continues
            )
            found[continues, on_device] = [i for event in events for i in event.token_ids]
        assert found[continues, True] == found[continues, False]
    assert found[20, True] != found[0, True]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_any_number_of_guesses(executor: CudaExecutor, count: int) -> None:
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    plain = engine(executor, "none", 1, on_device=True).generate(PROMPT, params).token_ids
    for draft in DRAFTS[1:]:
        result = engine(executor, draft, count, on_device=True).generate(PROMPT, params)
        assert result.token_ids == plain, draft


@pytest.mark.parametrize("on_device", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_may_ban_the_whole_draft_vocabulary(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, temperature: float, on_device: bool
) -> None:
    emulate(monkeypatch)
    config = ModelConfig.from_folder(random_checkpoint(tmp_path, **SHAPE).folder)
    ids = torch.tensor([300, 301], dtype=torch.int32)
    cpu = torch.device("cpu")
    weights = random_weights(config, dtype=torch.float16, device=cpu, draft_ids=ids)
    own = engine(CudaExecutor(weights, config, max_len=64), "mtp", 3, on_device=on_device)
    free = SamplingParams(max_tokens=12, temperature=temperature, seed=1, ignore_eos=True)
    wanted = own.generate(PROMPT, free)
    assert wanted.stats.drafted > 0
    banned = replace(free, logit_bias={300: -100.0, 301: -100.0})
    result = own.generate(PROMPT, banned)
    assert len(result.token_ids) == 12 and not {300, 301} & set(result.token_ids)
    assert result.stats.accepted == 0
    assert own.generate(PROMPT, free).token_ids == wanted.token_ids


def test_an_adaptive_depth_changes_no_token(executor: CudaExecutor) -> None:
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    plain = engine(executor, "none", 1, on_device=True).generate(PROMPT, params).token_ids
    made = make_draft("mtp", executor)
    decoder = CudaDecoder(executor, made, 5, adaptive_depth=True)
    own = Engine(executor, draft=made, decoder=decoder, config=executor.config)
    drawn = SamplingParams(max_tokens=60, ignore_eos=True, temperature=1.0, seed=4)
    result, texts = own.generate(PROMPT, params), [own.generate(PROMPT, drawn) for _ in range(2)]
    assert result.token_ids == plain
    # Noise predicts nothing: the depth falls to one guess a turn.
    assert result.stats.drafted < 3 * result.stats.steps
    assert texts[0].token_ids == texts[1].token_ids


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("limit", [0, 1, 2, 5, 11])
def test_it_ends_where_it_must(executor: CudaExecutor, draft: str, limit: int) -> None:
    own = engine(executor, draft, 3, on_device=True)
    long = own.generate(PROMPT, SamplingParams(max_tokens=30, ignore_eos=True)).token_ids
    cut = own.generate(PROMPT, SamplingParams(max_tokens=limit, ignore_eos=True))
    assert cut.token_ids == long[:limit] and cut.finish_reason == "length"
    stop = long[limit]
    stopped = own.generate(PROMPT, SamplingParams(max_tokens=30, stop_token_ids=[stop]))
    first = min(i for i, token in enumerate(long) if token in (3, stop))
    assert stopped.token_ids == long[: first + 1] and stopped.finish_reason == "stop"


@pytest.mark.parametrize("draft", ["none", "mtp", "ngram"])
def test_a_context_is_filled_to_its_end(executor: CudaExecutor, draft: str) -> None:
    prompt = some_ids(MAX_LEN - 20)
    own = engine(executor, draft, 7, on_device=True)
    result = own.generate(prompt, SamplingParams(max_tokens=100, ignore_eos=True))
    assert len(result.token_ids) == 20 and result.finish_reason == "length"
    host = engine(executor, draft, 7, on_device=False)
    wanted = host.generate(prompt, SamplingParams(max_tokens=100, ignore_eos=True))
    assert result.token_ids == wanted.token_ids


def test_an_abandoned_stream_leaves_no_trace(executor: CudaExecutor) -> None:
    own = engine(executor, "mtp", 3, on_device=True)
    params = SamplingParams(max_tokens=40, temperature=0.9, seed=4, ignore_eos=True)
    wanted = own.generate(PROMPT, params).token_ids
    choose = random.Random(0)
    for _ in range(3):
        stream = own.stream(some_ids(choose.randint(1, 30)), params)
        for _ in range(choose.randint(1, 4)):
            next(stream)
        stream.close()
        assert own.generate(PROMPT, params).token_ids == wanted


def test_what_the_device_cannot_take_is_decoded_by_the_host(executor: CudaExecutor) -> None:
    own = engine(executor, "mtp", 3, on_device=True)
    host = engine(executor, "mtp", 3, on_device=False)
    assert LIST_SIZE > SHAPE["vocab_size"] > MAX_LOGPROBS
    banned_but_two = dict.fromkeys((i for i in range(SHAPE["vocab_size"]) if i not in (3, 8)), -100)
    for params in (
        SamplingParams(max_tokens=12, logprobs=MAX_LOGPROBS + 5, ignore_eos=True),
        SamplingParams(max_tokens=12, logit_bias=banned_but_two, min_tokens=12),
    ):
        got, wanted = own.generate(PROMPT, params), host.generate(PROMPT, params)
        assert got.token_ids == wanted.token_ids and got.logprobs == wanted.logprobs


def test_the_next_turn_starts_before_the_last_is_read(
    executor: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    own = engine(executor, "none", 1, on_device=True)
    decoder = own.decoder
    assert isinstance(decoder, CudaDecoder)
    run = decoder._run
    monkeypatch.setattr(decoder, "_run", lambda kind, form: (events.append(kind), run(kind, form)))
    for event in own.stream(PROMPT, SamplingParams(max_tokens=4, ignore_eos=True)):
        events.append(f"read {len(event.token_ids)}")
    assert events == ["first", "turn", "read 1", "turn", "read 1", "turn", "read 1", "read 1"]


@pytest.mark.parametrize("draft", ["none", "mtp", "ngram"])
def test_a_turn_may_take_three_passes_and_not_more(
    executor: CudaExecutor, monkeypatch: pytest.MonkeyPatch, draft: str
) -> None:
    """E25: its end is waited for under the watchdog; behind one that hangs nothing is enqueued."""
    own, params = engine(executor, draft, 3, on_device=True), SamplingParams(max_tokens=9)
    decoder = own.decoder
    assert isinstance(decoder, CudaDecoder)
    wanted, time = own.generate(PROMPT, params).token_ids, FakeTime()
    executor.watchdog = watchdog(time, limit_s=2.0)

    def every_turn_takes(seconds: float) -> None:
        for report in decoder._reports:
            report.event = FakeEvent(time, seconds)  # type: ignore[assignment]

    every_turn_takes(5.9)
    assert own.generate(PROMPT, params).token_ids == wanted
    stream = own.stream(PROMPT, params)
    seen = list(next(stream).token_ids)
    every_turn_takes(float("inf"))
    start = time.now
    with pytest.raises(StepTimeoutError, match="not finished a pass in 6 s"):
        for event in stream:
            seen += event.token_ids
    assert seen == wanted[: len(seen)] and 6.0 < time.now - start < 6.1
    monkeypatch.setattr(decoder, "_run", lambda *_: pytest.fail("a turn was enqueued"))
    start = time.now
    for later in (lambda: own.generate(PROMPT, params), lambda: own.score(PROMPT)):
        with pytest.raises(StepTimeoutError, match="not finished a pass in 6 s"):
            later()
    assert time.now == start


def test_logits_that_are_not_finite_end_the_request(executor: CudaExecutor) -> None:
    own = engine(executor, "mtp", 3, on_device=True)
    wanted = own.generate(PROMPT, SamplingParams(max_tokens=9)).token_ids
    table = executor.weights.embed_tokens
    row = table[PROMPT[0]].clone()
    table[PROMPT[0]] = float("nan")
    executor.reset()  # the state kept of this prompt is sound
    with pytest.raises(NonFiniteLogitsError):
        own.generate(PROMPT, SamplingParams(max_tokens=9))
    table[PROMPT[0]] = row
    assert own.generate(PROMPT, SamplingParams(max_tokens=9)).token_ids == wanted


def test_a_draft_that_breaks_its_contract_is_refused(executor: CudaExecutor) -> None:
    class Outside(WrongDraft):
        def propose(self, count: int, sampler: object) -> Proposal:
            return Proposal((SHAPE["vocab_size"],))

    decoder = CudaDecoder(executor, Outside(), 2)
    with pytest.raises(InvalidSettingError, match="proposed id 360"):
        Engine(executor, decoder=decoder).generate(PROMPT, SamplingParams(max_tokens=9))
