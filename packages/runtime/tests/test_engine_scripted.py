"""The decode loop against scripts: text, ends, counts and logprobs, with no weights.

Every answer is asked for with its ids coming one per step and several per step, as with drafts.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import pytest
from bytebound import (
    Engine,
    InvalidRequestError,
    SamplingParams,
    StreamEvent,
    TokenizerMissingError,
)
from bytebound.scripted import ScriptedDraft, ScriptedExecutor
from bytebound.text.tokenizer import Tokenizer

PROMPT = [1, 2, 3]
SIZES = [1, 2, 3, 5]
TEXTS = {
    "plain": "hello world, the quick brown fox",
    "emoji-joiners": "family 👨‍👩‍👧‍👦 and 👩🏽‍🚀!",
    "flags": "🇰🇷🇮🇱🇹🇭🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "korean": "안녕하세요, 한국어 음절이 깨지지 않습니다.",
    "hebrew": "שָׁלוֹם עוֹלָם",
    "thai": "สวัสดีชาวโลก ผู้ใหญ่",
}

Steps = Sequence[Sequence[int]]


def steps_of(ids: Sequence[int], size: int) -> list[list[int]]:
    """The first id, which belongs to the prefill, then ``size`` per step."""
    return [list(ids[:1]), *(list(ids[i : i + size]) for i in range(1, len(ids), size))]


def make_engine(
    tokenizer: Tokenizer | None,
    steps: Steps,
    *,
    wrong: int = 0,
    end_ids: Iterable[int] = (),
    max_len: int = 8192,
) -> Engine:
    vocab_size = 347 if tokenizer is None else tokenizer.vocab_size
    return Engine(
        ScriptedExecutor(steps, vocab_size, max_len=max_len),
        draft=ScriptedDraft(steps, wrong=wrong),
        num_draft_tokens=8,
        tokenizer=tokenizer,
        end_ids=end_ids,
    )


def play(
    tokenizer: Tokenizer | None, steps: Steps, params: dict[str, Any] | None = None, **engine: Any
) -> list[StreamEvent]:
    given = {"max_tokens": sum(map(len, steps)), **(params or {})}
    return list(make_engine(tokenizer, steps, **engine).stream(PROMPT, SamplingParams(**given)))


def text_of(events: Iterable[StreamEvent]) -> str:
    return "".join(event.text_delta for event in events)


def ids_of(events: Iterable[StreamEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    alphabet = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    return [alphabet[bytes([value])] for value in data]


def control(tokenizer: Tokenizer, token: str) -> int:
    return tokenizer.encode(token, parse_control=True)[0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_joined_deltas_are_the_decoding_of_the_ids(
    tokenizer: Tokenizer, text: str, size: int
) -> None:
    steps = steps_of(byte_ids(tokenizer, text.encode()), size)
    events = play(tokenizer, steps)
    assert [list(event.token_ids) for event in events] == steps
    assert text_of(events) == tokenizer.decode(ids_of(events)) == text
    assert not any("\ufffd" in event.text_delta for event in events)


def test_generate_is_the_stream_put_together(tokenizer: Tokenizer) -> None:
    steps = steps_of(tokenizer.encode(TEXTS["korean"]), 3)
    params = SamplingParams(max_tokens=sum(map(len, steps)), logprobs=2)
    events = list(make_engine(tokenizer, steps).stream(PROMPT, params))
    result = make_engine(tokenizer, steps).generate(PROMPT, params)
    assert result.token_ids == ids_of(events)
    assert result.text == text_of(events)
    assert result.logprobs == [one for event in events for one in event.logprobs or ()]
    assert result.finish_reason == events[-1].finish_reason == "length"
    assert result.prompt_ids == PROMPT


def test_only_the_last_event_has_reason_and_stats(tokenizer: Tokenizer) -> None:
    *earlier, last = play(tokenizer, [[5], [6, 7], [8]])
    assert [event.finish_reason for event in earlier] == [None, None]
    assert [event.stats.steps for event in earlier if event.stats] == [0, 1]
    assert last.finish_reason == "length"
    assert last.stats is not None


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ending", ["length", "end token"])
def test_an_answer_that_ends_mid_character_flushes_once(
    tokenizer: Tokenizer, ending: str, size: int
) -> None:
    ids = byte_ids(tokenizer, b"a" + "한".encode()[:2])
    end = control(tokenizer, "<|im_end|>")
    if ending == "end token":
        ids = [*ids, end]
    events = play(tokenizer, steps_of(ids, size), end_ids=[end])
    assert ids_of(events) == ids
    assert text_of(events) == "a\ufffd"
    assert events[-1].text_delta == "\ufffd"


def test_invalid_bytes_do_not_stall(tokenizer: Tokenizer) -> None:
    events = play(tokenizer, steps_of(byte_ids(tokenizer, b"\xff\xff\xffa"), 1))
    assert [event.text_delta for event in events] == ["\ufffd", "\ufffd", "\ufffd", "a"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("text", "stop", "kept"),
    [
        ("Hi there.\nUser: again", ["\nUser:"], "Hi there."),
        ("Hi there.\nUser: again", ["there."], "Hi "),
        ("one two three four", ["four", "two", "three"], "one "),
        ("aaab aab b", ["aab"], "a"),
        ("안녕하세요 세계", ["세요"], "안녕하"),
        ("stop", ["stop"], ""),
    ],
    ids=["over tokens", "in the middle", "first of several", "after itself", "korean", "all"],
)
def test_a_stop_string_cuts_the_text_and_the_ids_end_at_the_completing_token(
    tokenizer: Tokenizer, text: str, stop: list[str], kept: str, size: int
) -> None:
    ids = tokenizer.encode(text)
    growing = [tokenizer.decode(ids[:n]) for n in range(len(ids) + 1)]
    until = next(n for n, grown in enumerate(growing) if any(s in grown for s in stop))
    events = play(tokenizer, steps_of(ids, size), {"stop": stop, "logprobs": 1})
    assert text_of(events) == kept
    assert ids_of(events) == ids[:until]
    assert events[-1].finish_reason == "stop"
    assert sum(len(event.logprobs or ()) for event in events) == until
    assert events[-1].stats is not None
    assert events[-1].stats.completion_tokens == until


@pytest.mark.parametrize("size", SIZES)
def test_nothing_of_a_stop_string_is_shown_early(tokenizer: Tokenizer, size: int) -> None:
    ids = byte_ids(tokenizer, b"a </ans </answe </answer> b")
    events = play(tokenizer, steps_of(ids, size), {"stop": "</answer>"})
    shown = list(accumulate(event.text_delta for event in events))
    assert shown[-1] == "a </ans </answe "
    assert all(shown[-1].startswith(part) for part in shown)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ending", ["length", "end token"])
def test_a_false_start_of_a_stop_string_is_released_at_the_end(
    tokenizer: Tokenizer, ending: str, size: int
) -> None:
    end = control(tokenizer, "<|im_end|>")
    ids = tokenizer.encode("say </ans")
    steps = steps_of([*ids, end] if ending == "end token" else ids, size)
    events = play(tokenizer, steps, {"stop": "</answer>"}, end_ids=[end])
    assert text_of(events) == "say </ans"
    assert events[-1].finish_reason == ("stop" if ending == "end token" else "length")


def test_a_stop_string_at_the_last_allowed_token_is_a_stop(tokenizer: Tokenizer) -> None:
    ids = byte_ids(tokenizer, b"ab.")
    last = play(tokenizer, steps_of(ids, 2), {"stop": "."})[-1]
    assert (last.finish_reason, last.text_delta) == ("stop", "b")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_each_of_several_end_ids_ends_the_answer(
    tokenizer: Tokenizer, which: int, size: int
) -> None:
    """Also in the middle of an accepted batch; a stop id may be an ordinary token."""
    ordinary = tokenizer.encode("x")[0]
    ends = [control(tokenizer, "<|im_end|>"), control(tokenizer, "<|endoftext|>"), ordinary]
    before = tokenizer.encode("hello")
    steps = steps_of([*before, ends[which], *tokenizer.encode(" and on")], size)
    params = {"stop_token_ids": [ordinary], "logprobs": 0}
    events = play(tokenizer, steps, params, end_ids=ends[:2])
    assert ids_of(events) == [*before, ends[which]]
    assert text_of(events) == "hello"
    assert events[-1].finish_reason == "stop"
    assert sum(len(event.logprobs or ()) for event in events) == len(before) + 1
    assert events[-1].stats is not None
    assert events[-1].stats.completion_tokens == len(before) + 1


@pytest.mark.parametrize("size", SIZES)
def test_ignore_eos_passes_end_ids_but_not_the_requests_own(
    tokenizer: Tokenizer, size: int
) -> None:
    end, own = control(tokenizer, "<|im_end|>"), tokenizer.encode("x")[0]
    ids = [*tokenizer.encode("a"), end, *tokenizer.encode("b"), own, *tokenizer.encode("c")]
    params = {"ignore_eos": True, "stop_token_ids": [own]}
    events = play(tokenizer, steps_of(ids, size), params, end_ids=[end])
    assert ids_of(events) == ids[:4]
    assert text_of(events) == "ab"  # a special token gives no text


@pytest.mark.parametrize("size", SIZES)
def test_min_tokens_masks_end_ids_until_that_many_came(tokenizer: Tokenizer, size: int) -> None:
    end, own, letter = control(tokenizer, "<|im_end|>"), *tokenizer.encode("xa")
    steps = steps_of([letter, end, own, letter, end, letter], size)
    params = {"min_tokens": 4, "stop_token_ids": [own]}
    events = play(tokenizer, steps, params, end_ids=[end])
    # The scripted logits are equal but for the masked id: the lowest id takes its place.
    assert ids_of(events) == [letter, 0, 0, letter, end]
    assert events[-1].finish_reason == "stop"


@pytest.mark.parametrize("size", SIZES)
def test_min_tokens_keeps_earlier_stop_strings_in_the_text(tokenizer: Tokenizer, size: int) -> None:
    ids = byte_ids(tokenizer, b"a.b.c.d")
    events = play(tokenizer, steps_of(ids, size), {"stop": ".", "min_tokens": 3})
    assert text_of(events) == "a.b"
    assert ids_of(events) == ids[:4]
    at_once = play(tokenizer, steps_of(ids, size), {"stop": ".", "min_tokens": 2})
    assert text_of(at_once) == "a"


def test_no_token_was_asked_for(tokenizer: Tokenizer) -> None:
    (event,) = play(tokenizer, [[5], [6]], {"max_tokens": 0, "logprobs": 1})
    assert (event.token_ids, event.text_delta, event.logprobs) == ((), "", ())
    assert event.finish_reason == "length"
    assert event.stats is not None
    counts = event.stats
    assert (counts.prompt_tokens, counts.completion_tokens, counts.steps) == (3, 0, 0)
    assert (counts.tok_per_s, counts.mean_accepted_len) == (0, 0)


def test_one_token_comes_from_the_prefill_alone(tokenizer: Tokenizer) -> None:
    (event,) = play(tokenizer, steps_of(byte_ids(tokenizer, b"ab"), 1), {"max_tokens": 1})
    assert event.text_delta == "a"
    assert event.finish_reason == "length"
    assert event.stats is not None
    assert (event.stats.completion_tokens, event.stats.steps) == (1, 0)


@pytest.mark.parametrize("limit", [2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("by", ["max_tokens", "room"])
def test_drafts_never_go_past_the_limit(tokenizer: Tokenizer, by: str, limit: int) -> None:
    """The executor itself refuses rows beyond the context."""
    steps = [[5], [6, 7, 8, 9, 10], [11]]
    params = {"max_tokens": limit} if by == "max_tokens" else {"max_tokens": 999}
    max_len = 8192 if by == "max_tokens" else len(PROMPT) + limit
    events = play(tokenizer, steps, params, wrong=8, max_len=max_len)
    assert ids_of(events) == [5, 6, 7, 8, 9, 10, 11][:limit]
    assert events[-1].finish_reason == "length"
    assert events[-1].stats is not None
    # The prefill gives one token and the target one of its own.
    assert events[-1].stats.drafted == limit - 2


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_counts_are_those_of_the_script(tokenizer: Tokenizer, wrong: int) -> None:
    steps = [[5], [6, 7, 8], [9], [10, 11], [12]]
    stats = play(tokenizer, steps, {"max_tokens": 100, "stop_token_ids": [12]}, wrong=wrong)[
        -1
    ].stats
    assert stats is not None
    assert (stats.prompt_tokens, stats.cached_tokens, stats.completion_tokens) == (3, 0, 8)
    assert (stats.steps, stats.accepted, stats.drafted) == (4, 3, 3 + 4 * wrong)
    assert stats.mean_accepted_len == 7 / 4
    assert stats.prefill_s > 0
    assert stats.tok_per_s == pytest.approx(7 / stats.decode_s)


@pytest.mark.parametrize(
    ("end", "accepted"), [(6, 1), (7, 2), (8, 3), (9, 3)], ids=["1st", "2nd", "3rd", "own"]
)
def test_accepted_counts_the_guesses_that_reached_the_completion(
    tokenizer: Tokenizer, end: int, accepted: int
) -> None:
    stats = play(tokenizer, [[5], [6, 7, 8, 9]], {"stop_token_ids": [end]})[-1].stats
    assert stats is not None
    assert (stats.steps, stats.drafted, stats.accepted) == (1, 3, accepted)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("size", SIZES)
def test_every_token_has_its_logprob(tokenizer: Tokenizer, size: int, temperature: float) -> None:
    steps = steps_of([5, 9, 7, 9, 3, 8, 300], size)
    params = {"logprobs": 3, "temperature": temperature, "seed": 1}
    for event in play(tokenizer, steps, params, wrong=1):
        assert event.logprobs is not None
        assert [one.token_id for one in event.logprobs] == list(event.token_ids)
        for one in event.logprobs:
            assert -1e-4 < one.logprob < 0
            assert one.top[0] == (one.token_id, one.logprob)
            assert len(one.top) == 3
    assert all(event.logprobs is None for event in play(tokenizer, steps))


def test_the_draft_sees_every_token_once(tokenizer: Tokenizer) -> None:
    steps = [[5], [6, 7, 8], [9], [10, 11]]
    engine = make_engine(tokenizer, steps, wrong=2)
    for _ in range(2):
        engine.generate(PROMPT, SamplingParams(max_tokens=7))
        assert isinstance(engine.draft, ScriptedDraft)
        assert engine.draft.observed == [*PROMPT, 5, 6, 7, 8, 9]


def test_without_a_tokenizer_ids_come_and_text_is_refused() -> None:
    engine = make_engine(None, [[5], [6, 7]])
    result = engine.generate(PROMPT, SamplingParams(max_tokens=3))
    assert result.token_ids == [5, 6, 7]
    with pytest.raises(TokenizerMissingError, match=r"no tokenizer.*token_ids"):
        _ = result.text
    with pytest.raises(TokenizerMissingError, match="no tokenizer"):
        _ = engine.tokenizer
    with pytest.raises(TokenizerMissingError, match="stop_token_ids"):
        engine.stream(PROMPT, SamplingParams(stop="a"))


def test_a_script_has_no_config() -> None:
    engine = make_engine(None, [[5]])
    with pytest.raises(InvalidRequestError, match="no config"):
        _ = engine.config
    assert engine.default_params(top_k=3) == SamplingParams(top_k=3)
