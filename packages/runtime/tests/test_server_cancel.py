"""A long prompt whose client leaves, or whose time is over: the engine is free after its pass."""

import time
from collections.abc import Iterator, Sequence

import pytest
import torch
from bytebound import Engine
from bytebound.executor import Observer
from bytebound.scripted import ScriptedExecutor
from bytebound.text.tokenizer import Tokenizer

from .server_runs import MODEL, Served, served
from .test_server_queue import open_request

CHUNK, PASS_S = 512, 0.1
PROMPT = [10 + i % 200 for i in range(40 * CHUNK)]  # four seconds


class SlowPrompts(ScriptedExecutor):
    """Takes its time for every pass of a prompt, and counts them."""

    passes = 0

    def prefill(self, ids: Sequence[int], observer: Observer | None = None) -> torch.Tensor:
        assert len(ids) <= CHUNK
        self.passes += 1
        if len(ids) == CHUNK:
            time.sleep(PASS_S)
        return super().prefill(ids, observer)


@pytest.fixture
def slow(tokenizer: Tokenizer) -> Iterator[Served]:
    with served(engine_of(tokenizer)) as found:
        yield found


def engine_of(tokenizer: Tokenizer) -> Engine:
    ids = tokenizer.encode("the quick brown fox")
    executor = SlowPrompts([[one] for one in ids], tokenizer.vocab_size, end_id=2, max_len=32_768)
    return Engine(executor, tokenizer=tokenizer, end_ids=[2])


def passes_of(server: Served) -> int:
    executor = server.engine.executor
    assert isinstance(executor, SlowPrompts)
    return executor.passes


def wait_for_passes(server: Served, count: int) -> None:
    end = time.monotonic() + 20
    while passes_of(server) < count:
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_client_that_leaves_in_a_long_prompt_frees_the_engine(slow: Served, stream: bool) -> None:
    """E67: within one pass of the time at which it is seen, not after the other thirty."""
    before = passes_of(slow)
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 3, "stream": stream}
    connection = open_request(slow.url, "/v1/completions", body)
    wait_for_passes(slow, before + 3)
    connection.close()
    assert slow.wait_idle(20) < 1 + PASS_S
    passes = passes_of(slow)
    assert passes - before < 20
    time.sleep(3 * PASS_S)
    assert passes_of(slow) == passes
    # What was read is there for the same prompt, and the answer is right.
    answer = slow.post("/v1/completions", {**body, "stream": False}).json()
    assert "the quick brown fox".startswith(answer["choices"][0]["text"])
    assert answer["usage"]["completion_tokens"] == 3
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == (passes - before) * CHUNK
    assert passes_of(slow) - before == len(PROMPT) // CHUNK


def test_the_next_one_in_the_queue_does_not_wait_for_it(slow: Served) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 3}
    connection = open_request(slow.url, "/v1/completions", body)
    wait_for_passes(slow, passes_of(slow) + 2)
    connection.close()
    started = time.monotonic()
    answer = slow.post("/v1/completions", {**body, "prompt": "hello"})
    assert answer.status_code == 200
    assert time.monotonic() - started < 2
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_prompt_past_its_time_ends(tokenizer: Tokenizer, stream: bool) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 3, "stream": stream}
    with served(engine_of(tokenizer), request_timeout_s=0.6) as found:
        response = found.post("/v1/completions", body)
        assert "request_timeout" in response.text
        assert found.wait_idle(20) < 1 + PASS_S
        assert passes_of(found) < 20
        assert found.post("/v1/completions", {**body, "prompt": "hello"}).status_code == 200


def test_the_end_of_the_server_does_not_wait_for_a_prompt(tokenizer: Tokenizer) -> None:
    with served(engine_of(tokenizer)) as found:
        body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 3}
        connection = open_request(found.url, "/v1/completions", body)
        wait_for_passes(found, passes_of(found) + 2)
        connection.close()
        started = time.monotonic()
    assert time.monotonic() - started < 2.5
