"""The one stream: order, a full queue, clients that leave, time limits, the end of the server."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from bytebound import Engine
from bytebound.server.errors import RequestFailure
from bytebound.server.worker import EngineWorker
from bytebound.text.tokenizer import Tokenizer

from .server_runs import MODEL, Served, SlowExecutor, events_of, script, served

TEXT = "the quick brown fox jumps over the lazy dog " * 20
BODY: dict[str, Any] = {"model": MODEL, "prompt": "hello", "max_tokens": 400}


@pytest.fixture
def slow(tokenizer: Tokenizer) -> Iterator[Served]:
    with served(script(tokenizer, TEXT, slow=True), max_queue=2) as found:
        yield found


def open_request(url: str, path: str, body: dict[str, Any]) -> socket.socket:
    """Send a request and keep the connection, as no client library lets one do."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    connection.sendall(head.encode() + data)
    return connection


def wait_running(server: Served, waiting: int = 0) -> None:
    for _ in range(500):
        facts = server.health()
        if facts["running"] and facts["waiting"] == waiting:
            return
        time.sleep(0.01)
    raise AssertionError(server.health())


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages"])
def test_a_client_that_leaves_frees_the_engine(slow: Served, stream: bool, path: str) -> None:
    body = {**BODY, "stream": stream}
    if path == "/v1/messages":
        del body["prompt"]
        body["messages"] = [{"role": "user", "content": "hello"}]
    connection = open_request(slow.url, path, body)
    wait_running(slow)
    if stream:
        assert connection.recv(15).startswith(b"HTTP/1.1 200")
    connection.close()
    assert slow.wait_idle(5) < 1
    executor = slow.engine.executor
    assert isinstance(executor, SlowExecutor)
    passes = executor.passes
    time.sleep(0.1)
    assert executor.passes == passes
    answer = slow.post("/v1/completions", {**BODY, "max_tokens": 5}).json()
    assert TEXT.startswith(answer["choices"][0]["text"])
    assert answer["usage"]["completion_tokens"] == 5


def test_a_client_that_leaves_the_queue_is_not_run(slow: Served) -> None:
    first = open_request(slow.url, "/v1/completions", {**BODY, "max_tokens": 60})
    wait_running(slow)
    second = open_request(slow.url, "/v1/completions", BODY)
    wait_running(slow, waiting=1)
    second.close()
    wait_running(slow, waiting=0)
    first.close()
    assert slow.wait_idle(5) < 1


def test_a_full_queue_says_when_to_come_back(slow: Served) -> None:
    held = [open_request(slow.url, "/v1/completions", BODY) for _ in range(3)]
    try:
        wait_running(slow, waiting=2)
        response = slow.post("/v1/completions", BODY)
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["type"] == "rate_limit_error"
        body = {"model": "x", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
        response = slow.post("/v1/messages", body)
        assert response.status_code == 429
        assert response.json()["error"]["type"] == "rate_limit_error"
    finally:
        for connection in held:
            connection.close()
    assert slow.wait_idle(5) < 1.5
    assert slow.post("/v1/completions", {**BODY, "max_tokens": 2}).status_code == 200


def test_a_request_says_how_many_were_before_it(slow: Served) -> None:
    body = {**BODY, "max_tokens": 20}
    held = []
    for index in range(3):
        held.append(open_request(slow.url, "/v1/completions", body))
        wait_running(slow, waiting=index)
    for index, connection in enumerate(held):
        head = connection.recv(4096).decode().lower()
        assert f"x-bytebound-queue-position: {index}\r\n" in head
        connection.close()


def test_requests_run_in_the_order_in_which_they_came(tokenizer: Tokenizer) -> None:
    async def run() -> list[int]:
        worker = EngineWorker(script(tokenizer, "the"), max_queue=9, timeout_s=5)
        order: list[int] = []

        def work(index: int) -> Iterator[int]:
            order.append(index)
            yield index

        jobs = [worker.submit(lambda engine, i=index: work(i)) for index in range(9)]
        jobs[4].cancel()
        worker.start()
        for job in jobs[:4] + jobs[5:]:
            assert len([value async for value in job.results()]) == 1
        worker.stop()
        return order

    assert asyncio.run(run()) == [0, 1, 2, 3, 5, 6, 7, 8]


def test_the_engine_is_free_when_a_request_has_ended(tokenizer: Tokenizer) -> None:
    """Its owner may run it by itself then, though the worker's thread has not looked up yet."""

    async def run() -> list[object]:
        engine = script(tokenizer, "the")
        worker = EngineWorker(engine, max_queue=2, timeout_s=5)
        at_the_end: list[object] = []

        def work() -> Iterator[int]:
            yield 1

        job = worker.submit(lambda _: work())
        put = job.put
        job.put = lambda *what: at_the_end.append(engine.reader.before_pass) or put(*what)
        worker.start()
        assert [value async for value in job.results()] == [1]
        worker.stop()
        return at_the_end

    during, after = asyncio.run(run())
    assert during is not None and after is None


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_request_past_its_time_ends(tokenizer: Tokenizer, stream: bool) -> None:
    with served(script(tokenizer, TEXT, slow=True), request_timeout_s=0.5) as found:
        started = time.monotonic()
        response = found.post("/v1/completions", {**BODY, "stream": stream})
        assert 0.4 < time.monotonic() - started < 2
        if stream:
            events = [value for _, value in events_of(response)]
            assert events[-1] == "[DONE]"
            assert events[-2]["error"]["code"] == "request_timeout"
        else:
            assert response.status_code == 504
            assert response.json()["error"]["code"] == "request_timeout"
        assert found.wait_idle(5) < 1
        assert found.post("/v1/completions", {**BODY, "max_tokens": 2}).status_code == 200


def test_a_waiting_stream_shows_signs_of_life(
    slow: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bytebound.server.sse.SIGN_OF_LIFE_S", 0.05)
    first = open_request(slow.url, "/v1/completions", BODY)
    wait_running(slow)
    body = {**BODY, "stream": True, "max_tokens": 2}
    with slow.http as client, client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        assert ": waiting behind 1 requests" in lines
        first.close()
        assert list(lines)[-2:] == ["data: [DONE]", ""]


def test_shutdown_lets_the_running_request_end(tokenizer: Tokenizer) -> None:
    with served(script(tokenizer, TEXT, slow=True)) as found:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(found.post, "/v1/completions", {**BODY, "max_tokens": 30})
            wait_running(found)
            found.server.should_exit = True
            response = answer.result()
        assert response.status_code == 200
        assert response.json()["usage"]["completion_tokens"] == 30
    assert not [t for t in threading.enumerate() if t.name == "bytebound-engine" and t.is_alive()]


def test_many_requests_leave_nothing_behind(tokenizer: Tokenizer) -> None:
    with served(script(tokenizer, "the quick brown fox")) as found:
        with found.http as client:
            want = client.post("/v1/completions", json=BODY).json()["choices"]
            for index in range(200):
                body = {**BODY, "max_tokens": 400 if index % 3 else 1}
                answer = client.post("/v1/completions", json=body).json()
                if index % 3:
                    assert answer["choices"] == want
        facts = found.health()
        assert (facts["running"], facts["waiting"], facts["status"]) == (0, 0, "ready")


def test_a_bug_costs_one_request_and_says_nothing_of_it(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    engine = script(tokenizer, "the quick")

    def broken(*given: Any) -> Any:
        raise LookupError("secret words")

    with served(engine) as found:
        right = engine.stream
        engine.stream = broken  # type: ignore[method-assign]
        response = found.post("/v1/completions", BODY)
        engine.stream = right  # type: ignore[method-assign]
        assert response.status_code == 500
        assert "secret" not in response.text
        assert found.post("/v1/completions", BODY).status_code == 200
    assert "LookupError" in caplog.text
    assert "secret" not in caplog.text


def test_a_stopped_worker_takes_nothing(tokenizer: Tokenizer) -> None:
    async def run() -> None:
        worker = EngineWorker(script(tokenizer, "the"), max_queue=1, timeout_s=5)
        worker.start()
        job = worker.submit(lambda engine: iter([1, 2, 3]))
        assert [value async for value in job.results()] == [1, 2, 3]
        worker.stop()
        with pytest.raises(RequestFailure, match="shutting down"):
            worker.submit(lambda engine: iter([1]))

    asyncio.run(run())


def test_a_lost_engine_is_reported(tokenizer: Tokenizer) -> None:
    from bytebound import StepTimeoutError

    engine = script(tokenizer, "the quick")

    def hang(self: Engine, *given: Any) -> Any:
        raise StepTimeoutError("the GPU hangs")

    with served(engine) as found:
        engine.stream = hang.__get__(engine)  # type: ignore[method-assign]
        assert found.post("/v1/completions", BODY).status_code == 503
        assert found.post("/v1/completions", BODY).status_code == 503
        with found.http as client:
            health = client.get("/health")
        assert health.status_code == 503
        assert health.json()["problem"] == "the GPU hangs"
