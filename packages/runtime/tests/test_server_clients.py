"""What the official clients put together from events is what is returned whole, byte for byte.

Thinking, text and two calls come from a script; tiny thinks and calls by itself, and answers from
the result that it is given.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from bytebound import Engine
from bytebound.text.tokenizer import Tokenizer

from .server_runs import MODEL, Served, script, served
from .test_server_anthropic import without_ids
from .test_server_openai import REPLY, gathered

LOOK = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
READ = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
    "required": ["path", "lines"],
    "additionalProperties": False,
}
STOP: dict[str, Any] = {
    "type": "object",
    "properties": {},
    "required": [],
    "additionalProperties": False,
}
ASK = "What is the weather in Paris?"
SCHEMAS = {
    MODEL: {"read": READ, "stop": STOP},
    "tiny": {"get_weather": LOOK},
}


@pytest.fixture(scope="module")
def tiny() -> Engine:
    return Engine.from_pretrained("tiny", backend="reference", device="cpu", dtype="float32")


@pytest.fixture(scope="module", params=["script-1", "script-4", "tiny"])
def server(
    tokenizer: Tokenizer, tiny: Engine, request: pytest.FixtureRequest
) -> Iterator[tuple[Served, str]]:
    if request.param == "tiny":
        with served(tiny, model="tiny") as found:
            yield found, "tiny"
    else:
        per_step = int(request.param[-1])
        with served(script(tokenizer, REPLY, per_step=per_step)) as found:
            yield found, MODEL


def openai_tools(model: str) -> list[Any]:
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "Current weather of a city",
                "parameters": schema,
            },
        }
        for name, schema in SCHEMAS[model].items()
    ]


def anthropic_tools(model: str) -> list[Any]:
    return [
        {"name": name, "description": "Current weather of a city", "input_schema": schema}
        for name, schema in SCHEMAS[model].items()
    ]


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.7, "seed": 11}], ids=["greedy", "drawn"]
)
def test_openai(server: tuple[Served, str], sampling: dict[str, Any]) -> None:
    found, model = server
    messages: list[Any] = [{"role": "user", "content": ASK}]
    asked: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "tools": openai_tools(model),
        "max_completion_tokens": 300,
        **sampling,
    }
    client = found.openai
    whole = client.chat.completions.create(**asked)
    parts = gathered(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    message, extra = whole.choices[0].message, whole.choices[0].message.model_extra or {}
    assert (message.content or "") == parts["content"]
    assert extra.get("reasoning_content", "") == parts["reasoning"]
    calls = [(c.function.name, c.function.arguments) for c in message.tool_calls or ()]
    assert calls == [(one["name"], one["arguments"]) for one in parts["calls"].values()]
    assert whole.choices[0].finish_reason == parts["finish"]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == parts["usage"].completion_tokens
    if model == MODEL or not sampling:
        assert len(calls) == len(SCHEMAS[model])
    if model == MODEL:
        assert message.content == "Reading the file."
        assert extra["reasoning_content"] == "let me see, 안녕 👍"
        assert json.loads(calls[0][1]) == {"path": 'a "b".txt', "lines": 3}


def test_openais_own_accumulator(server: tuple[Served, str]) -> None:
    """It takes no tools but those whose arguments are held to their schema, so there are none."""
    found, model = server
    asked: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": ASK}]}
    asked["max_completion_tokens"] = 300
    client = found.openai
    whole = client.chat.completions.create(**asked).choices[0]
    with client.chat.completions.stream(**asked) as stream:
        rebuilt = stream.get_final_completion().choices[0]
    assert rebuilt.message.content == whole.message.content
    assert rebuilt.message.model_extra == whole.message.model_extra
    assert rebuilt.finish_reason == whole.finish_reason


def test_anthropic(server: tuple[Served, str]) -> None:
    found, model = server
    asked: dict[str, Any] = {
        "model": model,
        "max_tokens": 300,
        "messages": [{"role": "user", "content": ASK}],
        "tools": anthropic_tools(model),
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    client = found.anthropic
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        rebuilt = stream.get_final_message()
    assert without_ids(whole) == without_ids(rebuilt)
    kinds = [block.type for block in whole.content]
    calls = ["tool_use"] * len(SCHEMAS[model])
    assert kinds == (["thinking", "text", *calls] if model == MODEL else ["thinking", *calls])
    assert whole.stop_reason == "tool_use"


def test_tiny_answers_from_the_result_over_either_protocol(tiny: Engine) -> None:
    result = '{"sky": "rainy", "degrees": 17}'
    with served(tiny, model="tiny") as found:
        asked: dict[str, Any] = {"model": "tiny", "tools": openai_tools("tiny")}
        messages: list[Any] = [{"role": "user", "content": ASK}]
        first = found.openai.chat.completions.create(**asked, messages=messages)
        message = first.choices[0].message
        assert message.tool_calls is not None
        (call,) = message.tool_calls
        assert call.type == "function"
        assert json.loads(call.function.arguments) == {"city": "Paris"}
        messages += [message.model_dump(exclude_none=True)]
        messages += [{"role": "tool", "tool_call_id": call.id, "content": result}]
        second = found.openai.chat.completions.create(**asked, messages=messages)
        text = second.choices[0].message.content

        also: dict[str, Any] = {"model": "any", "max_tokens": 300, "tools": anthropic_tools("tiny")}
        also["thinking"] = {"type": "adaptive"}
        turns: list[Any] = [{"role": "user", "content": ASK}]
        reply = found.anthropic.messages.create(**also, messages=turns)
        used = reply.content[-1]
        assert used.type == "tool_use" and used.input == {"city": "Paris"}
        block = {"type": "tool_result", "tool_use_id": used.id, "content": result}
        turns += [{"role": "assistant", "content": reply.content}]
        turns += [{"role": "user", "content": [block]}]
        last = found.anthropic.messages.create(**also, messages=turns)
    said = "".join(block.text for block in last.content if block.type == "text")
    assert said == text and "17 degrees" in said
    assert second.usage is not None
    assert (last.usage.input_tokens + (last.usage.cache_read_input_tokens or 0)) == (
        second.usage.prompt_tokens
    )


NEVER = ["</thinks>", "<tool_calls", "Reading the files", "\n\nAnd", "fox<"]
"""Stop strings that tags and texts begin like, and that do not come."""


def test_stop_strings_that_do_not_come_split_nothing_otherwise(tokenizer: Tokenizer) -> None:
    messages: list[Any] = [{"role": "user", "content": ASK}]
    for per_step in (1, 4):
        with served(script(tokenizer, REPLY, per_step=per_step)) as found:
            for stop in ({}, {"stop": NEVER}):
                asked: dict[str, Any] = {"model": MODEL, "messages": messages, **stop}
                asked["tools"] = openai_tools(MODEL)
                whole = found.openai.chat.completions.create(**asked).choices[0]
                parts = gathered(found.openai.chat.completions.create(**asked, stream=True))
                assert whole.message.content == parts["content"] == "Reading the file."
                assert parts["reasoning"] == "let me see, 안녕 👍"
                assert [call["name"] for call in parts["calls"].values()] == ["read", "stop"]
                assert whole.finish_reason == parts["finish"] == "tool_calls"
            also: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": 300}
            also |= {"tools": anthropic_tools(MODEL), "thinking": {"type": "adaptive"}}
            plain = found.anthropic.messages.create(**also)
            with found.anthropic.messages.stream(**also, stop_sequences=NEVER) as stream:
                rebuilt = stream.get_final_message()
            assert without_ids(rebuilt) == without_ids(plain)
            assert rebuilt.stop_reason == "tool_use"
