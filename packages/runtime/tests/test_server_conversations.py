"""An agent's conversations in turns over HTTP: each pays for what is new, and says so."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bytebound import Engine

from .server_runs import Served, served
from .test_prefix_reuse import folder

__all__ = ["folder"]  # a fixture

WORDS = "the quick brown fox jumps over the lazy dog and says hello to the world "
TITLE = [{"role": "user", "content": "a title?"}]


@pytest.fixture
def server(folder: Path) -> Iterator[Served]:
    engine = Engine.from_pretrained(
        folder, device="cpu", max_len=1500, draft="mtp", conversation_bytes=None
    )
    with served(engine, model="model") as found:
        yield found


def ask(server: Served, messages: list[dict[str, str]]) -> dict[str, Any]:
    body = {
        "model": "model", "messages": messages, "max_tokens": 12, "temperature": 0,
        "logprobs": True,
    }  # fmt: skip
    response = server.post("/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def metric(server: Served, name: str) -> float:
    with server.http as client:
        text = client.get("/metrics").text
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found, text
    return float(found[1])


def test_conversations_take_turns(server: Served, folder: Path) -> None:
    cold = Engine.from_pretrained(folder, device="cpu", max_len=1500, draft="mtp", snapshot_bytes=0)
    talks = [
        [
            {"role": "system", "content": f"You are agent {number}. {WORDS * 2}"},
            {"role": "user", "content": f"{number} {WORDS * 2}"},
        ]
        for number in range(3)
    ]
    # What warmed the server up is no prompt of anybody, and no conversation.
    assert metric(server, "bytebound_parked_bytes") == 0
    lengths = [0, 0, 0]
    with served(cold, model="model") as other:
        for turn in range(3):
            for number, talk in enumerate(talks):
                for messages in (talk, TITLE):
                    got, expected = ask(server, messages), ask(other, messages)
                    assert got["choices"] == expected["choices"]
                usage = ask(server, talk)["usage"]
                # All but the ids behind the last cut, which are read as fast as copied.
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                assert 0 <= usage["prompt_tokens"] - cached < 64
                lengths[number] = usage["prompt_tokens"]
                content = got["choices"][0]["message"]["content"] or "yes"
                talk += [
                    {"role": "assistant", "content": content},
                    {"role": "user", "content": f"turn {turn}"},
                ]
    for talk, length in zip(talks, lengths, strict=True):
        cached = ask(server, talk)["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert length > cached > 0.7 * length
    assert metric(server, 'bytebound_prompts_total{beginning="parked"}') >= 9
    assert metric(server, 'bytebound_prompts_total{beginning="nothing"}') >= 3
    held = metric(server, "bytebound_parked_bytes")
    assert 0 < held <= metric(server, "bytebound_parked_bytes_limit")
    assert metric(server, "bytebound_parked_evictions_total") == 0
