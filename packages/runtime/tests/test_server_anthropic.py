"""Anthropic's protocol over scripts: the official client, the order of events, agents' habits."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from bytebound.text.tokenizer import Tokenizer

from .server_runs import MODEL, Served, events_of, script, served
from .test_server_openai import REPLY

ASK: list[Any] = [{"role": "user", "content": "hello"}]
TOOLS: list[Any] = [
    {
        "name": "read",
        "input_schema": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
        },
    },
    {"name": "stop", "description": "Stops", "input_schema": {"type": "object"}},
]
THINK: dict[str, Any] = {"type": "enabled", "budget_tokens": 1024}
ASKED: dict[str, Any] = {
    "model": "claude-anything",
    "max_tokens": 500,
    "messages": ASK,
    "tools": TOOLS,
    "thinking": THINK,
}
INPUT = {"path": 'a "b".txt', "lines": 3}


@pytest.fixture(scope="module", params=[1, 3], ids=["one-a-step", "three-a-step"])
def tools_server(tokenizer: Tokenizer, request: pytest.FixtureRequest) -> Iterator[Served]:
    with served(script(tokenizer, REPLY, per_step=request.param)) as found:
        yield found


@pytest.fixture(scope="module")
def plain(tokenizer: Tokenizer) -> Iterator[Served]:
    with served(script(tokenizer, "the quick brown fox jumps")) as found:
        yield found


def without_ids(message: Any) -> dict[str, Any]:
    """What two replies to one request share: all but random names, times and the cache."""
    dumped: dict[str, Any] = json.loads(message.model_dump_json())
    for name in ("id", "x_bytebound", "parsed_output"):
        dumped.pop(name, None)
    usage = dumped.pop("usage")
    dumped["output_tokens"] = usage["output_tokens"]
    dumped["all_input"] = usage["input_tokens"] + usage["cache_read_input_tokens"]
    for block in dumped["content"]:
        block.pop("id", None)
        block.pop("parsed_output", None)
    return {name: value for name, value in dumped.items() if value is not None}


def test_the_client_rebuilds_from_events_what_is_returned_whole(tools_server: Served) -> None:
    client = tools_server.anthropic
    whole = client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as stream:
        rebuilt = stream.get_final_message()
    assert without_ids(rebuilt) == without_ids(whole)
    kinds = [block.type for block in whole.content]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    thinking, text, first, second = whole.content
    assert thinking.type == "thinking" and thinking.thinking == "let me see, 안녕 👍"
    assert text.type == "text" and text.text == "Reading the file."
    assert first.type == "tool_use" and first.input == INPUT and first.id.startswith("toolu_")
    assert second.type == "tool_use" and second.input == {} and second.id != first.id
    assert whole.stop_reason == "tool_use"
    assert whole.model == MODEL


def test_each_block_is_started_and_stopped_once(tools_server: Served) -> None:
    events = [value for _, value in events_of(tools_server.post("/v1/messages", STREAMED))]
    names = [value["type"] for value in events]
    assert names[0] == "message_start" and names.count("message_start") == 1
    assert names[-2:] == ["message_delta", "message_stop"]
    kinds: dict[int, str] = {}
    open_block: int | None = None
    fits = {"thinking": "thinking_delta", "text": "text_delta", "tool_use": "input_json_delta"}
    for value in events[1:-2]:
        if value["type"] == "content_block_start":
            assert open_block is None and value["index"] == len(kinds)
            open_block = value["index"]
            kinds[open_block] = value["content_block"]["type"]
        else:
            assert value["index"] == open_block
            if value["type"] == "content_block_stop":
                open_block = None
            else:
                assert value["delta"]["type"] == fits[kinds[value["index"]]]
    assert open_block is None
    assert list(kinds.values()) == ["thinking", "text", "tool_use", "tool_use"]
    assert events[-2]["usage"]["output_tokens"] > 0


STREAMED = {**ASKED, "stream": True}


def test_every_event_bears_the_name_of_its_type(tools_server: Served) -> None:
    for name, value in events_of(tools_server.post("/v1/messages", STREAMED)):
        assert name == value["type"]


def test_a_cut_thought_and_a_cut_call(tools_server: Served, tokenizer: Tokenizer) -> None:
    client = tools_server.anthropic
    cut = client.messages.create(**{**ASKED, "max_tokens": 3})
    assert [block.type for block in cut.content] == ["thinking"]
    assert cut.stop_reason == "max_tokens"
    length = len(tokenizer.encode(REPLY.partition("</parameter>")[0], parse_control=True))
    asked = {**ASKED, "max_tokens": length - 3}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        rebuilt = stream.get_final_message()
    assert whole.stop_reason == rebuilt.stop_reason == "max_tokens"
    assert [b.type for b in whole.content] == ["thinking", "text", "tool_use"]
    assert without_ids(whole) == without_ids(rebuilt)
    assert whole.content[2].type == "tool_use" and whole.content[2].input != INPUT


def test_a_budget_ends_the_thought(tools_server: Served) -> None:
    """After the forced end a script starts anew, and what it says is no thought any more."""
    asked = {**ASKED, "thinking": {"type": "enabled", "budget_tokens": 4}, "max_tokens": 30}
    whole = tools_server.anthropic.messages.create(**asked)
    first = whole.content[0]
    assert first.type == "thinking"
    assert first.thinking != "let me see, 안녕 👍"
    assert "let me see, 안녕 👍".startswith(first.thinking)
    assert whole.content[1].type == "text"


def test_which_stop_sequence_ended_it(plain: Served) -> None:
    asked: dict[str, Any] = {"model": "x", "max_tokens": 50, "messages": ASK}
    whole = plain.anthropic.messages.create(**asked, stop_sequences=["zebra", " fox"])
    assert whole.stop_reason == "stop_sequence" and whole.stop_sequence == " fox"
    block = whole.content[0]
    assert block.type == "text" and block.text == "the quick brown"
    assert plain.anthropic.messages.create(**asked).stop_reason == "end_turn"


RESULTS: list[Any] = [
    {"role": "user", "content": [{"type": "text", "text": "hello"}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "redacted_thinking", "data": "xyz"},
            {"type": "text", "text": "say"},
            {"type": "tool_use", "id": "toolu_1", "name": "read", "input": INPUT},
            {"type": "tool_use", "id": "toolu_2", "name": "stop", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "text"},
            {
                "type": "tool_result",
                "tool_use_id": "toolu_2",
                "is_error": True,
                "content": [{"type": "text", "text": "no", "cache_control": {"type": "ephemeral"}}],
            },
            {"type": "text", "text": "go on"},
        ],
    },
]


@pytest.mark.parametrize(
    "more",
    [
        {"system": "be brief"},
        {
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cch=1"},
                {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}},
            ]
        },
        {"thinking": {"type": "adaptive"}},
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "enabled", "budget_tokens": 2048}},
        {"messages": RESULTS, "tools": TOOLS},
        {"messages": [*RESULTS, {"role": "system", "content": "a reminder"}], "tools": TOOLS},
        {"tools": TOOLS, "tool_choice": {"type": "none"}},
        {"metadata": {"user_id": "u"}, "service_tier": "auto", "context_management": {"edits": []}},
    ],
)
def test_what_agents_send_is_taken_and_counted(plain: Served, more: dict[str, Any]) -> None:
    body = {"model": "claude-x", "messages": ASK, **more}
    headers = {"anthropic-beta": "new-thing-2030-01-01", "anthropic-version": "2023-06-01"}
    with plain.http as client:
        counted = client.post("/v1/messages/count_tokens?beta=true", json=body, headers=headers)
        asked = {**body, "max_tokens": 4}
        answered = client.post("/v1/messages?beta=true", json=asked, headers=headers)
    assert counted.status_code == 200, counted.text
    assert answered.status_code == 200, answered.text
    usage = answered.json()["usage"]
    total = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted.json()["input_tokens"] == total
    if "service_tier" in more:
        ignored = answered.json()["x_bytebound"]["ignored"]
        assert ignored == ["context_management", "service_tier"]


def test_a_changing_billing_line_changes_no_prompt(plain: Served) -> None:
    def count(first: str) -> Any:
        system = [{"type": "text", "text": first}, {"type": "text", "text": "be brief"}]
        body = {"model": "x", "messages": ASK, "system": system}
        return plain.post("/v1/messages/count_tokens", body).json()["input_tokens"]

    short = count("x-anthropic-billing-header: cch=1;")
    assert short == count("x-anthropic-billing-header: a much longer one; cch=123456;")
    assert count("other words that count") > short


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": 1e400}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages"),
        ({"messages": [*ASK, {"role": "assistant", "content": "{"}]}, "messages"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"stop_sequences": [""]}, "stop_sequences"),
    ],
)
def test_what_is_refused_is_named_in_its_envelope(
    plain: Served, more: dict[str, Any], named: str
) -> None:
    body = {"model": "x", "max_tokens": 5, "messages": ASK, **more}
    with plain.http as client:
        response = client.post(
            "/v1/messages",
            content=json.dumps(body),
            headers={"content-type": "application/json"},
        )
    found = response.json()
    assert response.status_code == 400
    assert found["type"] == "error"
    assert found["error"]["type"] == "invalid_request_error"
    assert named in found["error"]["message"]
    assert plain.post("/v1/messages", {**body, **{k: v for k, v in OK.items()}}).status_code == 200


OK: dict[str, Any] = {
    "max_tokens": 5,
    "messages": ASK,
    "temperature": 0,
    "top_k": 0,
    "tool_choice": None,
    "tools": None,
    "output_config": None,
    "mcp_servers": None,
    "stop_sequences": None,
}


def test_a_long_argument_is_streamed_as_it_comes(tokenizer: Tokenizer) -> None:
    words = "the quick brown fox jumps over the lazy dog " * 40
    call = (
        f"ok</think>\n\n<tool_call>\n<function=read>\n<parameter=path>\n{words}\n</parameter>\n"
        "</function>\n</tool_call>"
    )
    with served(script(tokenizer, call)) as found, found.anthropic as client:
        whole = client.messages.create(**{**ASKED, "max_tokens": 4000})
        events = events_of(found.post("/v1/messages", {**STREAMED, "max_tokens": 4000}))
    deltas = [
        value["delta"]["partial_json"]
        for _, value in events
        if value["type"] == "content_block_delta" and value["delta"]["type"] == "input_json_delta"
    ]
    assert len(deltas) >= 100
    block = whole.content[-1]
    assert block.type == "tool_use"
    assert block.input == json.loads("".join(deltas)) == {"path": words}


def test_errors_of_the_official_client(plain: Served) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        plain.anthropic.messages.create(model="x", max_tokens=0, messages=ASK)


def test_a_prompt_that_is_too_long_is_refused_in_the_words_agents_look_for(
    tokenizer: Tokenizer,
) -> None:
    with served(script(tokenizer, "the quick", max_len=64)) as found:
        asked: dict[str, Any] = {"model": "x", "max_tokens": 5}
        asked["messages"] = [{"role": "user", "content": "hello " * 80}]
        count = found.post("/v1/messages/count_tokens", asked).json()["input_tokens"]
        with pytest.raises(anthropic.BadRequestError) as caught:
            found.anthropic.messages.create(**asked)
    assert count > 64
    assert f"prompt is too long: {count} tokens > 64 maximum" in str(caught.value)
