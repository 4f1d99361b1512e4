"""Histories of both protocols, as the shipped template reads them."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from bytebound.errors import InvalidRequestError
from bytebound.names import resolve_model
from bytebound.text.messages import from_anthropic, from_openai
from bytebound.text.reply import (
    ReasoningDelta,
    ReplySplitter,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
)
from bytebound.text.tokenizer import Tokenizer, load_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

Object = dict[str, Any]


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    loaded = load_tokenizer(resolve_model("tiny"))
    assert loaded is not None
    return loaded


def user(content: Any = "hi") -> Object:
    return {"role": "user", "content": content}


def system(content: Any = "be brief", role: str = "system") -> Object:
    return {"role": role, "content": content}


def openai_call(call_id: str = "c1", arguments: Any = '{"a": 1}') -> Object:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": "get", "arguments": arguments},
    }


def openai_answer(content: Any = None, *calls: Object, **more: Any) -> Object:
    sent = {"tool_calls": list(calls)} if calls else {}
    return {"role": "assistant", "content": content, **sent, **more}


def openai_result(content: Any = "12", call_id: str = "c1") -> Object:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def answer(content: str = "", reasoning: str = "", **calls: Object) -> Object:
    message: Object = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": i, "type": "function", "function": {"name": "get", "arguments": arguments}}
            for i, arguments in calls.items()
        ]
    return message


def result(content: str = "12", call_id: str = "c1") -> Object:
    return {"role": "tool", "content": content, "tool_call_id": call_id, "name": "get"}


def reminder(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"


def text_block(text: str, **more: Any) -> Object:
    return {"type": "text", "text": text, **more}


USE = {"type": "tool_use", "id": "c1", "name": "get", "input": {"a": 1}}


def result_block(content: Any = "12", call_id: str = "c1", **more: Any) -> Object:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def test_openai_conversation() -> None:
    sent = [
        system("be brief"),
        user([text_block("one "), text_block("two")]),
        openai_answer(None, openai_call(), openai_call("c2", ""), reasoning_content="hm"),
        openai_result("12"),
        openai_result([text_block("a"), text_block("b")], "c2"),
        openai_answer([text_block("done")], reasoning="so"),
        openai_answer(None, refusal="no"),
        openai_answer("x", openai_call("c3", {"b": [1]})),
    ]
    assert from_openai(sent) == [
        system("be brief"),
        user("one two"),
        answer("", "hm", c1={"a": 1}, c2={}),
        result("12"),
        result("ab", "c2"),
        answer("done", "so"),
        answer("no"),
        answer("x", c3={"b": [1]}),
    ]


def test_anthropic_conversation() -> None:
    sent = [
        user([text_block("one"), text_block("two", cache_control={"type": "ephemeral"})]),
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                text_block("I "),
                text_block("look."),
                USE,
                text_block("And more."),
            ],
        },
        user([result_block([text_block("1"), text_block("2")])]),
        {"role": "assistant", "content": "done"},
    ]
    instructions = [
        text_block("x-anthropic-billing-header: cc_version=1; cch=2;"),
        text_block("be brief", cache_control={"type": "ephemeral"}),
        text_block("be kind"),
    ]
    assert from_anthropic(instructions, sent) == [
        system("be brief\n\nbe kind"),
        user("one\n\ntwo"),
        answer("I look.\n\nAnd more.", "hm", c1={"a": 1}),
        result("12"),
        answer("done"),
    ]
    assert from_anthropic("be brief", [user()]) == [system("be brief"), user()]
    assert from_anthropic(None, [user()]) == [user()]


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (result_block("12"), "12"),
        (result_block([]), ""),
        (result_block(None), ""),
        ({"type": "tool_result", "tool_use_id": "c1"}, ""),
        (result_block("no such file", is_error=True), "Error: no such file"),
        (result_block("Error: no such file", is_error=True), "Error: no such file"),
        (result_block("12", is_error=False, cache_control={}), "12"),
        (result_block("12", is_error=None), "12"),
    ],
)
def test_tool_results(block: Object, text: str) -> None:
    before = [user(), {"role": "assistant", "content": [USE]}]
    assert from_anthropic(None, [*before, user([block])])[2:] == [result(text)]


def test_text_beside_tool_results() -> None:
    before = [user(), {"role": "assistant", "content": [USE, {**USE, "id": "c2"}]}]
    both = [result_block(), result_block("13", "c2")]
    note = reminder("be quick")

    def rest(*blocks: Object) -> list[Object]:
        return from_anthropic(None, [*before, user(list(blocks))])[2:]

    with_note = result(f"13\n\n{note}", "c2")
    assert rest(*both, text_block("stop")) == [result(), result("13", "c2"), user("stop")]
    assert rest(*both, text_block(note)) == [result(), with_note]
    assert rest(text_block(note), *both) == [result(), with_note]
    assert rest(text_block("a"), *both, text_block(note), text_block("b")) == [
        result(),
        with_note,
        user("a\n\nb"),
    ]
    assert rest(*both, text_block(" \n")) == [result(), result("13", "c2")]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_messages_anywhere(role: str) -> None:
    call, more = openai_answer(None, openai_call()), system("later", role)
    later = reminder("later")
    cases: list[tuple[Sequence[Object], list[Object]]] = [
        ([system("a"), more, user()], [system("a\n\nlater"), user()]),
        ([more, user()], [system("later"), user()]),
        ([user(), more], [user(f"hi\n\n{later}")]),
        ([user(""), more], [user(later)]),
        (
            [user(), call, openai_result(), more],
            [user(), answer(c1={"a": 1}), result(f"12\n\n{later}")],
        ),
        ([user(), openai_answer("x"), more], [user(), answer("x"), user(later)]),
        ([user(), system(later, role)], [user(f"hi\n\n{later}")]),
    ]
    for sent, expected in cases:
        assert from_openai(sent) == expected
    assert from_anthropic("a", [user(), more]) == [system("a"), user(f"hi\n\n{later}")]


OPENAI_ERRORS = {
    "messages: got 'hi'": "hi",
    "messages: got None": None,
    r"messages\[1\]: got 'hi'": [user(), "hi"],
    r"messages\[0\]\.role: got 'function'": [{"role": "function", "content": "x"}],
    r"messages\[0\]\.role: got None": [{"content": "x"}],
    r"messages\[0\]\.content: got None": [user(None)],
    r"messages\[0\]\.content: got 3": [user(3)],
    r"messages\[0\]\.content\[1\]\.type: got 'image_url', expected text; only text": [
        user([text_block("a"), {"type": "image_url", "image_url": {"url": "x"}}])
    ],
    r"messages\[0\]\.content\[0\]\.text: got None": [user([{"type": "text"}])],
    r"messages\[0\]\.content\[0\]: got 'a'": [user(["a"])],
    r"messages\[1\]\.content: got None, expected a string, or tool_calls": [
        user(),
        openai_answer(),
    ],
    r"messages\[0\]\.reasoning_content: got 3": [openai_answer("x", reasoning_content=3)],
    r"messages\[0\]\.tool_calls: got 'x'": [openai_answer("x", tool_calls="x")],
    r"messages\[0\]\.tool_calls\[0\]: got 'x'": [openai_answer("x", tool_calls=["x"])],
    r"messages\[0\]\.tool_calls\[0\]\.type: got 'custom'": [
        openai_answer(None, {**openai_call(), "type": "custom"})
    ],
    r"messages\[0\]\.tool_calls\[0\]\.id: got None": [
        openai_answer(None, {**openai_call(), "id": None})
    ],
    r"messages\[0\]\.tool_calls\[0\]\.function\.name: got ''": [
        openai_answer(None, {"id": "c", "function": {"name": ""}})
    ],
    r"messages\[0\]\.tool_calls\[0\]\.function\.arguments: got '\[1\]', expected a JSON object": [
        openai_answer(None, openai_call(arguments="[1]"))
    ],
    r"function\.arguments: got '\{": [openai_answer(None, openai_call(arguments="{"))],
    r"arguments: got '\[{79}\.\.\.": [openai_answer(None, openai_call(arguments="[" * 9000))],
    r"messages\[0\]\.function_call": [openai_answer("x", function_call={"name": "x"})],
    r"messages\[1\]\.tool_call_id: got 'c1', expected the id of a tool call": [
        user(),
        openai_result(),
    ],
    r"messages\[1\]\.tool_call_id: got 'c9'": [
        openai_answer(None, openai_call()),
        openai_result("x", "c9"),
    ],
    r"messages\[0\]\.tool_call_id: got None": [{"role": "tool", "content": "x"}],
}


@pytest.mark.parametrize("message", OPENAI_ERRORS)
def test_openai_errors(message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        from_openai(OPENAI_ERRORS[message])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


IMAGE = {"type": "image", "source": {"type": "base64", "data": "x"}}
ANTHROPIC_ERRORS: dict[str, tuple[Any, Any]] = {
    "system: got 3": (3, [user()]),
    r"system\[0\]\.type: got 'image'": ([IMAGE], [user()]),
    r"messages\[0\]\.role: got 'tool'": (None, [{"role": "tool", "content": "x"}]),
    r"messages\[0\]\.content: got None": (None, [user(None)]),
    r"messages\[0\]\.content\[0\]\.type: got 'image', .* images and files": (None, [user([IMAGE])]),
    r"messages\[0\]\.content\[0\]\.tool_use_id: got 'c1'": (None, [user([result_block()])]),
    r"messages\[1\]\.content\[0\]\.content\[0\]\.type: got 'image'": (
        None,
        [{"role": "assistant", "content": [USE]}, user([result_block([IMAGE])])],
    ),
    r"messages\[1\]\.content\[0\]\.is_error: got 'yes'": (
        None,
        [{"role": "assistant", "content": [USE]}, user([result_block("x", is_error="yes")])],
    ),
    r"messages\[0\]\.content\[0\]\.type: got 'server_tool_use'": (
        None,
        [{"role": "assistant", "content": [{"type": "server_tool_use"}]}],
    ),
    r"messages\[0\]\.content\[0\]\.input: got \[1\]": (
        None,
        [{"role": "assistant", "content": [{**USE, "input": [1]}]}],
    ),
    r"messages\[0\]\.content\[0\]\.thinking: got None": (
        None,
        [{"role": "assistant", "content": [{"type": "thinking"}]}],
    ),
}


@pytest.mark.parametrize("message", ANTHROPIC_ERRORS)
def test_anthropic_errors(message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        from_anthropic(*ANTHROPIC_ERRORS[message])
    assert "\n" not in str(caught.value)


# What the template makes of it


def test_a_loop_of_tools_keeps_its_prefix(tiny: Tokenizer) -> None:
    """Each prompt of a turn, up to its open thought, begins the next one, reminders and all."""
    sent: list[Object] = [system(), user("count")]
    prompts = []
    for step in range(4):
        prompts.append(tiny.apply_chat_template(from_openai(sent)))
        call = openai_call(f"c{step}", json.dumps({"n": step}))
        sent += [
            openai_answer(None, call, reasoning_content=f"step {step}"),
            openai_result(f"did {step}", f"c{step}"),
            system(f"reminder {step}"),
        ]
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before


def test_reminders_beside_results_keep_the_prefix_too(tiny: Tokenizer) -> None:
    sent: list[Object] = [user("count")]
    prompts = []
    for step in range(4):
        prompts.append(tiny.apply_chat_template(from_anthropic("be brief", sent)))
        thinking = {"type": "thinking", "thinking": f"step {step}", "signature": ""}
        use = {**USE, "id": f"c{step}"}
        sent += [
            {"role": "assistant", "content": [thinking, use]},
            user([result_block("did", f"c{step}"), text_block(reminder(f"note {step}"))]),
        ]
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before


def test_both_protocols_render_alike(tiny: Tokenizer) -> None:
    openai = [
        system("be brief"),
        user("count"),
        openai_answer("I look.", openai_call(), reasoning_content="hm"),
        openai_result(),
    ]
    anthropic = [
        user("count"),
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm"}, text_block("I look."), USE],
        },
        user([result_block()]),
    ]
    assert from_openai(openai) == from_anthropic("be brief", anthropic)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=60)
@given(thought=TEXT, said=TEXT, value=TEXT, number=st.integers() | st.booleans() | st.none())
def test_a_reply_sent_back_renders_as_it_was_written(
    tiny: Tokenizer, thought: str, said: str, value: str, number: object
) -> None:
    """Split what the template wrote for an answer, send it back: the template writes the same."""
    schema = {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "number": {"type": ["integer", "boolean", "null"]},
            "list": {"type": "array"},
        },
    }
    arguments = {"text": value, "number": number, "list": [value, number]}
    head = [user("count")]
    written = openai_answer(
        said, openai_call("call_0", json.dumps(arguments)), reasoning_content=thought
    )
    start = tiny.apply_chat_template(from_openai(head))
    whole = tiny.apply_chat_template(from_openai([*head, written]), add_generation_prompt=False)
    opening, end = tiny.encode("<think><|im_end|>", parse_control=True)
    thinking_from = whole.index(opening) + 1
    assert whole[:thinking_from] == start[:thinking_from]
    reply = whole[thinking_from : whole.index(end, thinking_from)]

    splitter = ReplySplitter(tiny, start, {"get": schema}, call_id=lambda i: f"call_{i}")
    pieces = [*splitter.push(reply, tiny.decode(reply)), *splitter.finish("stop")]
    back = openai_answer(
        "".join(p.text for p in pieces if isinstance(p, TextDelta)),
        *(
            {
                "id": start.id,
                "function": {
                    "name": start.name,
                    "arguments": "".join(
                        p.json_delta for p in pieces if isinstance(p, ToolCallArguments)
                    ),
                },
            }
            for start in pieces
            if isinstance(start, ToolCallStart)
        ),
        reasoning_content="".join(p.text for p in pieces if isinstance(p, ReasoningDelta)),
    )
    assert (
        tiny.apply_chat_template(from_openai([*head, back]), add_generation_prompt=False) == whole
    )
    (call,) = back["tool_calls"]
    assert call["function"]["name"] == "get"
    found = json.loads(call["function"]["arguments"])
    assert (found["number"], type(found["number"])) == (number, type(number))
