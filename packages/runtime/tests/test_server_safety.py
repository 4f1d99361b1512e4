"""Who is let in, how much is taken, and what is never written down."""

import asyncio
import json
import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bytebound import InvalidSettingError, TokenizerMissingError
from bytebound.engine import Engine
from bytebound.grammar_compiler import GrammarCompiler
from bytebound.scripted import ScriptedExecutor
from bytebound.server.app import build_app
from bytebound.server.guard import Guard
from bytebound.server.metrics import Metrics
from bytebound.server.settings import ServerSettings, check_access, is_loopback
from bytebound.text.tokenizer import Tokenizer, load_tokenizer
from llguidance import LLTokenizer
from starlette.responses import Response

from .server_runs import MODEL, Served, script, served

KEY = "a-key-that-nobody-guesses"
BODY: dict[str, Any] = {"model": MODEL, "prompt": "hello"}


@pytest.fixture(scope="module")
def plain(tokenizer: Tokenizer) -> Iterator[Served]:
    with served(script(tokenizer, "the quick brown fox"), max_body_bytes=4096) as found:
        yield found


@pytest.fixture(scope="module")
def locked(tokenizer: Tokenizer) -> Iterator[Served]:
    with served(script(tokenizer, "the quick"), api_key=KEY) as found:
        yield found


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.2", False),
        ("example.com", False),
        ("localhost.example.com", False),
    ],
)
def test_only_loopback_needs_no_key(host: str, inside: bool) -> None:
    assert is_loopback(host) is inside
    check_access(host, KEY)
    if inside:
        check_access(host, None)
    else:
        with pytest.raises(InvalidSettingError, match="--api-key"):
            check_access(host, None)


@pytest.mark.parametrize(
    "path", ["/v1/models", "/metrics", "/openapi.json", "/v1/nothing", "/v1/messages"]
)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Bearer {KEY[:-1]}"},
        {"authorization": f"Basic {KEY}"},
        {"x-api-key": "ключ".encode()},
    ],
)
def test_without_the_key_nothing_is_answered(locked: Served, path: str, headers: Any) -> None:
    with locked.http as client:
        response = client.get(path, headers=headers)
    assert response.status_code == 401
    assert KEY not in response.text
    if path == "/v1/messages":
        assert response.json()["error"]["type"] == "authentication_error"


def test_either_header_holds_the_key(locked: Served) -> None:
    with locked.http as client:
        for headers in ({"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}):
            assert client.get("/v1/models", headers=headers).status_code == 200
        assert client.get("/health").status_code == 200
    assert [model.id for model in locked.openai.models.list()] == [MODEL]
    message = locked.anthropic.messages.create(
        model="x", max_tokens=3, messages=[{"role": "user", "content": "hello"}]
    )
    assert message.usage.output_tokens > 0


def test_the_key_is_not_shown(locked: Served) -> None:
    assert KEY not in repr(ServerSettings("m", api_key=KEY))
    with pytest.raises(InvalidSettingError) as caught:
        ServerSettings("m", api_key="ключ")
    assert "ключ" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("evil.example", 403),
        ("localhost:80@evil.example", 403),
        ("[::1]evil.example", 403),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("", 403),
    ],
)
def test_a_page_of_another_host_cannot_ask(plain: Served, host: str, status: int) -> None:
    with plain.http as client:
        assert client.get("/v1/models", headers={"host": host}).status_code == status


def test_a_form_of_a_web_page_is_no_request(plain: Served) -> None:
    with plain.http as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            response = client.post(
                "/v1/completions", content=json.dumps(BODY), headers={"content-type": kind}
            )
            assert response.status_code == 400


def test_a_large_body_is_refused_announced_or_not(plain: Served) -> None:
    large = json.dumps({**BODY, "prompt": "x" * 5000}).encode()
    headers = {"content-type": "application/json"}

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(large), 500):
            yield large[start : start + 500]

    with plain.http as client:
        for content in (large, chunks()):
            response = client.post("/v1/completions", content=content, headers=headers)
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "request_too_large"
        response = client.post("/v1/messages", content=large, headers=headers)
        assert response.json()["error"]["type"] == "request_too_large"
    assert plain.post("/v1/completions", BODY).status_code == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"model": "scripted", "prompt": "x", "temperature": NaN}',
        b'{"model": "scripted", "prompt": "x", "temperature": Infinity}',
        b'{"model": "scripted", "prompt": "x", "top_p": -Infinity}',
        b'{"model": "scripted", "prompt": "x", "temperature": 1e999}',
        b'{"model": "scripted", "prompt": "x", "min_p": 1e999}',
        b'{"model": "scripted", "prompt": "x", "seed": 1' + b"0" * 3000 + b"}",
        b'{"model": "scripted", "prompt": "x", "logit_bias": {"5": NaN}}',
        b'{"model": "scripted", "prompt": "x", "\\ud800": 1}',
        b'{"model": "scripted", "prompt": "\\ud800"}',
        b'{"model": "scripted", "prompt": [[]]}',
        b'{"model": "scripted", "prompt": []}',
        b'{"model": "scripted", "prompt": ""}',
        b'{"model": "scripted", "prompt": [-1]}',
        b'{"model": "scripted", "prompt": [99999999]}',
        b'{"model": "scripted", "prompt": [true]}',
        b'{"model": "scripted", "prompt": "x", "stop": ' + b"[" * 1500 + b"]" * 1500 + b"}",
        b"[" * 4000,
    ],
)
def test_absurd_bodies_are_refused_and_the_next_request_works(plain: Served, raw: bytes) -> None:
    headers = {"content-type": "application/json"}
    with plain.http as client:
        response = client.post("/v1/completions", content=raw, headers=headers)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["type"] == "invalid_request_error"
        response = client.post("/v1/messages", content=raw, headers=headers)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["type"] == "invalid_request_error"
        answer = client.post("/v1/completions", json=BODY).json()
    assert answer["choices"][0]["text"] == "the quick brown fox"


@pytest.mark.parametrize(
    "tools",
    [
        [{"type": "function", "function": {"name": "f", "parameters": {"x": float("nan")}}}],
        [{"type": "function", "function": {"name": "a b"}}],
    ],
)
def test_absurd_tools_are_refused(plain: Served, tools: Any) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "tools": tools}
    with plain.http as client:
        response = client.post(
            "/v1/chat/completions",
            content=json.dumps(body),
            headers={"content-type": "application/json"},
        )
    assert response.status_code == 400
    assert "tools" in response.json()["error"]["message"]


def test_no_prompt_and_no_answer_is_logged(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    with served(script(tokenizer, "the quick brown fox"), api_key=KEY) as found, found.http as http:
        caplog.set_level(logging.INFO, "uvicorn.error")  # which is told to be quiet
        headers = {"x-api-key": KEY}
        http.post("/v1/completions", json={**BODY, "prompt": "a secret"}, headers=headers)
        http.post("/v1/completions", json={**BODY, "secret": "x"}, headers=headers)
        http.get("/v1/secret?key=secret", headers=headers)
    ours = [record for record in caplog.records if record.name != "httpx"]  # not the client's
    assert ours
    out = "".join(capfd.readouterr()) + "".join(record.getMessage() for record in ours)
    for word in ("secret", "quick", KEY):
        assert word not in out


def test_a_bug_outside_of_the_engine_is_no_secret_either(
    plain: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(metrics: Metrics) -> bytes:
        raise LookupError("hidden words")

    monkeypatch.setattr(Metrics, "text", broken)
    with plain.http as client:
        response = client.get("/metrics")
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    for _ in range(100):  # it is written down behind the answer
        if "LookupError" in caplog.text:
            break
        time.sleep(0.02)
    assert "LookupError" in caplog.text
    assert "hidden" not in caplog.text + response.text


def test_the_document_names_every_endpoint(plain: Served) -> None:
    with plain.http as client:
        document = client.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/health",
        "/metrics",
        "/v1/models",
        "/v1/models/{name}",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
    }
    for path in document["paths"].values():
        for operation in path.values():
            assert "422" not in operation["responses"]  # no refusal has that status


def test_the_metrics_name_no_path_of_a_client(plain: Served) -> None:
    with plain.http as client:
        client.get("/v1/a-path-of-mine")
        client.post("/v1/completions", json=BODY)
        client.post("/v1/a-path-of-mine", json={"prompt": "x" * 5000})
        text = client.get("/metrics").text
    assert "a-path-of-mine" not in text
    assert 'bytebound_requests_total{endpoint="refused at the door",status="413"}' in text
    assert 'bytebound_requests_total{endpoint="/v1/completions",status="200"}' in text
    assert "bytebound_queue_depth 0.0" in text


def test_settings_out_of_range_are_refused() -> None:
    for wrong in (
        {"max_queue": -1},
        {"max_body_bytes": 0},
        {"max_prompt_tokens": 0},
        {"request_timeout_s": 0.0},
        {"request_timeout_s": float("nan")},
        {"api_key": " "},
    ):
        with pytest.raises(InvalidSettingError, match=next(iter(wrong)).removesuffix("_s")):
            ServerSettings("m", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidSettingError, match="model_name"):
        ServerSettings("")


def test_a_model_without_a_tokenizer_is_not_served() -> None:
    with pytest.raises(TokenizerMissingError):
        build_app(Engine(ScriptedExecutor([[1]], 10)), ServerSettings("m"))


def test_a_model_without_a_chat_template_completes_text(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    folder = shutil.copytree(tokenizer_folder, tmp_path / "plain")
    (folder / "chat_template.jinja").unlink()
    plain = load_tokenizer(folder)
    assert plain is not None
    with served(script(plain, "the quick")) as found:
        assert found.health()["status"] == "ready"
        assert found.post("/v1/completions", BODY).json()["choices"][0]["text"] == "the quick"
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
        response = found.post("/v1/chat/completions", chat)
    assert response.status_code == 400
    assert "chat template" in response.json()["error"]["message"]


def test_a_template_is_compiled_before_the_server_is_ready(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[Any] = []
    render = Tokenizer.apply_chat_template

    def counted(self: Tokenizer, *given: Any, **more: Any) -> Any:
        rendered.append(given)
        return render(self, *given, **more)

    monkeypatch.setattr(Tokenizer, "apply_chat_template", counted)
    with served(script(tokenizer, "the quick")) as found:
        assert found.health()["status"] == "ready"
        assert len(rendered) == 1


def test_the_vocabulary_of_grammars_is_read_before_the_server_is_ready(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E27: of a large vocabulary it takes seconds."""
    read: list[LLTokenizer] = []
    original = GrammarCompiler._read_vocabulary

    def noted(self: GrammarCompiler) -> LLTokenizer:
        read.append(original(self))
        return read[-1]

    monkeypatch.setattr(GrammarCompiler, "_read_vocabulary", noted)
    structured = {**BODY, "response_format": {"type": "json_object"}}
    with served(script(tokenizer, '{"a": 1}')) as found:
        assert found.health()["status"] == "ready" and len(read) == 1
        assert found.post("/v1/completions", structured).status_code == 200
    assert len(read) == 1


def test_a_request_that_a_shutdown_cancels_raises_nothing() -> None:
    """The server above would log a traceback, with paths."""

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    async def cancelled() -> None:
        guard = Guard(endless, ServerSettings(model_name="m"), lambda path, failure: Response())
        scope = {"type": "http", "path": "/", "headers": [(b"host", b"localhost")]}
        task = asyncio.ensure_future(guard(scope, receive, send))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    asyncio.run(cancelled())
