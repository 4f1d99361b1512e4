"""Calls that a request demands, and strict ones: both protocols, official clients, refusals."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import jsonschema
import openai
import pytest
from bytebound import Engine
from bytebound.text.tokenizer import Tokenizer
from pydantic import BaseModel

from .call_walks import closed, written
from .server_runs import MODEL, Served, events_of, script, served

ASK: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
SHORT = {"type": "string", "maxLength": 12}
# Of bounded length: a script whose ids are refused goes on with the lowest id that is not.
WEATHER = closed(
    ["city", "days", "unit"],
    city=SHORT,
    days={"type": "integer", "minimum": 1, "maximum": 9},
    unit={"type": ["string", "null"], "enum": ["celsius", "fahrenheit", None]},
    tags={"type": "array", "items": SHORT, "maxItems": 2},
) | {"additionalProperties": False}
CLOCK = closed(["zone"], zone={"type": "string"})
SCHEMAS = {"weather": WEATHER, "clock": CLOCK, "now": {"type": "object", "properties": {}}}
ANSWER = {"city": "Oslo", "days": 3, "unit": None, "tags": ["a b"]}
CALL = written("weather", city="Oslo", days="3", unit="null", tags='["a b"]')
WRONG = written("weather", city="Oslo", days="many", unit="kelvin")


def openai_tools(strict: bool, *names: str) -> list[Any]:
    return [
        {
            "type": "function",
            "function": {"name": name, "parameters": SCHEMAS[name], "strict": strict},
        }
        for name in names or SCHEMAS
    ]


def anthropic_tools(strict: bool, *names: str) -> list[Any]:
    return [
        {"name": name, "input_schema": SCHEMAS[name], "strict": strict} for name in names or SCHEMAS
    ]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.fixture(scope="module", params=[1, 3], ids=["one-a-step", "three-a-step"])
def caller(tokenizer: Tokenizer, request: pytest.FixtureRequest) -> Iterator[Served]:
    with served(script(tokenizer, f"hm</think>\n\n{CALL}", per_step=request.param)) as found:
        yield found


@pytest.fixture(scope="module")
def talker(tokenizer: Tokenizer) -> Iterator[Served]:
    """A model that would rather talk."""
    with served(script(tokenizer, "</think>\n\nSunny, I guess.")) as found:
        yield found


@pytest.fixture(scope="module")
def sloppy(tokenizer: Tokenizer) -> Iterator[Served]:
    """A model that talks, and whose calls are not valid."""
    with served(script(tokenizer, f"</think>\n\nI look.\n{WRONG}\n{WRONG}")) as found:
        yield found


@pytest.fixture(scope="module")
def tiny() -> Iterator[Served]:
    engine = Engine.from_pretrained("tiny", device="cpu", draft="mtp", max_len=2048)
    with served(engine, model="tiny") as found:
        yield found


def ask(found: Served, **more: Any) -> Any:
    body: dict[str, Any] = {"model": MODEL, "messages": ASK, "max_tokens": 400, **more}
    return found.openai.chat.completions.create(**body)


def put_together(chunks: Any) -> tuple[str, list[list[str]], str]:
    """Content, name and arguments of each call, and the finish reason of a stream."""
    content, calls, reason = "", list[list[str]](), ""
    for chunk in chunks:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            for delta in choice.delta.tool_calls or ():
                if delta.id is not None:
                    assert delta.index == len(calls)
                    calls.append([delta.function.name, ""])
                calls[delta.index][1] += delta.function.arguments
            reason = choice.finish_reason or reason
    return content, calls, reason


class TestOpenAI:
    @pytest.mark.parametrize("strict", [True, False])
    @pytest.mark.parametrize(
        ("choice", "reason"),
        [("auto", "tool_calls"), ("required", "tool_calls"), (named("weather"), "stop")],
        ids=["auto", "required", "named"],
    )
    def test_a_model_that_calls(
        self, caller: Served, choice: Any, reason: str, strict: bool
    ) -> None:
        asked = {"tools": openai_tools(strict), "tool_choice": choice}
        whole = ask(caller, **asked).choices[0]
        (call,) = whole.message.tool_calls
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments) == ANSWER
        assert whole.message.content is None
        assert whole.message.model_extra["reasoning_content"] == "hm"
        assert whole.finish_reason == reason
        content, calls, found = put_together(ask(caller, **asked, stream=True))
        assert (content, found) == ("", reason)
        assert calls == [["weather", call.function.arguments]]

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("choice", ["required", named("weather"), named("now")])
    def test_a_model_that_talks_calls(self, talker: Served, choice: Any, stream: bool) -> None:
        asked = {"tools": openai_tools(True, "weather", "now"), "tool_choice": choice}
        asked["parallel_tool_calls"] = False
        if stream:
            content, calls, reason = put_together(ask(talker, **asked, stream=True))
        else:
            found = ask(talker, **asked).choices[0]
            content, reason = found.message.content or "", found.finish_reason
            calls = [[c.function.name, c.function.arguments] for c in found.message.tool_calls]
        ((name, arguments),) = calls
        assert content == ""
        assert name == (choice["function"]["name"] if isinstance(choice, dict) else "now")
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])
        assert reason == ("tool_calls" if choice == "required" else "stop")

    def test_auto_leaves_text_and_holds_calls(self, talker: Served, sloppy: Served) -> None:
        strict = openai_tools(True)
        assert ask(talker, tools=strict).choices[0].message.content == "Sunny, I guess."
        free = ask(sloppy, tools=openai_tools(False)).choices[0].message
        assert [json.loads(c.function.arguments)["days"] for c in free.tool_calls] == ["many"] * 2
        held = ask(sloppy, tools=strict).choices[0]
        assert held.message.content.startswith("I look.")
        for call in held.message.tool_calls:
            jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])

    def test_one_call_at_most(self, sloppy: Served) -> None:
        for strict in (True, False):
            found = ask(sloppy, tools=openai_tools(strict), parallel_tool_calls=False).choices[0]
            assert found.message.content == "I look."
            assert len(found.message.tool_calls) == 1
            assert found.finish_reason == "tool_calls"
        without = ask(sloppy, parallel_tool_calls=False, max_tokens=9)
        assert without.choices[0].message.tool_calls is None

    def test_none_is_none(self, caller: Served) -> None:
        found = ask(caller, tools=openai_tools(True), tool_choice="none").choices[0]
        assert found.message.tool_calls is None

    def test_the_limit_cuts_a_call_with_length(self, caller: Served) -> None:
        asked = {"tools": openai_tools(True), "tool_choice": "required"}
        whole = ask(caller, **asked)
        for stream in (False, True):
            limit = whole.usage.completion_tokens - 12
            found = ask(caller, **asked, max_tokens=limit, stream=stream)
            reason = put_together(found)[2] if stream else found.choices[0].finish_reason
            assert reason == "length"

    def test_the_prompt_is_the_same(self, caller: Served) -> None:
        counts = {
            ask(caller, tools=tools, **more).usage.prompt_tokens
            for tools in (openai_tools(True), openai_tools(False))
            for more in ({}, {"tool_choice": "required"}, {"tool_choice": named("clock")})
        }
        assert len(counts) == 1

    def test_a_form_of_the_answer_beside_it(self, talker: Served, caller: Served) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["no"]}}}
        asked = {"tools": openai_tools(True, "weather"), "response_format": form}
        assert ask(talker, **asked).choices[0].message.content == '"no"'
        for choice in ("auto", "required"):
            found = ask(caller, **asked, tool_choice=choice).choices[0]
            assert json.loads(found.message.tool_calls[0].function.arguments) == ANSWER
        found = ask(talker, **asked, tool_choice="required", parallel_tool_calls=False).choices[0]
        jsonschema.validate(json.loads(found.message.tool_calls[0].function.arguments), WEATHER)

    def test_a_budget_of_thought(self, talker: Served, tokenizer: Tokenizer) -> None:
        with served(script(tokenizer, "the quick brown fox jumps over the lazy dog")) as found:
            more = {"tools": openai_tools(True, "weather"), "tool_choice": "required"}
            got = ask(found, **more, parallel_tool_calls=False, extra_body={"thinking_budget": 4})
        (call,) = got.choices[0].message.tool_calls
        jsonschema.validate(json.loads(call.function.arguments), WEATHER)

    def test_the_clients_own_helpers(self, caller: Served) -> None:
        """They refuse tools that are not strict, and parse what comes."""

        class Weather(BaseModel):
            city: str
            days: int
            unit: Literal["celsius", "fahrenheit"] | None
            tags: list[str]

        tool = openai.pydantic_function_tool(Weather, name="weather")
        found = caller.openai.chat.completions.parse(
            model=MODEL, messages=ASK, tools=[tool], tool_choice="required"
        )
        (call,) = found.choices[0].message.tool_calls or ()
        assert call.function.parsed_arguments == Weather(**ANSWER)  # type: ignore[arg-type]
        with caller.openai.chat.completions.stream(
            model=MODEL, messages=ASK, tools=[tool], tool_choice="required"
        ) as stream:
            for _ in stream:
                pass
            (call,) = stream.get_final_completion().choices[0].message.tool_calls or ()
        assert call.function.parsed_arguments == Weather(**ANSWER)  # type: ignore[arg-type]

    REFUSED: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({"tool_choice": "required"}, "tool_choice", "not in tools"),
        (
            {"tool_choice": named("other"), "tools": openai_tools(False)},
            "tool_choice",
            "not in tools",
        ),
        ({"tool_choice": "always", "tools": openai_tools(False)}, "tool_choice", "required"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "function"),
        ({"parallel_tool_calls": 3}, "parallel_tool_calls", "bool"),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "f",
                            "strict": True,
                            "parameters": closed([], a={"not": {}}),
                        },
                    }
                ]
            },
            "tools",
            "tools: f: schema: at #/properties/a: the word 'not'",
        ),
    )

    @pytest.mark.parametrize(("more", "field", "message"), REFUSED, ids=range(len(REFUSED)))
    def test_what_is_refused_is_named(
        self, caller: Served, more: dict[str, Any], field: str, message: str
    ) -> None:
        response = caller.post("/v1/chat/completions", {"model": MODEL, "messages": ASK, **more})
        error = response.json()["error"]
        assert response.status_code == 400, error
        assert message in error["message"]
        assert error["param"] == field
        assert ask(caller, max_tokens=4).choices[0].finish_reason == "length"


class TestAnthropic:
    def create(self, found: Served, **more: Any) -> Any:
        body: dict[str, Any] = {"model": "any", "max_tokens": 400, "messages": ASK, **more}
        return found.anthropic.messages.create(**body)

    @pytest.mark.parametrize("strict", [True, False])
    @pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
    def test_a_call_that_is_demanded(self, caller: Served, choice: Any, strict: bool) -> None:
        body = {
            "tools": anthropic_tools(strict),
            "tool_choice": choice,
            "thinking": {"type": "enabled", "budget_tokens": 300},
        }
        whole = self.create(caller, **body)
        assert [block.type for block in whole.content] == ["thinking", "tool_use"]
        assert (whole.content[1].name, whole.content[1].input) == ("weather", ANSWER)
        assert whole.stop_reason == "tool_use"
        with caller.anthropic.messages.stream(
            model="any", max_tokens=400, messages=ASK, **body
        ) as stream:
            last = stream.get_final_message()
        assert [block.type for block in last.content] == ["thinking", "tool_use"]
        assert last.content[1].input == ANSWER  # type: ignore[union-attr]
        assert last.stop_reason == "tool_use"

    def test_a_model_that_talks_calls(self, talker: Served) -> None:
        for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
            whole = self.create(
                talker,
                tools=anthropic_tools(True, "weather"),
                tool_choice={**choice, "disable_parallel_tool_use": True},
            )
            (block,) = whole.content
            jsonschema.validate(block.input, WEATHER)
            assert whole.stop_reason == "tool_use"

    def test_auto_holds_calls_alone(self, sloppy: Served) -> None:
        thinking = {"type": "enabled", "budget_tokens": 300}
        for choice in ({}, {"disable_parallel_tool_use": True}):
            whole = self.create(
                sloppy,
                tools=anthropic_tools(True),
                tool_choice={"type": "auto", **choice},
                thinking=thinking,
            )
            assert whole.content[0].text.startswith("I look.")
            calls = [block for block in whole.content if block.type == "tool_use"]
            assert len(calls) == 1 or (calls and not choice)
            for call in calls:
                jsonschema.validate(call.input, SCHEMAS[call.name])
            assert whole.stop_reason == "tool_use"

    def test_the_limit(self, caller: Served) -> None:
        body = {
            "model": "any",
            "messages": ASK,
            "tools": anthropic_tools(True),
            "tool_choice": {"type": "any"},
            "max_tokens": 12,
        }
        assert caller.post("/v1/messages", body).json()["stop_reason"] == "max_tokens"
        events = events_of(caller.post("/v1/messages", {**body, "stream": True}))
        (last,) = [value for name, value in events if name == "message_delta"]
        assert last["delta"]["stop_reason"] == "max_tokens"

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ({"tool_choice": {"type": "any"}}, "tool_choice: demands"),
            (
                {"tool_choice": {"type": "tool", "name": "x"}, "tools": anthropic_tools(False)},
                "tool_choice: demands",
            ),
            ({"tool_choice": {"type": "tool"}, "tools": anthropic_tools(False)}, "tool_choice"),
            ({"tool_choice": {"type": "required"}}, "tool_choice"),
            (
                {"tools": [{"name": "f", "strict": True, "input_schema": closed(["a"])}]},
                "tools: f: schema: at #/required: 'a' is none of the properties",
            ),
        ],
    )
    def test_what_is_refused_is_named(
        self, caller: Served, more: dict[str, Any], message: str
    ) -> None:
        body = {"model": "any", "max_tokens": 9, "messages": ASK, **more}
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            if "strict" in str(more.get("tools")) and "required" in message and "count" in path:
                continue  # counting holds nothing to a schema
            response = caller.post(path, body)
            assert response.status_code == 400, response.text
            error = response.json()
            assert error["type"] == "error"
            assert error["error"]["type"] == "invalid_request_error"
            assert message in error["error"]["message"]


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_real_model_that_knows_no_calls(tiny: Served, temperature: float) -> None:
    answers = set()
    for stream in (False, True):
        found = ask(
            tiny,
            model="tiny",
            tools=openai_tools(True, "weather"),
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=temperature,
            seed=5,
            stream=stream,
        )
        if stream:
            _, calls, reason = put_together(found)
            ((_, arguments),) = calls
        else:
            reason = found.choices[0].finish_reason
            arguments = found.choices[0].message.tool_calls[0].function.arguments
            assert found.model_extra["x_bytebound"]["drafted"] > 0
        assert reason == "tool_calls"
        jsonschema.validate(json.loads(arguments), WEATHER)
        answers.add(arguments)
    assert len(answers) == 1
    whole = tiny.anthropic.messages.create(
        model="tiny",
        max_tokens=400,
        messages=ASK,
        extra_body={"temperature": temperature},
        tools=anthropic_tools(True, "weather"),
        tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
    )
    (block,) = whole.content
    assert block.type == "tool_use"
    jsonschema.validate(block.input, WEATHER)
    assert whole.stop_reason == "tool_use"
