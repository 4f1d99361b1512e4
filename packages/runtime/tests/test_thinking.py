"""Soft switches, and thoughts that end when their budget is spent."""

from collections.abc import Iterator
from typing import Any

import pytest
from bytebound import (
    Engine,
    InvalidRequestError,
    InvalidSettingError,
    SamplingParams,
    StreamEvent,
)
from bytebound.budgeted_stream import stream_with_budget
from bytebound.sampling import Sampler
from bytebound.scripted import ScriptedDraft, ScriptedExecutor
from bytebound.text.thinking import take_switches
from bytebound.text.thinking_budget import ThinkingBudget
from bytebound.text.tokenizer import Tokenizer

THOUGHT = "the quick brown fox jumps over the lazy dog"
QUESTION = [{"role": "user", "content": "why?"}]


@pytest.mark.parametrize(
    ("text", "left", "asked"),
    [
        ("why? /no_think", "why?", False),
        ("/think why?", "why?", True),
        ("/no_think why? /think", "why?", True),
        ("why?\n/no_think\n", "why?", False),
        ("/no_think", "", False),
        ("open /think/no_think", "open /think/no_think", None),
        ("/thinking", "/thinking", None),
        ("is a/think a word", "is a/think a word", None),
        ("say /think to think", "say /think to think", None),
        ("why?", "why?", None),
    ],
)
def test_a_switch_stands_alone_at_an_end(text: str, left: str, asked: bool | None) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    assert take_switches(messages) == ([{"role": "user", "content": left}], asked)
    assert messages[0]["content"] == text


def test_the_last_switch_counts_and_all_of_them_go() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief. /no_think"},
        {"role": "user", "content": "one /think"},
        {"role": "assistant", "content": "/no_think", "tool_calls": [{}]},
        {"role": "tool", "content": "/no_think"},
        {"role": "user", "content": "two"},
    ]
    cleaned, asked = take_switches(messages)
    assert asked is True
    contents = [message["content"] for message in cleaned]
    assert contents == ["Be brief.", "one", "/no_think", "/no_think", "two"]
    assert cleaned[2]["tool_calls"] == [{}]


# Budgets


def prompt(tokenizer: Tokenizer, thinking: bool = True) -> list[int]:
    return tokenizer.apply_chat_template(QUESTION, enable_thinking=thinking)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, parse_control=True)


class Continuing(ScriptedExecutor):
    """Emits one script for one request, and another for the request that goes on from it."""

    def __init__(self, scripts: list[list[int]], vocab_size: int, end_id: int) -> None:
        super().__init__([scripts[0]], vocab_size, end_id=end_id)
        self.scripts = scripts
        self.prompts: list[list[int]] = []

    def _start_script(self) -> Any:
        self._script = self.scripts[min(len(self.prompts) - 1, len(self.scripts) - 1)]
        return super()._start_script()


def scripted(tokenizer: Tokenizer, first: str, then: str = "", size: int = 1) -> Engine:
    """An engine that writes ``first``, and ``then`` when it is asked to go on."""
    (end,) = ids_of(tokenizer, "<|im_end|>")
    scripts = [ids_of(tokenizer, first), ids_of(tokenizer, then)]
    executor = Continuing(scripts, tokenizer.vocab_size, end)
    head, *tail = scripts[0]
    steps = [[head], *(tail[i : i + size] for i in range(0, len(tail), size))]
    engine = Engine(
        executor,
        draft=ScriptedDraft(steps),
        num_draft_tokens=8,
        tokenizer=tokenizer,
        end_ids=[end],
    )
    plain = engine.stream

    def stream(prompt_ids: Any, params: Any = None, **more: Any) -> Iterator[StreamEvent]:
        executor.prompts.append(list(prompt_ids))
        return plain(prompt_ids, params, **more)

    engine.stream = stream  # type: ignore[method-assign]
    return engine


def budgeted(
    engine: Engine, limit: int, *, thinking: bool = True, calls: bool = False, **params: Any
) -> list[StreamEvent]:
    ids = prompt(engine.tokenizer, thinking)
    budget = ThinkingBudget(engine.tokenizer, ids, limit, calls=calls)
    settings = SamplingParams(**{"max_tokens": 200, **params})
    return list(stream_with_budget(engine, ids, settings, budget))


def all_ids(events: list[StreamEvent]) -> list[int]:
    return [token_id for event in events for token_id in event.token_ids]


def text_of(events: list[StreamEvent]) -> str:
    return "".join(event.text_delta for event in events)


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("limit", [1, 2, 5, 9])
def test_a_spent_budget_ends_the_thought(tokenizer: Tokenizer, limit: int, size: int) -> None:
    engine = scripted(tokenizer, THOUGHT, "so it is", size)
    events = budgeted(engine, limit)
    closing, answer = ids_of(tokenizer, "\n</think>\n\n"), "so it is"
    # The newline in front of the tag is one of the tokens; the prompt ends in one of its own.
    seam = [*ids_of(tokenizer, THOUGHT)[: limit - 1], *closing[1 if limit == 1 else 0 :]]
    ids = all_ids(events)
    assert ids[: len(seam)] == seam
    assert ids.index(closing[1]) <= limit
    assert text_of(events).endswith(f"</think>\n\n{answer}")
    assert text_of(events) == tokenizer.decode(ids)
    assert [event.finish_reason for event in events if event.finish_reason] == ["stop"]
    stats = events[-1].stats
    assert stats is not None
    assert stats.completion_tokens == len(ids)
    assert stats.prompt_tokens == len(prompt(tokenizer))
    first, second = (len(ids_of(tokenizer, text)) for text in (THOUGHT, answer))
    if size == 1:  # a pass for each token but those of the two prefills and of the closing
        assert stats.steps == max(0, min(first, limit - 1) - 1) + second
    assert stats.mean_accepted_len >= 1
    # What goes on is the prompt, the thought and its end.
    executor = engine.executor
    assert isinstance(executor, Continuing)
    assert executor.prompts[1] == prompt(tokenizer) + seam


def test_no_thought_at_all(tokenizer: Tokenizer) -> None:
    events = budgeted(scripted(tokenizer, THOUGHT, "so it is"), 0)
    assert text_of(events) == "</think>\n\nso it is"
    stats = events[-1].stats
    assert stats is not None
    assert stats.prompt_tokens == len(prompt(tokenizer))
    assert stats.completion_tokens == len(all_ids(events))


@pytest.mark.parametrize(
    ("text", "thinking", "calls"),
    [
        ("the\n</think>\n\nquick brown fox jumps over the lazy dog", True, False),
        (THOUGHT, False, False),
        ("the<tool_call>quick brown fox jumps over the lazy dog", True, True),
    ],
)
def test_a_budget_that_is_not_spent_changes_nothing(
    tokenizer: Tokenizer, text: str, thinking: bool, calls: bool
) -> None:
    events = budgeted(scripted(tokenizer, text), 6, thinking=thinking, calls=calls)
    plain = list(
        scripted(tokenizer, text).stream(
            prompt(tokenizer, thinking), SamplingParams(max_tokens=200)
        )
    )
    assert [(e.token_ids, e.text_delta, e.finish_reason) for e in events] == [
        (e.token_ids, e.text_delta, e.finish_reason) for e in plain
    ]


def test_a_thought_that_the_model_opens_counts_too(tokenizer: Tokenizer) -> None:
    events = budgeted(scripted(tokenizer, f"\n<think>{THOUGHT}", "yes"), 4, thinking=False)
    (opening,), (close,) = (ids_of(tokenizer, tag) for tag in ("<think>", "</think>"))
    ids = all_ids(events)
    assert ids.index(close) - ids.index(opening) - 1 == 4
    assert text_of(events).endswith("</think>\n\nyes")


def test_a_call_is_no_end_of_a_thought_without_tools(tokenizer: Tokenizer) -> None:
    events = budgeted(scripted(tokenizer, f"a<tool_call>{THOUGHT}", "yes"), 4)
    assert all_ids(events).index(ids_of(tokenizer, "</think>")[0]) == 4


def test_a_newline_is_not_written_twice(tokenizer: Tokenizer) -> None:
    events = budgeted(
        scripted(tokenizer, "the\n" + THOUGHT, "yes"), len(ids_of(tokenizer, "the\n")) + 1
    )
    assert text_of(events) == "the\n</think>\n\nyes"


def test_the_limit_counts_over_both_halves(tokenizer: Tokenizer) -> None:
    closing = len(ids_of(tokenizer, "\n</think>\n\n"))
    for limit in range(3, 12):
        events = budgeted(scripted(tokenizer, THOUGHT, "one two three four"), 4, max_tokens=limit)
        assert len(all_ids(events)) == limit
        assert events[-1].finish_reason == "length"
        assert sum(event.finish_reason is not None for event in events) == 1
        assert ids_of(tokenizer, "</think>")[0] in all_ids(events) or limit < 3 + closing


def test_a_stop_string_across_the_seam(tokenizer: Tokenizer) -> None:
    engine = scripted(tokenizer, THOUGHT, "so it is")
    events = budgeted(engine, 4, stop=["</think>\n\nso"])
    assert text_of(events).endswith("\n")
    assert "</think>" not in text_of(events)
    assert events[-1].finish_reason == "stop"


def test_logprobs_of_what_was_not_drawn(tokenizer: Tokenizer) -> None:
    events = budgeted(scripted(tokenizer, THOUGHT, "yes", size=8), 4, logprobs=1)
    logprobs = [one for event in events for one in event.logprobs or ()]
    assert [one.token_id for one in logprobs] == all_ids(events)
    forced = logprobs[3:6]
    assert [one.logprob for one in forced] == [0.0] * 3
    assert all(one.logprob < 0 for one in logprobs[:3])


def test_min_tokens_counts_over_both_halves(tokenizer: Tokenizer) -> None:
    events = budgeted(scripted(tokenizer, THOUGHT, ""), 4, min_tokens=9)
    assert len(all_ids(events)) == 10  # nine, then the end


def test_what_is_refused(tokenizer: Tokenizer) -> None:
    for limit in (-1, 1.5, True, "3"):
        with pytest.raises(InvalidRequestError, match="thinking budget: got"):
            ThinkingBudget(tokenizer, [1], limit)  # type: ignore[arg-type]
    engine, budget = scripted(tokenizer, THOUGHT), ThinkingBudget(tokenizer, [1], 3)
    with pytest.raises(InvalidRequestError, match="prompt is empty"):
        stream_with_budget(engine, [], None, budget)  # before the first event


@pytest.fixture(scope="module")
def tiny() -> dict[str, Engine]:
    return {
        draft: Engine.from_pretrained(
            "tiny", backend="reference", device="cpu", dtype="float32", draft=draft, seed=3
        )
        for draft in ("none", "mtp")
    }


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_rest_is_what_the_model_writes_behind_the_same_ids(
    tiny: dict[str, Engine], temperature: float
) -> None:
    """With drafts and without; greedily both write the same."""
    answers = []
    for engine in tiny.values():
        ids = prompt(engine.tokenizer)

        def params(count: int) -> SamplingParams:
            return SamplingParams(
                max_tokens=count, temperature=temperature, seed=11, ignore_eos=True
            )

        budget = ThinkingBudget(engine.tokenizer, ids, 12)
        events = list(stream_with_budget(engine, ids, params(40), budget))
        found = all_ids(events)
        (close,) = ids_of(engine.tokenizer, "</think>")
        assert found[:11] == engine.generate(ids, params(11)).token_ids
        assert found.index(close) in (11, 12)
        seam = found.index(close) + 1 + len(engine.tokenizer.encode("\n\n"))
        rest = engine.generate(ids + found[:seam], params(40 - seam))
        assert found[seam:] == rest.token_ids
        assert text_of(events) == engine.tokenizer.decode(found)
        answers.append(found)
    assert answers[0] == answers[1] or temperature > 0


PENALTIES: list[dict[str, float]] = [
    {"presence_penalty": 2.0},
    {"frequency_penalty": 0.9},
    {"presence_penalty": -1.0, "frequency_penalty": 1.2, "repetition_penalty": 1.3},
]


@pytest.mark.parametrize("penalties", PENALTIES, ids=["presence", "frequency", "all"])
def test_penalties_count_over_a_budgets_seam(
    tiny: dict[str, Engine], penalties: dict[str, float]
) -> None:
    """Each id behind the forced end is the best one after penalties for all of the reply."""
    answers = []
    for engine in tiny.values():
        ids = prompt(engine.tokenizer)
        settings = SamplingParams(max_tokens=40, ignore_eos=True, **penalties)
        budget = ThinkingBudget(engine.tokenizer, ids, 12)
        found = all_ids(list(stream_with_budget(engine, ids, settings, budget)))
        answers.append(found)
        (close,) = ids_of(engine.tokenizer, "</think>")
        seam = found.index(close) + 1 + len(engine.tokenizer.encode("\n\n"))
        rows = engine.score(ids + found)
        sampler = Sampler(settings, ids, engine.executor.vocab_size, frozenset(), 0)
        for place, token_id in enumerate(found):
            drawn = sampler.argmax(rows[len(ids) + place - 1])
            assert drawn == token_id or found.index(close) - 1 <= place < seam
            sampler.append(token_id)
    assert answers[0] == answers[1]


def test_what_is_no_part_of_the_prompt_cannot_go_on(tokenizer: Tokenizer) -> None:
    engine = scripted(tokenizer, THOUGHT)
    for wrong in (-1, 4, 1.0, True):
        with pytest.raises(InvalidSettingError, match="continues"):
            engine.stream([1, 2, 3], continues=wrong)  # type: ignore[arg-type]
