"""The server under clients of every manner: slow ones, rude ones, and those that read last."""

import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from bytebound.server import guard, http_protocol
from bytebound.text.tokenizer import Tokenizer

from .server_runs import MODEL, Served, script, served

KEY = "a-key"
LARGE = 24 * 2**20
"""More than the buffers of two sockets hold."""
BODY: dict[str, Any] = {"model": MODEL, "prompt": "hello"}


@pytest.fixture(scope="module")
def plain(tokenizer: Tokenizer) -> Iterator[Served]:
    with served(script(tokenizer, "the quick brown fox"), max_body_bytes=4096) as found:
        yield found


@pytest.fixture(scope="module")
def locked(tokenizer: Tokenizer) -> Iterator[Served]:
    with served(script(tokenizer, "the quick"), api_key=KEY) as found:
        yield found


def connect(server: Served) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    lines = ("Host: localhost", "Content-Type: application/json", *lines)
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode()


def read(connection: socket.socket) -> tuple[int, Any]:
    """Status and body of the answer, which must be whole."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, json.loads(response.read())


def announced(path: str) -> bytes:
    return head(path, f"Content-Length: {LARGE}") + b"x" * LARGE


def chunked(path: str) -> bytes:
    chunk = b"%x\r\n%s\r\n" % (2**16, b"x" * 2**16)
    return head(path, "Transfer-Encoding: chunked") + chunk * (LARGE // 2**16) + b"0\r\n\r\n"


@pytest.mark.parametrize("form", [announced, chunked])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_who_sends_everything_first_reads_that_it_is_too_large(
    plain: Served, form: Any, path: str
) -> None:
    with connect(plain) as connection:
        connection.sendall(form(path))
        status, answer = read(connection)
        assert connection.recv(1) == b""
    assert status == 413
    error = answer["error"]
    assert "4096 bytes" in error["message"]
    assert "request_too_large" in (error["type"], error.get("code"))


def test_who_sends_everything_first_reads_that_the_key_is_wrong(locked: Served) -> None:
    with connect(locked) as connection:
        connection.sendall(announced("/v1/chat/completions"))
        status, answer = read(connection)
    assert (status, answer["error"]["code"]) == (401, "invalid_api_key")


def test_who_reads_at_once_does_not_wait_for_the_rest(plain: Served) -> None:
    with connect(plain) as connection:
        connection.sendall(head("/v1/completions", f"Content-Length: {LARGE}") + b"x" * 9000)
        started = time.monotonic()
        assert read(connection)[0] == 413
        assert time.monotonic() - started < 2


def test_who_asks_before_sending_is_told_at_once(plain: Served) -> None:
    with connect(plain) as connection:
        expect = "Expect: 100-continue"
        connection.sendall(head("/v1/completions", f"Content-Length: {LARGE}", expect))
        started = time.monotonic()
        assert read(connection)[0] == 413
        assert connection.recv(1) == b""
        assert time.monotonic() - started < 2
        with connect(plain) as connection:
            data = json.dumps(BODY).encode()
            connection.sendall(head("/v1/completions", f"Content-Length: {len(data)}", expect))
            assert connection.recv(100).startswith(b"HTTP/1.1 100")
            connection.sendall(data)
            assert read(connection)[0] == 200


def test_the_rest_of_a_refused_body_is_not_read_for_ever(
    plain: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "LINGER_S", 0.3)
    with connect(plain) as connection:
        connection.sendall(head("/v1/completions", f"Content-Length: {LARGE}"))
        started = time.monotonic()
        assert read(connection)[0] == 413
        with pytest.raises(OSError):
            while time.monotonic() - started < 10:
                connection.sendall(b"x")
                time.sleep(0.02)
        assert time.monotonic() - started < 3


def test_the_rest_of_a_refused_body_has_a_bound(
    plain: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "LINGER_BYTES", 2**20)
    with connect(plain) as connection, pytest.raises(OSError):
        connection.sendall(announced("/v1/completions"))


def test_a_body_that_trickles_is_given_up(plain: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_S", 0.5)
    monkeypatch.setattr(guard, "LINGER_S", 0.1)
    for path in ("/v1/completions", "/v1/messages"):
        with connect(plain) as connection:
            connection.sendall(head(path, "Content-Length: 100") + b"{")
            started = time.monotonic()
            status, answer = read(connection)
            assert 0.4 < time.monotonic() - started < 3
            assert status == 408
            assert "1 bytes" in answer["error"]["message"]
            assert connection.recv(1) == b""


def test_a_body_that_comes_steadily_is_not(plain: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time allowed grows with what came."""
    monkeypatch.setattr(guard, "BODY_S", 0.3)
    monkeypatch.setattr(guard, "SLOWEST", 100)
    data = json.dumps({**BODY, "user": "u" * 300}).encode()
    with connect(plain) as connection:
        connection.sendall(head("/v1/completions", f"Content-Length: {len(data)}"))
        for start in range(0, len(data), 40):
            connection.sendall(data[start : start + 40])
            time.sleep(0.08)
        assert read(connection)[0] == 200


@pytest.mark.parametrize("before", [b"", b"POST /v1/comple", b"GET /health HTTP/1.1\r\nHost: lo"])
def test_a_head_that_never_ends_is_not_waited_for(
    plain: Served, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.5)
    with connect(plain) as connection:
        started = time.monotonic()
        ended = False
        for byte in [before, *[b"a"] * 100]:
            try:
                connection.sendall(byte)
                connection.settimeout(0.05)
                ended = connection.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
            if ended:
                break
        assert ended and 0.4 < time.monotonic() - started < 4


def test_the_second_head_of_a_connection_has_its_own_time(
    plain: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.6)
    with connect(plain) as connection:
        for _ in range(4):
            connection.sendall(head("/health", method="GET"))
            assert read(connection)[0] == 200
            time.sleep(0.3)
        connection.sendall(b"GET /he")
        assert connection.recv(1) == b""


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (head("/v1/models", "Content-Length: many"), 400),
        (head("/v1/models", "Content-Length: 1", "Content-Length: 2"), 400),
        (head("/v1/models", "Transfer-Encoding: gzip"), 501),
        (head("/v1/models", "X: " + "x" * 200_000, method="GET"), 431),
        (head("/" + "x" * 200_000, method="GET"), 431),
    ],
)
def test_what_is_no_request_is_answered_in_an_envelope(
    plain: Served, sent: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(plain) as connection:
        connection.sendall(sent)
        found, answer = read(connection)
        assert found == status
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert connection.recv(1) == b""
    assert plain.post("/v1/completions", BODY).status_code == 200
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


def test_a_chunk_that_is_none_breaks_nothing(plain: Served) -> None:
    opening = head("/v1/completions", "Transfer-Encoding: chunked")
    for sent in (b"zz\r\n", b"9000\r\n" + b"x" * 0x9000 + b"\r\nzz\r\n"):
        with connect(plain) as connection:
            connection.sendall(opening + sent)
            assert read(connection)[0] in (400, 413)
    assert plain.post("/v1/completions", BODY).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_another_method_is_refused_in_an_envelope(plain: Served, path: str, method: str) -> None:
    with plain.http as client:
        response = client.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    if method != "HEAD":
        assert "takes POST alone" in response.json()["error"]["message"]
        assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_another_path_is_refused_in_an_envelope(plain: Served, method: str) -> None:
    with plain.http as client:
        response = client.request(method, "/v1/chat/completions/")
        assert response.status_code == 404
        assert "ends with /v1" in response.json()["error"]["message"]
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        response = client.request(method, "/v1/messages/batches")
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "not_found_error"


def test_a_connection_goes_on_behind_refusals(plain: Served) -> None:
    """A client keeps its connection where its body was read."""
    wrong: list[tuple[str, str, Any]] = [
        ("POST", "/v1/completions", {**BODY, "temperature": -1}),
        ("POST", "/v1/completions", {**BODY, "model": "another"}),
        ("POST", "/v1/nothing", BODY),
        ("PUT", "/v1/messages", BODY),
        ("POST", "/v1/messages", BODY),
    ]
    with connect(plain) as connection:
        for method, path, body in wrong:
            for verb, at, sent in ((method, path, body), ("POST", "/v1/completions", BODY)):
                data = json.dumps(sent).encode()
                connection.sendall(head(at, f"Content-Length: {len(data)}", method=verb) + data)
                status, _ = read(connection)
                assert (status == 200) is (sent is BODY and at == "/v1/completions")


def test_a_connection_outlives_those_of_client_libraries(plain: Served) -> None:
    """They keep theirs for five seconds: a server that closes then would meet the next request."""
    with connect(plain) as connection:
        for pause in (5.5, 0):
            connection.sendall(head("/health", method="GET"))
            assert read(connection)[0] == 200
            time.sleep(pause)


def test_no_event_is_more_than_one_line_to_any_reader(tokenizer: Tokenizer) -> None:
    """Python's readers of text also end a line at these three."""
    text = "one\x85two\u2028three\u2029four 한국어"
    want = tokenizer.decode(tokenizer.encode(text))
    assert {"\x85", "\u2028", "\u2029"} < set(want)
    body = {**BODY, "stream": True, "max_tokens": 99}
    with (
        served(script(tokenizer, text)) as found,
        found.http as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        assert response.headers["x-accel-buffering"] == "no"  # nor held back on the way
        lines = [line for line in response.iter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    values = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(value["choices"][0]["text"] for value in values) == want
