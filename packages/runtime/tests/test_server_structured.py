"""Structured output over HTTP: official clients, both protocols, streamed and whole, refusals."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import jsonschema
import openai
import pytest
from bytebound import Engine
from bytebound.text.tokenizer import Tokenizer
from pydantic import BaseModel

from .grammar_walks import SCHEMAS
from .server_runs import MODEL, Served, events_of, script, served

ASK: list[Any] = [{"role": "user", "content": "where?"}]
ANSWER = '{"place": "안녕 \\"x\\"", "count": 3, "tags": ["b", "a"]}'
REPLY = f'first I think {{"place": no</think>\n\n{ANSWER}'
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {"type": "string"},
        "count": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
    },
    "required": ["place", "count", "tags"],
    "additionalProperties": False,
}
# Of bounded length: a script whose ids are refused goes on with the lowest id that is not.
SMALL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["place", "tags"],
    "additionalProperties": False,
}
CALL = (
    "<tool_call>\n<function=read>\n<parameter=path>\na.txt\n</parameter>\n</function>\n</tool_call>"
)
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]


class Place(BaseModel):
    place: str
    count: int
    tags: list[Literal["a", "b"]]


def form(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema, **more}}


@pytest.fixture(scope="module", params=[1, 3], ids=["one-a-step", "three-a-step"])
def thinker(tokenizer: Tokenizer, request: pytest.FixtureRequest) -> Iterator[Served]:
    with served(script(tokenizer, REPLY, per_step=request.param)) as found:
        yield found


@pytest.fixture(scope="module")
def talker(tokenizer: Tokenizer) -> Iterator[Served]:
    """A model that would rather talk."""
    with served(script(tokenizer, "</think>\n\nSure, here it is: ```json")) as found:
        yield found


@pytest.fixture(scope="module")
def tiny() -> Iterator[Served]:
    engine = Engine.from_pretrained("tiny", device="cpu", draft="mtp", max_len=1024)
    with served(engine, model="tiny") as found:
        yield found


def ask(found: Served, **more: Any) -> Any:
    body: dict[str, Any] = {"model": MODEL, "messages": ASK, **more}
    return found.openai.chat.completions.create(**body)


class TestOpenAI:
    def test_a_schema_holds_behind_the_thought_streamed_and_whole(self, thinker: Served) -> None:
        whole = ask(thinker, response_format=form(SCHEMA, strict=True))
        message = whole.choices[0].message
        assert message.content == ANSWER
        assert message.model_extra["reasoning_content"] == 'first I think {"place": no'
        assert whole.choices[0].finish_reason == "stop"
        content = reasoning = ""
        for chunk in ask(thinker, response_format=form(SCHEMA), stream=True):
            content += chunk.choices[0].delta.content or ""
            reasoning += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
        assert (content, reasoning) == (ANSWER, message.model_extra["reasoning_content"])

    def test_the_clients_own_parser_of_a_pydantic_model(self, thinker: Served) -> None:
        parsed = thinker.openai.chat.completions.parse(
            model=MODEL, messages=ASK, response_format=Place
        )
        assert parsed.choices[0].message.parsed == Place.model_validate_json(ANSWER)

    def test_a_model_that_talks_is_held_to_json(self, talker: Served) -> None:
        for schema in (SMALL, {"type": "boolean"}, {"enum": ["Sure", "here"]}):
            content = ask(talker, response_format=form(schema)).choices[0].message.content
            jsonschema.validate(json.loads(content), schema)
        held = ask(talker, response_format={"type": "json_object"}, max_tokens=9)
        assert held.choices[0].message.content.lstrip()[0] == "{"
        for free in ({"type": "text"}, None):
            content = ask(talker, response_format=free).choices[0].message.content
            assert content == "Sure, here it is: ```json"

    def test_the_limit_cuts_it_with_length(self, thinker: Served) -> None:
        whole = ask(thinker, response_format=form(SCHEMA))
        limit = whole.usage.completion_tokens - 6
        cut = ask(thinker, response_format=form(SCHEMA), max_tokens=limit)
        assert cut.choices[0].finish_reason == "length"
        assert ANSWER.startswith(cut.choices[0].message.content)

    def test_a_stop_string_cuts_the_answer_alone(self, thinker: Served) -> None:
        cut = ask(thinker, response_format=form(SCHEMA), stop=[', "count'])
        assert cut.choices[0].message.content == ANSWER.partition(', "count')[0]
        assert cut.choices[0].finish_reason == "stop"
        # One that is in the thought as well ends the answer where it comes again.
        cut = ask(thinker, response_format=form(SCHEMA), stop=['"place'])
        assert cut.choices[0].message.content == "{"

    def test_logprobs_are_those_of_the_model(self, talker: Served) -> None:
        """The script's own token is the likeliest, and the grammar forbids it."""
        found = ask(
            talker, response_format=form({"type": "boolean"}), logprobs=True, top_logprobs=1
        )
        entries = found.choices[0].logprobs.content
        assert "".join(entry.token for entry in entries[-4:]) in ("true", "alse")
        assert any(entry.top_logprobs[0].token != entry.token for entry in entries)
        assert min(entry.logprob for entry in entries) < -5

    def test_a_budget_and_a_schema(self, thinker: Served) -> None:
        found = ask(
            thinker, response_format=form(SCHEMA), extra_body={"thinking_budget": 4}, max_tokens=200
        )
        message = found.choices[0].message
        if found.choices[0].finish_reason == "stop":
            jsonschema.validate(json.loads(message.content), SCHEMA)
        assert message.content.lstrip()[:1] == "{"
        assert "first I think".startswith(message.model_extra["reasoning_content"])

    def test_completions_hold_to_it_from_their_first_token(self, talker: Served) -> None:
        for stream in (False, True):
            body = {
                "model": MODEL,
                "prompt": ["one: ", "two: "],
                "max_tokens": 200,
                "response_format": form(SMALL),
                "stream": stream,
            }
            response = talker.post("/v1/completions", body)
            assert response.status_code == 200, response.text
            texts = ["", ""]
            for _, value in [(None, response.json())] if not stream else events_of(response):
                for choice in value["choices"] if value != "[DONE]" else ():
                    texts[choice["index"]] += choice["text"]
            for text in texts:
                jsonschema.validate(json.loads(text), SMALL)

    def test_many_in_a_row(self, thinker: Served) -> None:
        first = ask(thinker, response_format=form(SCHEMA)).choices[0].message.content
        for name in ("array", "enum", "nested", "string", "tagged union"):
            other = ask(thinker, response_format=form(SCHEMAS[name]), max_tokens=60)
            if other.choices[0].finish_reason == "stop":
                jsonschema.validate(json.loads(other.choices[0].message.content), SCHEMAS[name])
            again = ask(thinker, response_format=form(SCHEMA)).choices[0].message.content
            assert again == first


class TestTools:
    @pytest.mark.parametrize("text", [f"hm</think>\n\n{CALL}", f"hm{CALL}"])
    def test_a_call_in_place_of_json(self, tokenizer: Tokenizer, text: str) -> None:
        with served(script(tokenizer, text)) as found:
            whole = ask(found, response_format=form(SCHEMA), tools=TOOLS)
            (call,) = whole.choices[0].message.tool_calls
            assert call.function.name == "read"
            assert json.loads(call.function.arguments) == {"path": "a.txt"}
            assert whole.choices[0].message.content is None
            assert whole.choices[0].finish_reason == "tool_calls"

    def test_no_call_where_none_is_allowed(self, tokenizer: Tokenizer) -> None:
        with served(script(tokenizer, f"hm</think>\n\n{CALL}")) as found:
            whole = ask(found, response_format=form(SMALL), tools=TOOLS, tool_choice="none")
        assert whole.choices[0].message.tool_calls is None
        jsonschema.validate(json.loads(whole.choices[0].message.content), SMALL)

    def test_json_in_place_of_a_call(self, thinker: Served) -> None:
        whole = ask(thinker, response_format=form(SCHEMA), tools=TOOLS)
        assert whole.choices[0].message.tool_calls is None
        assert whole.choices[0].message.content == ANSWER

    def test_no_words_before_a_call(self, tokenizer: Tokenizer) -> None:
        with served(script(tokenizer, f"hm</think>\n\nI read it.\n{CALL}")) as found:
            whole = ask(found, response_format=form(SMALL), tools=TOOLS, max_tokens=200)
        message = whole.choices[0].message
        if message.tool_calls is None:
            jsonschema.validate(json.loads(message.content), SMALL)
        else:
            assert message.content is None


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": form({"type": "array", "uniqueItems": True})}, "'uniqueItems'"),
    (
        {"response_format": form({"properties": {"a": {"not": {}}}})},
        "response_format: schema: at #/properties/a: the word 'not'",
    ),
    ({"response_format": form({"type": "string", "pattern": "(("})}, "unclosed group"),
    ({"response_format": form({"type": "string", "format": "color"})}, "Unknown format: color"),
    ({"response_format": form({"allOf": [{"$ref": "#"}]})}, "no value is valid"),
    ({"response_format": form({"enum": ["x" * 300_000]})}, "characters; at most"),
    ({"response_format": form({"multipleOf": 1000003})}, "'multipleOf'"),
    ({"response_format": {"type": "json_schema"}}, "json_schema: missing"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "schema: missing"),
    ({"response_format": form(SCHEMA, name="a b")}, "name"),
    ({"response_format": form(SCHEMA, more=1)}, "more"),
    ({"response_format": {"type": "grammar"}}, "json_object"),
    ({"response_format": {"type": "json_object", "schema": {}}}, "schema"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "json_object"}, "min_tokens": 3}, "min_tokens"),
    ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
    ({"response_format": form(SCHEMA), "tool_choice": "required"}, "tool_choice: demands"),
]


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


class TestRefusals:
    @pytest.mark.parametrize(("more", "message"), REFUSED, ids=range(len(REFUSED)))
    def test_what_cannot_be_enforced_is_named_and_the_next_request_works(
        self, thinker: Served, more: dict[str, Any], message: str
    ) -> None:
        response = thinker.post("/v1/chat/completions", {"model": MODEL, "messages": ASK, **more})
        error = response.json()["error"]
        assert response.status_code == 400, error
        assert message in error["message"]
        assert len(error["message"]) < 500
        assert error["param"] in (*more, "tools")
        assert ask(thinker, response_format=form(SCHEMA)).choices[0].message.content == ANSWER

    def test_absurd_nesting(self, thinker: Served) -> None:
        for levels in (70, 900):
            response = thinker.post(
                "/v1/chat/completions",
                {"model": MODEL, "messages": ASK, "response_format": form(deep(levels))},
            )
            assert response.status_code == 400
            assert "deep" in response.json()["error"]["message"]

    def test_the_official_client_raises_a_bad_request(self, thinker: Served) -> None:
        with pytest.raises(openai.BadRequestError, match="contains"):
            ask(thinker, response_format=form({"contains": {}}))

    def test_nothing_is_queued_for_what_is_refused(self, thinker: Served) -> None:
        before = thinker.engine._active
        thinker.post(
            "/v1/chat/completions",
            {"model": MODEL, "messages": ASK, "response_format": form({"not": {}})},
        )
        assert thinker.engine._active is before

    def test_a_dead_end_is_an_error_of_the_request(
        self, tokenizer: Tokenizer, talker: Served
    ) -> None:
        quotes = {i: -100 for i in range(tokenizer.vocab_size) if '"' in tokenizer.decode([i])}
        body = {
            "model": MODEL,
            "messages": ASK,
            "response_format": form({"const": "ab"}),
            "logit_bias": {str(i): value for i, value in quotes.items()},
        }
        response = talker.post("/v1/chat/completions", body)
        assert response.status_code == 400
        assert "no token is left" in response.json()["error"]["message"]
        streamed = events_of(talker.post("/v1/chat/completions", {**body, "stream": True}))
        assert "no token is left" in streamed[-2][1]["error"]["message"]
        assert streamed[-1][1] == "[DONE]"
        good = ask(talker, response_format=form({"const": "ab"}))
        assert json.loads(good.choices[0].message.content) == "ab"


class TestAnthropic:
    @pytest.mark.parametrize("name", ["output_config", "output_format"])
    def test_a_schema_holds_streamed_and_whole(self, thinker: Served, name: str) -> None:
        wanted = {"type": "json_schema", "schema": SCHEMA}
        more = {name: {"format": wanted, "effort": "low"} if name == "output_config" else wanted}
        body = {
            "model": "any",
            "max_tokens": 300,
            "messages": ASK,
            "thinking": {"type": "enabled", "budget_tokens": 250},
            **more,
        }
        whole = thinker.post("/v1/messages", body)
        assert whole.status_code == 200, whole.text
        found = whole.json()
        assert [block["type"] for block in found["content"]] == ["thinking", "text"]
        assert found["content"][1]["text"] == ANSWER
        assert found["stop_reason"] == "end_turn"
        ignored = found["x_bytebound"].get("ignored", [])
        assert ignored == (["output_config.effort"] if name == "output_config" else [])
        deltas = [
            value["delta"].get("text", "")
            for _, value in events_of(thinker.post("/v1/messages", {**body, "stream": True}))
            if value["type"] == "content_block_delta"
        ]
        assert "".join(deltas) == ANSWER

    def test_the_official_client(self, talker: Served) -> None:
        message = talker.anthropic.messages.create(
            model="any",
            max_tokens=300,
            messages=ASK,
            output_config={"format": {"type": "json_schema", "schema": SMALL}},
        )
        (block,) = message.content
        assert block.type == "text"
        jsonschema.validate(json.loads(block.text), SMALL)

    @pytest.mark.parametrize(
        ("more", "named"),
        [
            ({"output_config": {"format": {"type": "json_schema"}}}, "output_config"),
            (
                {"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
                "output_config: schema: at #: the word 'not'",
            ),
            (
                {
                    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
                    "output_format": {"type": "json_schema", "schema": SCHEMA},
                },
                "output_format",
            ),
            ({"tool_choice": {"type": "any"}}, "tool_choice: demands"),
        ],
    )
    def test_what_is_refused_is_named(
        self, thinker: Served, more: dict[str, Any], named: str
    ) -> None:
        body = {"model": "any", "max_tokens": 5, "messages": ASK, **more}
        response = thinker.post("/v1/messages", body)
        assert response.status_code == 400, response.text
        assert named in response.json()["error"]["message"]
        body = {"model": "any", "max_tokens": 5, "messages": ASK}
        assert thinker.post("/v1/messages", body).status_code == 200


def test_a_real_model_with_drafts_answers_validly(tiny: Served) -> None:
    client = tiny.openai
    schema = SCHEMAS["nested"]
    for temperature in (0, 1):
        whole = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Who is it? /no_think"}],
            response_format=form(schema),  # type: ignore[arg-type]
            temperature=temperature,
            seed=4,
            max_tokens=200,
        )
        assert whole.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(whole.choices[0].message.content or ""), schema)
        assert whole.model_extra is not None
        assert whole.model_extra["x_bytebound"]["drafted"] > 0
