"""OpenAI's protocol over scripts: the official client, the shape of every chunk, refusals."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from bytebound.text.tokenizer import Tokenizer

from .server_runs import MODEL, Served, events_of, script, served

CALLS = (
    '\n<tool_call>\n<function=read>\n<parameter=path>\na "b".txt\n</parameter>\n'
    "<parameter=lines>\n3\n</parameter>\n</function>\n</tool_call>"
    "\n<tool_call>\n<function=stop>\n</function>\n</tool_call>"
)
REPLY = f"let me see, 안녕 👍</think>\n\nReading the file.{CALLS}"
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "description": "Reads a file",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
            },
        },
    },
    {"type": "function", "function": {"name": "stop", "parameters": {"type": "object"}}},
]
ASK: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module", params=[1, 3], ids=["one-a-step", "three-a-step"])
def tools_server(tokenizer: Tokenizer, request: pytest.FixtureRequest) -> Iterator[Served]:
    with served(script(tokenizer, REPLY, per_step=request.param)) as found:
        yield found


@pytest.fixture(scope="module")
def plain(tokenizer: Tokenizer) -> Iterator[Served]:
    with served(script(tokenizer, "the quick brown fox jumps over the lazy dog")) as found:
        yield found


def gathered(stream: Any) -> dict[str, Any]:
    """What a program that reads a stream has at its end."""
    found: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}}
    for chunk in stream:
        if chunk.usage is not None:
            found["usage"] = chunk.usage
        for choice in chunk.choices:
            delta = choice.delta
            found["content"] += delta.content or ""
            found["reasoning"] += getattr(delta, "reasoning_content", None) or ""
            for call in delta.tool_calls or ():
                kept = found["calls"].setdefault(call.index, {"name": "", "arguments": ""})
                kept["name"] += call.function.name or ""
                kept["arguments"] += call.function.arguments or ""
            found["finish"] = choice.finish_reason
    return found


def test_thinking_text_and_two_tools_are_the_same_in_both_forms(tools_server: Served) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": ASK, "tools": TOOLS}
    client = tools_server.openai
    whole = client.chat.completions.create(**asked)
    stream = client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    parts = gathered(stream)
    message = whole.choices[0].message
    assert message.content == parts["content"] == "Reading the file."
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"] == parts["reasoning"] == "let me see, 안녕 👍"
    assert message.tool_calls is not None
    calls = [
        {"name": call.function.name, "arguments": call.function.arguments}
        for call in message.tool_calls
        if call.type == "function"
    ]
    assert calls == [parts["calls"][0], parts["calls"][1]]
    assert json.loads(calls[0]["arguments"]) == {"path": 'a "b".txt', "lines": 3}
    assert calls[1] == {"name": "stop", "arguments": "{}"}
    assert whole.choices[0].finish_reason == parts["finish"] == "tool_calls"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == parts["usage"].completion_tokens


def test_a_tool_that_was_not_offered_is_text(tools_server: Served) -> None:
    whole = tools_server.openai.chat.completions.create(model=MODEL, messages=ASK)
    assert whole.choices[0].message.tool_calls is None
    assert "<function=read>" in (whole.choices[0].message.content or "")
    assert whole.choices[0].finish_reason == "stop"


def test_thinking_that_is_cut_off_stays_thinking(tools_server: Served) -> None:
    whole = tools_server.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=3)
    message = whole.choices[0].message
    assert message.content == ""
    assert message.model_extra is not None
    assert "let me see, 안녕 👍".startswith(message.model_extra["reasoning_content"])
    assert whole.choices[0].finish_reason == "length"


def test_the_shape_of_every_chunk(tools_server: Served) -> None:
    body = {"model": MODEL, "messages": ASK, "tools": TOOLS, "stream": True}
    for usage in (False, True):
        response = tools_server.post(
            "/v1/chat/completions", {**body, "stream_options": {"include_usage": usage}}
        )
        assert response.headers["content-type"].startswith("text/event-stream")
        *chunks, (_, done) = events_of(response)
        assert done == "[DONE]"
        values = [value for _, value in chunks]
        assert len({value["id"] for value in values}) == 1
        if usage:
            last = values.pop()
            assert last["choices"] == []
            assert last["usage"]["total_tokens"] > 0
            assert last["x_bytebound"]["prefill_s"] >= 0
        choices = [choice for value in values for choice in value["choices"]]
        assert len(choices) == len(values)
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in choices[1:])
        assert all(choice["finish_reason"] is None for choice in choices[:-1])
        assert choices[-1]["delta"] == {}
        assert choices[-1]["finish_reason"] == "tool_calls"
        assert all(("usage" in value) == usage for value in values)
        assert all(value.get("usage") is None for value in values)


def test_a_stop_string_ends_the_answer_and_not_the_thinking(tokenizer: Tokenizer) -> None:
    engine = script(tokenizer, "fox one</think>\n\nthe quick fox jumps", slow=True)
    with served(engine) as found:
        asked: dict[str, Any] = {"model": MODEL, "messages": ASK, "stop": "fox"}
        whole = found.openai.chat.completions.create(**asked)
        parts = gathered(found.openai.chat.completions.create(**asked, stream=True))
    assert whole.choices[0].message.content == parts["content"] == "the quick "
    assert whole.choices[0].finish_reason == parts["finish"] == "stop"
    assert parts["reasoning"] == "fox one"
    assert whole.usage is not None
    full = len(tokenizer.encode("fox one</think>\n\nthe quick fox jumps", parse_control=True))
    assert whole.usage.completion_tokens < full


@pytest.mark.parametrize("per_step", [1, 4, 100])
def test_tokens_behind_a_stop_string_are_not_counted(tokenizer: Tokenizer, per_step: int) -> None:
    """A pass with drafts may give more than the reply takes."""
    before, behind = "the quick fo", "x jumps over the lazy dog"
    thought = "fox one</think>\n\n"
    ids = tokenizer.encode(thought + before + behind, parse_control=True)
    count = next(n for n in range(len(ids)) if tokenizer.decode(ids[:n]).count("fox") == 2)
    asked: dict[str, Any] = {"model": MODEL, "messages": ASK, "stop": "fox", "logprobs": True}
    with served(script(tokenizer, thought + before + behind, per_step=per_step)) as found:
        whole = found.openai.chat.completions.create(**asked)
        asked["stream_options"] = {"include_usage": True}
        chunks = list(found.openai.chat.completions.create(**asked, stream=True))
        message = found.anthropic.messages.create(
            model=MODEL,
            messages=ASK,
            max_tokens=300,
            stop_sequences=["fox"],
            thinking={"type": "adaptive"},
        )
    assert whole.usage is not None and chunks[-1].usage is not None
    assert whole.choices[0].logprobs is not None and whole.choices[0].logprobs.content is not None
    named = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices]
    assert whole.usage.completion_tokens == count < len(ids)
    assert chunks[-1].usage.completion_tokens == message.usage.output_tokens == count
    assert len(whole.choices[0].logprobs.content) == count
    assert sum(len(part.content or ()) for part in named if part is not None) == count


def test_logprobs_name_every_token_of_the_answer(plain: Served, tokenizer: Tokenizer) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": ASK,
        "logprobs": True,
        "top_logprobs": 2,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    asked["extra_body"] = {"chat_template_kwargs": asked.pop("chat_template_kwargs")}
    whole = plain.openai.chat.completions.create(**asked).choices[0]
    assert whole.logprobs is not None and whole.logprobs.content is not None
    joined = b"".join(bytes(entry.bytes or ()) for entry in whole.logprobs.content)
    assert joined.decode() == whole.message.content
    assert all(len(entry.top_logprobs) == 2 for entry in whole.logprobs.content)
    streamed = []
    for chunk in plain.openai.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            if choice.logprobs is not None:
                streamed += choice.logprobs.content or []
    assert streamed == whole.logprobs.content


def test_completions_stream_what_they_return(plain: Served, tokenizer: Tokenizer) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": ["hello", "say"], "logprobs": 1}
    asked["echo"] = True
    whole = plain.openai.completions.create(**asked)
    texts: dict[int, str] = {0: "", 1: ""}
    ends: dict[int, Any] = {}
    names: dict[int, list[str]] = {0: [], 1: []}
    for chunk in plain.openai.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            ends[choice.index] = choice.finish_reason
            names[choice.index] += (choice.logprobs.tokens or []) if choice.logprobs else []
    assert [choice.text for choice in whole.choices] == [texts[0], texts[1]]
    assert texts[0].startswith("hellothe quick")
    assert [choice.finish_reason for choice in whole.choices] == [ends[0], ends[1]]
    for choice in whole.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.tokens == names[choice.index]
        assert "".join(names[choice.index]) == choice.text
        offsets = choice.logprobs.text_offset or []
        for name, offset in zip(choice.logprobs.tokens or [], offsets, strict=True):
            assert choice.text[offset:].startswith(name)


def test_a_failure_in_mid_stream_is_the_last_event(tokenizer: Tokenizer) -> None:
    """Without an end id the script raises once it is over."""
    engine = script(tokenizer, "the quick")
    engine.executor._end_id = None  # type: ignore[attr-defined]
    engine.end_ids = frozenset()
    with served(engine) as found:
        body = {"model": MODEL, "prompt": "hello", "stream": True, "max_tokens": 50}
        events = [value for _, value in events_of(found.post("/v1/completions", body))]
        assert events[-1] == "[DONE]"
        assert "script is over" in events[-2]["error"]["message"]
        with pytest.raises(openai.APIError, match="script is over"):
            list(
                found.openai.completions.create(
                    model=MODEL, prompt="hello", stream=True, max_tokens=50
                )
            )
        whole = found.post("/v1/completions", {**body, "stream": False})
        assert whole.status_code == 400
        assert found.post("/v1/completions", {**body, "max_tokens": 2}).status_code == 200


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"unheard_of": 1}, "unheard_of"),
        ({"functions": []}, "functions"),
        ({"n": 2}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"seed": 2**70}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"stop": ""}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"response_format": {"type": "regex"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
    ],
)
def test_what_is_refused_is_named(plain: Served, more: dict[str, Any], named: str) -> None:
    body = {"model": MODEL, "messages": ASK, **more}
    with plain.http as client:
        response = client.post(
            "/v1/chat/completions",
            content=json.dumps(body),
            headers={"content-type": "application/json"},
        )
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["type"] == "invalid_request_error"
    assert named in (error["param"] or "")
    assert named in error["message"]


def test_another_model_is_not_found(plain: Served) -> None:
    with pytest.raises(openai.NotFoundError, match="scripted"):
        plain.openai.chat.completions.create(model="gpt", messages=ASK)
    assert [model.id for model in plain.openai.models.list()] == [MODEL]
    assert plain.openai.models.retrieve(MODEL).id == MODEL


def test_a_prompt_beyond_the_context_is_refused_with_both_counts(tokenizer: Tokenizer) -> None:
    with served(script(tokenizer, "the quick", max_len=40)) as found:
        for count, max_tokens, status in ((39, 9, 200), (40, 1, 400), (41, 0, 400), (40, 0, 200)):
            body = {"model": MODEL, "prompt": [5] * count, "max_tokens": max_tokens}
            response = found.post("/v1/completions", body)
            assert response.status_code == status, response.text
            if status == 200:
                usage = response.json()["usage"]
                assert usage["prompt_tokens"] == count
                assert usage["completion_tokens"] == min(max_tokens, 40 - count)
            else:
                error = response.json()["error"]
                assert error["code"] == "context_length_exceeded"
                assert str(count) in error["message"] and "40" in error["message"]


def test_a_lower_limit_of_prompts_is_kept(tokenizer: Tokenizer) -> None:
    with served(script(tokenizer, "the quick"), max_prompt_tokens=10) as found:
        body = {"model": MODEL, "prompt": [5] * 11}
        assert found.post("/v1/completions", body).status_code == 400
        assert found.post("/v1/completions", {**body, "prompt": [5] * 10}).status_code == 200


def test_the_servers_own_defaults_come_behind_the_request(tokenizer: Tokenizer) -> None:
    engine = script(tokenizer, "the quick")
    with served(engine, sampling={"temperature": 0.5, "top_k": 7}) as found:
        body: dict[str, Any] = {"model": MODEL, "prompt": "hello"}
        used = found.post("/v1/completions", body).json()["x_bytebound"]["sampling"]
        assert (used["temperature"], used["top_k"]) == (0.5, 7)
        assert used["seed"] is not None
        body |= {"temperature": 0, "top_k": 0}
        used = found.post("/v1/completions", body).json()["x_bytebound"]["sampling"]
        assert (used["temperature"], used["top_k"]) == (0, 0)
