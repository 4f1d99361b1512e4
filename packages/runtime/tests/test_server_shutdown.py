"""The end of the server: what is cut says so in its protocol, and nothing else is said."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import openai
import pytest
from bytebound.text.tokenizer import Tokenizer

from .cli_runs import Folders, folders
from .server_runs import MODEL, Served, events_of, script, served
from .test_cli_process import start
from .test_cli_serve import listening, wait_ready
from .test_server_queue import TEXT, open_request, wait_running

__all__ = ["folders"]  # fixture

CUT = "the server is shutting down, and the reply was cut"
CHAT: Any = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": MODEL, "prompt": "hello", "max_tokens": 400},
    "/v1/chat/completions": {"model": MODEL, "messages": CHAT},
    "/v1/messages": {"model": MODEL, "messages": CHAT, "max_tokens": 400},
}


def shut_down_under(server: Served, ask: Any) -> Any:
    """What ``ask`` gives when the server is told to end while it runs."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask)
        wait_running(server)
        time.sleep(0.1)  # some tokens
        server.server.should_exit = True
        return answer.result(timeout=20)


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_that_is_cut_ends_with_an_error(tokenizer: Tokenizer, path: str) -> None:
    with served(script(tokenizer, TEXT, slow=True), shutdown_timeout_s=0.3) as found:
        body = {**BODIES[path], "stream": True}
        started = time.monotonic()
        response = shut_down_under(found, lambda: found.post(path, body))
        assert time.monotonic() - started < 3
    events = events_of(response)
    if path == "/v1/messages":
        kind = {"type": "overloaded_error", "message": CUT}
        assert events[-1] == ("error", {"type": "error", "error": kind})
        assert events[0][0] == "message_start"
        assert not [name for name, _ in events if name == "message_stop"]
    else:
        (_, failure), last = events[-2:]
        assert last == (None, "[DONE]")
        assert (failure["error"]["message"], failure["error"]["code"]) == (CUT, "unavailable")
        parts = [value["choices"][0] for _, value in events[:-2]]
        assert len(parts) > 2
        assert not [part for part in parts if part["finish_reason"]]


@pytest.mark.parametrize("path", BODIES)
def test_a_whole_reply_that_is_cut_is_refused(tokenizer: Tokenizer, path: str) -> None:
    with served(script(tokenizer, TEXT, slow=True), shutdown_timeout_s=0.3) as found:
        response = shut_down_under(found, lambda: found.post(path, BODIES[path]))
    assert response.status_code == 503
    assert response.json()["error"]["message"] == CUT


def test_the_official_clients_raise_it(tokenizer: Tokenizer) -> None:
    def stream_openai() -> None:
        for _ in found.openai.chat.completions.create(model=MODEL, messages=CHAT, stream=True):
            pass

    def stream_anthropic() -> None:
        with found.anthropic.messages.stream(model=MODEL, messages=CHAT, max_tokens=400) as events:
            for _ in events:
                pass

    for ask, kind in ((stream_openai, openai.APIError), (stream_anthropic, anthropic.APIError)):
        with (
            served(script(tokenizer, TEXT, slow=True), shutdown_timeout_s=0.3) as found,
            pytest.raises(kind, match="the reply was cut"),
        ):
            shut_down_under(found, ask)


def test_what_waits_is_cut_as_well(tokenizer: Tokenizer) -> None:
    with (
        served(script(tokenizer, TEXT, slow=True), shutdown_timeout_s=0.3) as found,
        ThreadPoolExecutor(1) as pool,
    ):
        first = open_request(found.url, "/v1/completions", BODIES["/v1/completions"])
        wait_running(found)
        body = {**BODIES["/v1/completions"], "stream": True}
        answer = pool.submit(found.post, "/v1/completions", body)
        wait_running(found, waiting=1)
        found.server.should_exit = True
        events = events_of(answer.result(timeout=20))
        first.close()
    assert [value if value == "[DONE]" else value["error"]["message"] for _, value in events] == [
        CUT,
        "[DONE]",
    ]


def stuck(connection: Any) -> bool:
    """Whether more waits to be written than the server writes ahead."""
    size: int = connection.transport.get_write_buffer_size()
    return size > 65_536


def test_a_client_that_reads_nothing_does_not_hold_up_the_end(tokenizer: Tokenizer) -> None:
    """Its socket is full, so its last event cannot be written."""
    long = "the quick brown fox jumps over the lazy dog " * 4000
    with served(script(tokenizer, long, max_len=60_000), shutdown_timeout_s=0.2) as found:
        body = {"model": MODEL, "messages": CHAT, "stream": True, "logprobs": True}
        body["top_logprobs"] = 20
        connection = open_request(found.url, "/v1/chat/completions", body)
        while not [one for one in found.server.server_state.connections if stuck(one)]:
            time.sleep(0.05)
        found.server.should_exit = True
        started = time.monotonic()
    assert time.monotonic() - started < 4
    connection.close()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_second_ctrl_c_ends_it_at_once_and_in_one_line(folders: Folders, stream: bool) -> None:
    process = start("serve", "-m", str(folders.text), "--port", "0", "--max-len", "4096")
    try:
        url = listening(process)
        wait_ready(url)
        body = {
            "model": folders.text.name,
            "prompt": "fox",
            "max_tokens": 4000,
            "ignore_eos": True,
            "stream": stream,
        }
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(
                httpx.post, f"{url}/v1/completions", json=body, timeout=60, trust_env=False
            )
            while not httpx.get(f"{url}/health", trust_env=False).json()["running"]:
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
            assert process.poll() is None  # the first one waits for the request
            process.send_signal(signal.SIGINT)
            started = time.monotonic()
            out, err = process.communicate(timeout=60)
            took = time.monotonic() - started
            response = answer.result(timeout=5)
    finally:
        process.kill()
    assert took < 4
    assert process.returncode == 130
    assert out == b""
    assert err.decode().splitlines() == ["stopped at once: 1 request was cut"]
    if stream:
        assert json.loads(response.text.split("data: ")[-2])["error"]["message"] == CUT
        assert response.text.endswith("data: [DONE]\n\n")
    else:
        assert (response.status_code, response.json()["error"]["message"]) == (503, CUT)


@pytest.mark.parametrize("ready", [False, True], ids=["warming up", "idle"])
def test_any_number_of_ctrl_c_shows_no_traceback(folders: Folders, ready: bool) -> None:
    """Also those that come when the server has ended and the process has not."""
    process = start("serve", "-m", str(folders.text), "--port", "0", "--max-len", "512")
    try:
        url = listening(process)
        if ready:
            wait_ready(url)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.03)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, b"")
    assert all(line.startswith("stopped at once: ") for line in err.decode().splitlines())
