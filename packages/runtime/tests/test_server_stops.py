"""Where stop strings end a reply: at the token that completes one, from ``min_tokens`` on."""

from collections.abc import Iterator
from typing import Any

import pytest
from bytebound.text.reply import ReplySplitter, TextDelta
from bytebound.text.stop_strings import StopStrings
from bytebound.text.tokenizer import Tokenizer

from .server_runs import MODEL, Served, events_of, script, served

TEXT = "the fox\nthe quick fox\n\nthe brown fox jumps over the lazy dog\nthe fox"
CHAT: Any = [{"role": "user", "content": "hello"}]
OFF = {"enable_thinking": False}
STOPS = [
    ["fox"],
    ["\n"],
    ["\n\n"],
    ["ox\nthe"],
    ["fox", "fox\n\nthe brown"],
    [" lazy dog\n"],
    ["no"],
]


@pytest.fixture(scope="module", params=[1, 3], ids=["plain", "drafts"])
def server(tokenizer: Tokenizer, request: pytest.FixtureRequest) -> Iterator[Served]:
    with served(script(tokenizer, TEXT, per_step=request.param)) as found:
        yield found


def expected(tokenizer: Tokenizer, stops: list[str], min_tokens: int) -> tuple[str, int, str]:
    """Text, number of tokens and the stop string, by looking at every prefix of the reply."""
    ids = tokenizer.encode(TEXT)
    before = ""
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count])
        ends = [
            (end, -len(stop), stop)
            for stop in stops
            for end in range(len(before) + 1, len(text) + 1)
            if text[:end].endswith(stop)
        ]
        if ends and count >= min_tokens:
            end, _, stop = min(ends)
            return text[: end - len(stop)], count, stop
        before = text
    return TEXT, len(ids) + 1, ""


def ask(server: Served, path: str, stops: list[str], min_tokens: int, stream: bool) -> Any:
    """Text, number of tokens, of log probabilities, and the finish reason."""
    chat = path == "/v1/chat/completions"
    body: dict[str, Any] = {"model": MODEL, "stop": stops, "min_tokens": min_tokens}
    body |= {"messages": CHAT, "chat_template_kwargs": OFF} if chat else {"prompt": "hello"}
    body |= {"max_tokens": 200, "logprobs": True if chat else 0}
    if not stream:
        response = server.post(path, body)
        assert response.status_code == 200, response.text
        choice = response.json()["choices"][0]
        text = choice["message"]["content"] if chat else choice["text"]
        found = [choice["logprobs"]] if choice["logprobs"] else []
        usage = response.json()["usage"]
        reason = choice["finish_reason"]
    else:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        values = [value for _, value in events_of(server.post(path, body))][:-1]
        choices = [value["choices"][0] for value in values if value["choices"]]
        text = "".join(
            choice["delta"].get("content") or "" if chat else choice["text"] for choice in choices
        )
        found = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        usage = values[-1]["usage"]
        reason = choices[-1]["finish_reason"]
    entries = sum(len(one["content"] if chat else one["tokens"]) for one in found)
    return text, usage["completion_tokens"], entries, reason


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stops", STOPS, ids=repr)
def test_a_stop_string_counts_from_min_tokens_on(
    server: Served, tokenizer: Tokenizer, path: str, stops: list[str], stream: bool
) -> None:
    counts = set()
    for min_tokens in (0, 1, 2, 3, 4, 5, 7, 12, len(tokenizer.encode(TEXT))):
        text, tokens, stop = expected(tokenizer, stops, min_tokens)
        found = ask(server, path, stops, min_tokens, stream)
        assert found == (text, tokens, tokens - (not stop), "stop"), min_tokens
        counts.add(tokens)
    assert len(counts) > 2 or stops in (["\n\n"], [" lazy dog\n"], ["no"], ["ox\nthe"])


def test_the_anthropic_form_names_a_stop_string_of_white_space(server: Served) -> None:
    body = {"model": MODEL, "messages": CHAT, "max_tokens": 99, "stop_sequences": ["\n"]}
    answer = server.post("/v1/messages", body).json()
    assert answer["content"] == [{"type": "text", "text": "the fox"}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "\n")


def test_one_that_began_too_early_still_counts() -> None:
    stops = StopStrings(["abc", "b"])
    assert stops.push("ab", active=False) == ("", None)
    assert stops.push("c") == ("", "abc")


def test_one_that_ended_too_early_is_text() -> None:
    stops = StopStrings(["ab", "xaby"])
    assert stops.push("xab", active=False) == ("", None)
    assert stops.push("z") == ("xabz", None)
    assert stops.push("ab") == ("", "ab")


def test_white_space_that_comes_too_early_is_text(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("hello")
    split = ReplySplitter(tokenizer, prompt, stop=["\n"], min_tokens=2)
    pieces = []
    for token_id in (*tokenizer.encode("\n"), *tokenizer.encode("the"), *tokenizer.encode("\n")):
        pieces += split.push([token_id], tokenizer.decode([token_id]))
    assert "".join(piece.text for piece in pieces if isinstance(piece, TextDelta)) == "\nthe"
    assert split.matched_stop == "\n"
