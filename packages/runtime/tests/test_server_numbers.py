"""No body takes true for 1, or text for a number; the fields are those that the documents name."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from bytebound.server.anthropic_bodies import MessagesBody
from bytebound.server.openai_bodies import ChatBody, CompletionBody
from bytebound.text.tokenizer import Tokenizer
from pydantic import BaseModel

from .server_runs import MODEL, Served, script, served

CHAT: Any = [{"role": "user", "content": "hello"}]
BODIES: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "/v1/chat/completions": (ChatBody, {"model": MODEL, "messages": CHAT, "logprobs": True}),
    "/v1/completions": (CompletionBody, {"model": MODEL, "prompt": "hello"}),
    "/v1/messages": (MessagesBody, {"model": MODEL, "messages": CHAT, "max_tokens": 5}),
}
NUMBERS, SWITCHES = {"integer", "number"}, {"boolean"}


def fields_of(body: type[BaseModel], kinds: set[str]) -> list[str]:
    """Fields of a body that take nothing but one of these kinds, or null."""
    found = []
    for name, schema in body.model_json_schema(by_alias=True)["properties"].items():
        types = {one.get("type") for one in schema.get("anyOf", [schema])}
        if types - {"null"} and types - {"null"} <= kinds:
            found.append(name)
    return found


CASES = [
    (path, name, wrong)
    for path, (body, _) in BODIES.items()
    for kinds, values in (
        (NUMBERS, (True, False, "1", [1])),
        (SWITCHES, (1, 0, 1.0, "true", "false")),
    )
    for name in fields_of(body, kinds)
    for wrong in values
]
PLACES: list[tuple[str, list[Any], Any]] = [
    ("/v1/chat/completions", ["logit_bias", "5"], True),
    ("/v1/chat/completions", ["logit_bias", "5"], "1"),
    ("/v1/chat/completions", ["stop_token_ids"], [True]),
    ("/v1/completions", ["prompt"], [True]),
    ("/v1/completions", ["prompt"], [[5, True]]),
    ("/v1/completions", ["stream_options"], {"include_usage": 1}),
    ("/v1/completions", ["stream_options"], {"include_obfuscation": 0}),
    ("/v1/messages", ["thinking"], {"type": "enabled", "budget_tokens": True}),
    ("/v1/messages", ["thinking"], {"type": "enabled", "budget_tokens": "2048"}),
    ("/v1/messages", ["thinking"], {"type": "enabled", "budget_tokens": 2048.0}),
]


@pytest.fixture(scope="module")
def plain(tokenizer: Tokenizer) -> Iterator[Served]:
    with served(script(tokenizer, "the quick brown fox")) as found:
        yield found


def test_the_fields_are_found() -> None:
    names = fields_of(ChatBody, NUMBERS)
    assert {"n", "temperature", "top_k", "seed", "max_tokens", "thinking_budget"} <= set(names)
    assert {"stream", "store", "ignore_eos"} <= set(fields_of(ChatBody, SWITCHES))
    assert {"n", "best_of", "logprobs"} <= set(fields_of(CompletionBody, NUMBERS))
    assert {"top_k", "max_tokens"} <= set(fields_of(MessagesBody, NUMBERS))


def refused(server: Served, path: str, body: dict[str, Any], name: str) -> None:
    response = server.post(path, body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["message"].startswith(name)
    if path != "/v1/messages":
        assert error["param"] == name


@pytest.mark.parametrize("path", BODIES)
def test_a_value_of_another_type_is_refused_by_name(plain: Served, path: str) -> None:
    for _, name, wrong in [case for case in CASES if case[0] == path]:
        refused(plain, path, {**BODIES[path][1], name: wrong}, name)


@pytest.mark.parametrize(("path", "place", "wrong"), PLACES)
def test_so_is_one_further_inside(plain: Served, path: str, place: list[Any], wrong: Any) -> None:
    value = {place[1]: wrong} if len(place) > 1 else wrong
    body = {**BODIES[path][1], place[0]: value}
    if place[0] == "stream_options":
        body["stream"] = True
    refused(plain, path, body, place[0])


def test_what_is_allowed_is_still_taken(plain: Served) -> None:
    for path, more in (
        (
            "/v1/chat/completions",
            {"n": 1, "store": False, "temperature": 1, "logit_bias": {"5": 1}},
        ),
        ("/v1/completions", {"n": 1, "best_of": 1, "top_p": 1}),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 2}, "temperature": 1}),
    ):
        response = plain.post(path, {**BODIES[path][1], **more})
        assert response.status_code == 200, response.text


PROMPT = "expected text or token ids"


@pytest.mark.parametrize(
    ("path", "more", "start", "said"),
    [
        ("/v1/completions", {"prompt": ["a", 5]}, "prompt: ", PROMPT),
        ("/v1/completions", {"prompt": [[]]}, "prompt: ", PROMPT),
        ("/v1/completions", {"prompt": None}, "prompt: ", PROMPT),
        ("/v1/completions", {"prompt": ""}, "prompt: ", "at least one token"),
        ("/v1/completions", {"prompt": ["a", "b\ud800"]}, "prompt: ", "surrogate"),
        ("/v1/completions", {"prompt": "x " * 9000}, "prompt is too long", "maximum"),
        ("/v1/completions", {"prompt": [5] * 8192}, "the prompt has 8192 tokens", "no room"),
        ("/v1/completions", {"stop": [""]}, "stop: ", "a string of 1 to"),
        ("/v1/completions", {"stop": ["a"] * 17}, "stop: ", "a list of up to 16"),
        ("/v1/chat/completions", {"messages": [5]}, "messages[0]: ", "dictionary"),
        ("/v1/chat/completions", {"messages": "\ud800"}, "messages: ", "list"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "\ud800"}]},
            "messages: ",
            "surrogate",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x " * 9000}]},
            "prompt is too long",
            "maximum",
        ),
        ("/v1/messages", {"system": 5}, "system: ", "a string or a list of text blocks"),
        ("/v1/messages", {"tools": [{"type": "x", "name": "x"}]}, "tools[0].type: ", "'custom'"),
    ],
)
def test_a_refusal_names_the_field_of_the_request(
    plain: Served, path: str, more: dict[str, Any], start: str, said: str
) -> None:
    content = json.dumps({**BODIES[path][1], **more})
    headers = {"content-type": "application/json"}
    with plain.http as client:
        response = client.post(path, content=content, headers=headers)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["message"].startswith(start)
    assert said in error["message"]
    if path != "/v1/messages":
        assert error["param"] == next(iter(more))


@pytest.mark.parametrize("wrong", ["must", True, 1, {"type": "function"}, {"type": "any"}, []])
def test_a_choice_of_tools_that_is_none_is_refused_in_one_message(
    plain: Served, wrong: Any
) -> None:
    path = "/v1/chat/completions"
    error = plain.post(path, {**BODIES[path][1], "tool_choice": wrong}).json()["error"]
    assert error["param"] == "tool_choice"
    assert error["message"].startswith('tool_choice: expected "auto", "none", "required" or {')
