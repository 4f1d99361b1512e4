import math

import pytest
import torch
from bytebound.errors import ContextOverflowError, InvalidRequestError, InvalidSettingError
from bytebound.sampling import Sampler, SamplingParams
from bytebound.scripted import ScriptedDraft, ScriptedExecutor

VOCAB = 32
STEPS = [[5], [7, 8, 9], [2], [3, 4, 6, 1, 0, 11]]
FLAT = [token for step in STEPS for token in step]


class Recorder:
    def __init__(self):
        self.ids = []

    def observe(self, next_ids, hidden):
        assert hidden is None
        self.ids.extend(next_ids)


def decode(executor, draft, count, drafted=8, params=None):
    """The decode loop in its plainest form; returns the ids of each pass, the prefill's first."""
    prompt = [1, 2, 3]
    sampler = Sampler(params or SamplingParams(), prompt, VOCAB, frozenset(), 0)
    if draft is not None:
        draft.begin(prompt[0])
    logits = executor.prefill(prompt, draft)
    passes = [[sampler.choose(logits, executor.position)]]
    sampler.append(passes[0][0])
    while sum(map(len, passes)) < count:
        proposal = ()
        if draft is not None:
            draft.observe(passes[-1], executor.last_hidden)
            proposal = draft.propose(drafted, sampler).ids
        rows = executor.verify([passes[-1][-1], *proposal])
        gained = []
        for row, guess in zip(rows, [*proposal, None], strict=True):
            gained.append(sampler.choose(row, executor.position + len(gained)))
            sampler.append(gained[-1])
            if gained[-1] != guess:
                break
        executor.commit(len(gained))
        passes.append(gained)
    return passes


def test_plain_decoding_emits_the_script():
    passes = decode(ScriptedExecutor(STEPS, VOCAB), None, len(FLAT))
    assert passes == [[token] for token in FLAT]


@pytest.mark.parametrize("wrong", [0, 1, 3])
def test_steps_come_out_as_written(wrong):
    draft = ScriptedDraft(STEPS, wrong=wrong)
    assert decode(ScriptedExecutor(STEPS, VOCAB), draft, len(FLAT)) == STEPS
    assert draft.observed == [1, 2, 3, *FLAT[:-6]]


def test_a_short_draft_splits_a_long_step():
    draft = ScriptedDraft(STEPS, wrong=1)
    passes = decode(ScriptedExecutor(STEPS, VOCAB), draft, len(FLAT), drafted=2)
    assert passes == [[5], [7, 8, 9], [2], [3, 4, 6], [1, 0, 11]]


def test_a_longer_first_step_loses_its_first_id_to_the_prefill():
    steps = [[5, 6, 7], [8]]
    passes = decode(ScriptedExecutor(steps, VOCAB), ScriptedDraft(steps), 4)
    assert passes == [[5], [6, 7], [8]]


def test_sampling_follows_the_script_too():
    params = SamplingParams(temperature=1.0)
    passes = decode(ScriptedExecutor(STEPS, VOCAB), ScriptedDraft(STEPS), len(FLAT), params=params)
    assert passes == STEPS


def test_wrong_guesses_are_in_the_vocabulary_and_never_right():
    sampler = Sampler(SamplingParams(), [1], 2, frozenset(), 0)
    for step in ([0], [1]):
        assert ScriptedDraft([step], wrong=2).propose(4, sampler).ids == (1 - step[0],) * 2


def test_the_executor_shows_the_prompt_to_its_observer():
    recorder = Recorder()
    executor = ScriptedExecutor(STEPS, VOCAB)
    executor.prefill([4, 5, 6], recorder)
    assert recorder.ids == [5, 6]
    assert executor.position == 3


def test_verify_commits_nothing():
    executor = ScriptedExecutor(STEPS, VOCAB)
    executor.prefill([1])
    first = executor.verify([5, 7])
    assert torch.equal(first, executor.verify([5, 7, 8])[:2])
    assert executor.position == 1
    executor.commit(2)
    assert executor.position == 3
    assert int(executor.verify([8])[0].argmax()) == 9


def test_every_prefill_starts_anew():
    executor = ScriptedExecutor(STEPS, VOCAB)
    assert decode(executor, None, 4) == decode(executor, None, 4)
    assert int(executor.prefill([9]).argmax()) == FLAT[0]


def test_after_the_script():
    endless = ScriptedExecutor([[5]], VOCAB, end_id=2)
    assert decode(endless, None, 4) == [[5], [2], [2], [2]]
    with pytest.raises(InvalidRequestError, match="script is over after 1 ids"):
        decode(ScriptedExecutor([[5]], VOCAB), None, 2)


def test_score_reads_the_script_from_its_start():
    executor = ScriptedExecutor(STEPS, VOCAB)
    executor.prefill([1, 2])
    assert executor.score([1, 5, 7, 8]).argmax(-1).tolist() == FLAT[:4]
    assert executor.position == 0


def test_logprobs_are_not_zero():
    executor = ScriptedExecutor(STEPS, VOCAB)
    sampler = Sampler(SamplingParams(logprobs=2), [1], VOCAB, frozenset(), 0)
    entry = sampler.token_logprob(executor.prefill([1]), 5)
    assert -1e-4 < entry.logprob < 0
    assert math.exp(entry.top[1][1]) < 1e-6


def test_wrong_use_is_refused():
    with pytest.raises(InvalidSettingError, match="got id 32"):
        ScriptedExecutor([[32]], VOCAB)
    with pytest.raises(InvalidSettingError, match="wrong: got -1"):
        ScriptedDraft(STEPS, wrong=-1)
    executor = ScriptedExecutor(STEPS, VOCAB, max_len=3)
    with pytest.raises(InvalidRequestError, match="got no ids"):
        executor.prefill([])
    executor.prefill([1, 2])
    executor.verify([5])
    with pytest.raises(ValueError, match="expected 1 to 1"):
        executor.commit(2)
    with pytest.raises(ContextOverflowError, match="max_len 3"):
        executor.verify([5, 7])


def test_another_script_counts_from_the_next_prompt_on():
    executor = ScriptedExecutor(STEPS, VOCAB)
    executor.prefill([1])
    executor.rewrite([[9], [10]])
    assert int(executor.prefill([1]).argmax()) == 9
    with pytest.raises(InvalidSettingError, match="script: got id 32"):
        executor.rewrite([[32]])


class Clock:
    """In place of the module ``time``: it goes on only where somebody sleeps."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.mark.parametrize(("runs_ahead", "took"), [(False, 5 * 0.05), (True, 5 * 0.03)])
def test_what_a_host_does_between_passes_is_hidden_by_a_device_that_runs_ahead(
    monkeypatch, runs_ahead, took
):
    clock = Clock()
    monkeypatch.setattr("bytebound.scripted.time", clock)
    executor = ScriptedExecutor(STEPS, VOCAB, pass_s=0.03, runs_ahead=runs_ahead)
    executor.prefill([1, 2, 3])
    started = clock.now
    for _ in range(5):
        clock.sleep(0.02)
        executor.verify([5])
        executor.commit(1)
    assert clock.now - started == pytest.approx(took)
    clock.sleep(0.1)  # nobody asked in time: the next pass begins when it is asked for
    started = clock.now
    executor.verify([5])
    assert clock.now - started == pytest.approx(0.03)


def test_a_pass_takes_its_time(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("bytebound.scripted.time", clock)
    executor = ScriptedExecutor(STEPS, VOCAB, pass_s=0.02)
    executor.prefill([1, 2, 3])
    for _ in range(3):
        executor.verify([5])
        executor.commit(1)
    assert clock.now == pytest.approx(100.06)
    for wrong in (-1.0, math.inf, math.nan):
        with pytest.raises(InvalidSettingError, match="pass_s"):
            ScriptedExecutor(STEPS, VOCAB, pass_s=wrong)
