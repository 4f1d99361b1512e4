"""A reply split by its token ids: thoughts, text, calls, whatever the steps and the tags."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from bytebound.completion import Completion
from bytebound.sampling import SamplingParams
from bytebound.text.reply import (
    Piece,
    ReasoningDelta,
    ReplySplitter,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from bytebound.text.thinking import begins_thinking
from bytebound.text.tokenizer import Tokenizer
from hypothesis import example, given
from hypothesis import strategies as st

Tools = Mapping[str, Mapping[str, Any]]

TOOLS: Tools = {
    "get": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "places": {"type": "array"},
        },
    }
}
CALL = (
    "<tool_call>\n<function=get>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
)
USER = [{"role": "user", "content": "what does <think> mean?"}]


def prompt(tokenizer: Tokenizer, thinking: bool) -> list[int]:
    return tokenizer.apply_chat_template(USER, enable_thinking=thinking)


def split_ids(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    cuts: Sequence[int] | int = 1,
    *,
    thinking: bool = False,
    tools: Tools | None = TOOLS,
    reason: str = "stop",
    stop: Sequence[str] = (),
    engine_stop: Sequence[str] = (),
) -> list[Piece]:
    """Pieces of ids that come in steps: of ``cuts`` ids each, or cut at these places."""
    splitter = ReplySplitter(
        tokenizer, prompt(tokenizer, thinking), tools, call_id=lambda i: f"call_{i}", stop=stop
    )
    params = SamplingParams(max_tokens=len(ids) + 1, stop=engine_stop)
    completion = Completion(params, frozenset(), tokenizer, len(ids) + 1)
    if isinstance(cuts, int):
        cuts = range(cuts, len(ids), cuts)
    pieces: list[Piece] = []
    for low, high in pairwise([0, *cuts, len(ids)]):
        taken, delta = list[int](), ""
        for token_id in ids[low:high]:
            if completion.finish_reason is None:
                taken.append(token_id)
                delta += completion.push(token_id)
        pieces += splitter.push(tuple(taken), delta)
    return pieces + splitter.finish(reason)


def split(tokenizer: Tokenizer, text: str, cuts: int = 1, **options: Any) -> list[Piece]:
    return split_ids(tokenizer, tokenizer.encode(text, parse_control=True), cuts, **options)


def merged(pieces: Sequence[Piece]) -> list[tuple[str, ...]]:
    """What the pieces say, wherever the deltas were cut."""
    out: list[tuple[str, ...]] = []
    for piece in pieces:
        if isinstance(piece, ToolCallStart):
            out.append(("start", str(piece.index), piece.id, piece.name))
        elif isinstance(piece, ToolCallEnd):
            out.append(("end", str(piece.index), str(piece.complete)))
        else:
            if isinstance(piece, ToolCallArguments):
                kind, text = f"arguments {piece.index}", piece.json_delta
            else:
                kind, text = type(piece).__name__, piece.text
            assert text, "an empty delta"
            if out and out[-1][0] == kind:
                text = out.pop()[1] + text
            out.append((kind, text))
    return out


def shape(pieces: Sequence[Piece]) -> tuple[str, str, list[tuple[str, str, bool]]]:
    """(thinking, answer, calls as (name, arguments, complete))."""
    starts = {p.index: p.name for p in pieces if isinstance(p, ToolCallStart)}
    ends = {p.index: p.complete for p in pieces if isinstance(p, ToolCallEnd)}
    # Numbered from 0, each begun once, then ended, then the next.
    marks = [(p.index, type(p)) for p in pieces if isinstance(p, (ToolCallStart, ToolCallEnd))]
    kinds = (ToolCallStart, ToolCallEnd)
    assert marks == [(i, kind) for i in range(len(starts)) for kind in kinds]
    arguments = {
        i: "".join(
            p.json_delta for p in pieces if isinstance(p, ToolCallArguments) and p.index == i
        )
        for i in starts
    }
    assert starts.keys() == ends.keys()
    return (
        "".join(p.text for p in pieces if isinstance(p, ReasoningDelta)),
        "".join(p.text for p in pieces if isinstance(p, TextDelta)),
        [(starts[i], arguments[i], ends[i]) for i in starts],
    )


CITY = ("get", '{"city": "Paris"}', True)

REPLIES: dict[str, tuple[bool, str, str, str, list[tuple[str, str, bool]]]] = {
    # name: (prompt leaves a thought open, reply, thinking, answer, calls)
    "answer": (False, "hello world", "", "hello world", []),
    "white space of an answer": (False, "\n hello\n", "", "\n hello\n", []),
    "thought": (True, "so\n\nit is\n</think>\n\nyes", "so\n\nit is", "yes", []),
    "thought without an end": (True, "so it", "so it", "", []),
    "no thought in it": (True, "\n</think>\n\nyes", "", "yes", []),
    "thought of its own": (False, "\n<think>\nhm</think>yes", "hm", "yes", []),
    "opened twice": (True, "<think>\nhm</think>yes", "hm", "yes", []),
    "closed twice": (True, "hm</think>\n\n</think>yes", "hm", "yes", []),
    "closed in the prompt and again": (False, "</think>\n\nyes", "", "yes", []),
    "tags of an answer": (False, "a <think> b</think> c", "", "a <think> b</think> c", []),
    "tags behind a thought": (True, "x</think>a </think> b<think>", "x", "a </think> b<think>", []),
    "call": (False, CALL, "", "", [CITY]),
    "call behind white space": (False, f"\n\n{CALL}\n", "", "", [CITY]),
    "all of it": (True, f"x\n</think>\n\nok\n\n{CALL}", "x", "ok", [CITY]),
    "call out of a thought": (True, f"x\n{CALL}", "x", "", [CITY]),
    "two calls": (False, f"a\n{CALL}\n{CALL}", "", "a", [CITY, CITY]),
    "text between": (False, f"a\n{CALL}\nb\n{CALL}\nc", "", "abc", [CITY, CITY]),
    "text as a call": (False, "<tool_call>hm</tool_call>x", "", "<tool_call>hm</tool_call>x", []),
    "text as a call in a thought": (
        True,
        "a <tool_call> b</tool_call> c</think>d",
        "a <tool_call> b</tool_call> c",
        "d",
        [],
    ),
    "stray end of a call": (False, "a</tool_call> b", "", "a</tool_call> b", []),
    "call without its end": (False, CALL.removesuffix("</tool_call>"), "", "", [CITY]),
    "call in place of an end": (False, CALL.replace("</tool_call>", CALL), "", "", [CITY, CITY]),
    "two functions in one": (
        False,
        CALL.replace("</function>", "</function>\n<function=get>\n</function>"),
        "",
        "",
        [CITY, ("get", "{}", True)],
    ),
    "unknown function": (
        False,
        CALL.replace("=get", "=other"),
        "",
        "",
        [("other", CITY[1], True)],
    ),
    "quoted tags": (
        False,
        CALL.replace("Paris", "<think>a</think> <tool_call> b"),
        "",
        "",
        [("get", '{"city": "<think>a</think> <tool_call> b"}', True)],
    ),
    "json": (
        False,
        '<tool_call>\n{"name": "get", "arguments": {"city": "a}\\"", "n": [1]}}\n</tool_call>',
        "",
        "",
        [("get", '{"city": "a}\\"", "n": [1]}', True)],
    ),
    "json with the name behind": (
        False,
        '<tool_call>{"arguments": {"a": {}}, "name": "get"}</tool_call>',
        "",
        "",
        [("get", '{"a": {}}', True)],
    ),
    "json in json": (
        False,
        '<tool_call>{"name": "get", "arguments": "{\\"a\\": 1}"}</tool_call>x',
        "",
        "x",
        [("get", '{"a": 1}', True)],
    ),
    "json without arguments": (
        False,
        '<tool_call>{"name": "get"}</tool_call>',
        "",
        "",
        [("get", "{}", True)],
    ),
    "json behind a call": (
        False,
        CALL.replace("</function>", '</function>{"name": "get"}{"na'),
        "",
        "",
        [CITY, ("get", "{}", True)],
    ),
    "half of a surrogate pair": (
        False,
        '<tool_call>{"name": "g\\ud83d", "arguments": "{\\"a\\": \\"\\ud83d\\"}"}</tool_call>',
        "",
        "",
        [("g?", '{"a": "?"}', True)],
    ),
    "json that is none": (
        False,
        '<tool_call>{"name": "get", "arguments": {a}}</tool_call>',
        "",
        "",
        [("get", "{a}", False)],
    ),
    "json of something else": (
        False,
        '<tool_call>{"city": "x"}</tool_call>',
        "",
        '<tool_call>{"city": "x"}</tool_call>',
        [],
    ),
}


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("thinking", "text", "thought", "answer", "calls"), REPLIES.values(), ids=REPLIES.keys()
)
def test_replies(
    tokenizer: Tokenizer,
    thinking: bool,
    text: str,
    thought: str,
    answer: str,
    calls: list[tuple[str, str, bool]],
    size: int,
) -> None:
    pieces = split(tokenizer, text, size, thinking=thinking)
    assert shape(pieces) == (thought, answer, calls)


def test_pieces_come_in_the_order_of_the_reply(tokenizer: Tokenizer) -> None:
    pieces = split(tokenizer, f"x</think>a\n{CALL}\nb\n{CALL}", 100, thinking=True)
    assert pieces == [
        ReasoningDelta("x"),
        TextDelta("a"),
        ToolCallStart(0, "call_0", "get"),
        ToolCallArguments(0, CITY[1]),
        ToolCallEnd(0),
        TextDelta("b"),
        ToolCallStart(1, "call_1", "get"),
        ToolCallArguments(1, CITY[1]),
        ToolCallEnd(1),
    ]


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("text", ["a</think>b", "<think>a", CALL, f"x</think>{CALL}"])
def test_text_that_looks_like_tags_stays_text(
    tokenizer: Tokenizer, text: str, thinking: bool, size: int
) -> None:
    pieces = split_ids(tokenizer, tokenizer.encode(text), size, thinking=thinking)
    assert shape(pieces) == ((text, "", []) if thinking else ("", text, []))


@pytest.mark.parametrize("thinking", [False, True])
def test_without_tools_a_call_is_text(tokenizer: Tokenizer, thinking: bool) -> None:
    pieces = split(tokenizer, f"x\n{CALL}", thinking=thinking, tools=None)
    expected = (f"x\n{CALL}", "", []) if thinking else ("", f"x\n{CALL}", [])
    assert shape(pieces) == expected


def test_only_the_template_opens_a_thought(tokenizer: Tokenizer) -> None:
    neither = tokenizer.apply_chat_template(USER, add_generation_prompt=False)
    assert begins_thinking(tokenizer, prompt(tokenizer, True))
    assert not begins_thinking(tokenizer, prompt(tokenizer, False))
    assert not begins_thinking(tokenizer, neither)
    # A thought that an earlier turn left open is not this turn's.
    (opening,) = tokenizer.encode("<think>", parse_control=True)
    assert not begins_thinking(tokenizer, [opening, *neither])


def test_ids_are_random_and_differ(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(f"{CALL}{CALL}", parse_control=True)
    splitter = ReplySplitter(tokenizer, prompt(tokenizer, False), TOOLS)
    found = splitter.push(ids, tokenizer.decode(ids))
    first, second = (piece.id for piece in found if isinstance(piece, ToolCallStart))
    assert first != second
    assert first.startswith("call_")


# Cut-off calls


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_a_call_cut_anywhere_is_no_whole_call(tokenizer: Tokenizer, reason: str) -> None:
    """However much is missing: the arguments parse if, and only if, the call is complete."""
    ids = tokenizer.encode(f"ok\n{CALL}", parse_control=True)
    seen = set()
    for end in range(len(ids)):
        pieces = split_ids(tokenizer, ids[:end], reason=reason)
        _, text, calls = shape(pieces)
        assert text.startswith("ok"[: len(text)])
        for name, arguments, complete in calls:
            assert name == "get"
            assert text == "ok"
            seen.add(complete)
            if complete:
                assert json.loads(arguments) in ({}, {"city": "Paris"})
            else:
                with pytest.raises(json.JSONDecodeError):
                    json.loads(arguments)
    assert seen == {True, False}


def test_a_call_cut_before_its_name_is_text(tokenizer: Tokenizer) -> None:
    text = "ok\n<tool_call>\n<func"
    assert shape(split(tokenizer, text, reason="length")) == ("", text, [])


def test_a_limit_between_values_is_a_cut_and_an_end_token_is_none(tokenizer: Tokenizer) -> None:
    text = CALL.partition("</function>")[0]
    (cut,) = shape(split(tokenizer, text, reason="length"))[2]
    (ended,) = shape(split(tokenizer, text, reason="stop"))[2]
    assert cut == ("get", '{"city": "Paris', False)
    assert ended == CITY


@pytest.mark.parametrize("reason", ["length", "stop"])
@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=get>\n",
        CALL.replace("</function>\n</tool_call>", "<para"),
        CALL.replace("</function>\n</tool_call>", "<parameter=days>"),
        CALL.replace("</function>\n</tool_call>", "<parameter=days>\n3"),
    ],
)
def test_an_end_in_the_middle_of_something_is_a_cut(
    tokenizer: Tokenizer, text: str, reason: str
) -> None:
    ((name, arguments, complete),) = shape(split(tokenizer, text, reason=reason))[2]
    assert (name, complete) == ("get", False)
    assert not arguments.endswith("}")


def test_a_name_without_an_end_is_text_at_once(tokenizer: Tokenizer) -> None:
    text = f"<tool_call><function={'a' * 300}"
    ids = tokenizer.encode(text, parse_control=True)
    splitter = ReplySplitter(tokenizer, prompt(tokenizer, False), TOOLS)
    pieces = splitter.push(ids, text)
    assert shape(pieces) == ("", text, [])


def test_an_end_tag_closes_what_is_open(tokenizer: Tokenizer) -> None:
    for missing in ("\n</parameter>", "\n</parameter>\n</function>", "\n</function>"):
        assert shape(split(tokenizer, CALL.replace(missing, "")))[2] == [CITY]


# Steps, stop strings, characters


PARTS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "\n", " ", "hello", "안녕 👍"),
    *("<function=get>", "</function>", "<parameter=city>", "<parameter=days>", "<parameter=note>"),
    *("</parameter>", "</param", "\n</parameter>\n", "null", "3", '{"name": "get", "arguments": {'),
    *('"a": "', "}}", '"', "\\", "<"),
)


@st.composite
def replies(draw: st.DrawFn) -> list[tuple[str, bool]]:
    """Parts of replies, each as control tokens where it is one or as other tokens."""
    return draw(st.lists(st.tuples(st.sampled_from(PARTS), st.booleans()), max_size=24))


@given(
    parts=replies(),
    thinking=st.booleans(),
    reason=st.sampled_from(["stop", "length"]),
    data=st.data(),
)
def test_any_steps_give_the_same_pieces(
    tokenizer: Tokenizer,
    parts: list[tuple[str, bool]],
    thinking: bool,
    reason: str,
    data: st.DataObject,
) -> None:
    ids = [i for text, control in parts for i in tokenizer.encode(text, parse_control=control)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    options: dict[str, Any] = {"thinking": thinking, "reason": reason}
    alone = merged(split_ids(tokenizer, ids, 1, **options))
    assert merged(split_ids(tokenizer, ids, cuts, **options)) == alone
    assert merged(split_ids(tokenizer, ids, len(ids) or 1, **options)) == alone


@given(parts=replies(), thinking=st.booleans())
def test_complete_calls_parse_and_others_do_not(
    tokenizer: Tokenizer, parts: list[tuple[str, bool]], thinking: bool
) -> None:
    ids = [i for text, control in parts for i in tokenizer.encode(text, parse_control=control)]
    for _, arguments, complete in shape(split_ids(tokenizer, ids, thinking=thinking))[2]:
        try:
            value = json.loads(arguments)
        except json.JSONDecodeError:
            value = None
        assert isinstance(value, dict) == complete


@given(st.text(max_size=40))
def test_an_answer_without_tags_is_all_of_it(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert shape(split_ids(tokenizer, ids)) == ("", tokenizer.decode(ids), [])


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30))
@example("a\n</parameter>\nb", "", "\n\nx\n")
def test_what_the_form_holds_comes_back(
    tokenizer: Tokenizer, value: str, thought: str, answer: str
) -> None:
    """Render thought, answer and a call as templates do, as text between control tokens: split."""
    plain = tokenizer.encode
    tag = {t: tokenizer.encode(t, parse_control=True) for t in REPLY_TAGS}
    inner = f"\n<function=get>\n<parameter=city>\n{value}\n</parameter>\n</function>\n"
    ids = [
        *plain(f"{thought}\n"), *tag["</think>"], *plain(f"\n\n{answer}\n\n"),
        *tag["<tool_call>"], *plain(inner), *tag["</tool_call>"],
    ]  # fmt: skip
    seen = tokenizer.decode(plain(value))  # the vocabulary's own normal form
    reasoning, text, calls = shape(split_ids(tokenizer, ids, thinking=True))
    assert reasoning == tokenizer.decode(plain(f"{thought}\n")).strip()
    assert text == tokenizer.decode(plain(f"\n\n{answer}\n\n")).strip()
    ((_, arguments, complete),) = calls
    assert complete
    assert json.loads(arguments) == {"city": seen}


REPLY_TAGS = ("</think>", "<tool_call>", "</tool_call>")


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("stop", ["<x", "</p", "zzz", "l>", "on"])
def test_a_stop_string_of_the_engine_changes_only_where_the_reply_ends(
    tokenizer: Tokenizer, stop: str, size: int
) -> None:
    """What is held back for a stop string tears no tag apart."""
    text = f"x\n</think>\n\nok\n\n{CALL}"
    whole = shape(split(tokenizer, text, size, thinking=True))
    cut = text.find(stop)
    pieces = split(tokenizer, text, size, thinking=True, engine_stop=[stop])
    if cut < 0:
        assert shape(pieces) == whole
    else:
        reasoning, answer, calls = shape(pieces)
        assert (reasoning, answer.partition("<tool_cal")[0].strip()) == ("x", "ok")
        assert [complete for *_, complete in calls] == ([False] if "Paris" in text[:cut] else [])


@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_stop_string_of_the_splitter_counts_in_the_answer_alone(
    tokenizer: Tokenizer, size: int
) -> None:
    text = f"hello\n</think>\n\nok\n\n{CALL.replace('Paris', 'hello')}\nsay hello, world"
    pieces = split(tokenizer, text, size, thinking=True, stop=["hello"])
    assert shape(pieces) == ("hello", "oksay ", [("get", '{"city": "hello"}', True)])


def test_the_stop_string_is_named_and_ends_everything(tokenizer: Tokenizer) -> None:
    splitter = ReplySplitter(tokenizer, prompt(tokenizer, False), TOOLS, stop=["lo"])
    for token_id in tokenizer.encode(f"hello {CALL}", parse_control=True):
        found = splitter.push((token_id,), tokenizer.decode([token_id]))
        assert splitter.matched_stop is None or all(isinstance(p, TextDelta) for p in found)
    assert splitter.matched_stop == "lo"
    assert splitter.finish("stop") == []


def test_a_stop_string_does_not_reach_across_a_call(tokenizer: Tokenizer) -> None:
    pieces = split(tokenizer, f"he{CALL}llo", stop=["hello"])
    assert shape(pieces) == ("", "hello", [CITY])


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_characters_of_several_tokens_beside_tags(tokenizer: Tokenizer, size: int) -> None:
    thought, answer, city = "family 👨‍👩‍👧‍👦", "🇰🇷 안녕 שָׁלוֹם", "สวัสดี 👩🏽‍🚀"
    text = f"{thought}</think>{answer}{CALL.replace('Paris', city)}"
    arguments = json.dumps({"city": city}, ensure_ascii=False)
    pieces = split(tokenizer, text, size, thinking=True)
    assert shape(pieces) == (thought, answer, [("get", arguments, True)])


def test_half_a_character_before_a_tag(tokenizer: Tokenizer) -> None:
    half = tokenizer.encode("👍")[:-1]
    assert tokenizer.decode(half) == "\ufffd"
    ids = [*half, *tokenizer.encode("</think>yes", parse_control=True)]
    assert shape(split_ids(tokenizer, ids, thinking=True)) == ("\ufffd", "yes", [])


def test_a_long_value_is_streamed(tokenizer: Tokenizer) -> None:
    body = "the quick brown fox\n" * 250
    ids = tokenizer.encode(CALL.replace("Paris", body), parse_control=True)
    splitter = ReplySplitter(tokenizer, prompt(tokenizer, False), TOOLS)
    silent = longest = deltas = 0
    for token_id in ids:
        found = splitter.push((token_id,), tokenizer.decode([token_id]))
        deltas += sum(isinstance(piece, ToolCallArguments) for piece in found)
        silent = 0 if found or not deltas else silent + 1
        longest = max(longest, silent)
    assert deltas > 1000
    tags = tokenizer.encode("\n</parameter>\n</function>\n</tool_call>")
    assert longest < len(tags)  # no more than may turn out to be the end of the value


def test_text_of_other_ids_is_refused(tokenizer: Tokenizer) -> None:
    splitter = ReplySplitter(tokenizer, prompt(tokenizer, True), TOOLS)
    with pytest.raises(ValueError, match="expected </think>"):
        splitter.push(tokenizer.encode("</think>", parse_control=True), "something else")
