"""A server on a port of loopback inside the test's process, with scripts in place of a model."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import openai
import torch
from bytebound import Engine, StreamEvent
from bytebound.scripted import ScriptedDraft, ScriptedExecutor
from bytebound.server.process import ServerProcess
from bytebound.server.settings import ServerSettings
from bytebound.text.tokenizer import Tokenizer

END = "<|im_end|>"
MODEL = "scripted"


class SlowExecutor(ScriptedExecutor):
    """Takes its time for every pass, as a large model does, and counts them."""

    passes = 0

    def verify(self, ids: Sequence[int]) -> torch.Tensor:
        self.passes += 1
        return super().verify(ids)


@dataclass
class Served:
    url: str
    engine: Engine
    server: ServerProcess
    key: str = "any"

    @property
    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0)

    @property
    def anthropic(self) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.url, api_key=self.key, max_retries=0)

    @property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30, trust_env=False)

    def post(self, path: str, body: Any) -> httpx.Response:
        with self.http as client:
            return client.post(path, json=body)

    def health(self) -> dict[str, Any]:
        with self.http as client:
            found: dict[str, Any] = client.get("/health").json()
        return found

    def wait_idle(self, seconds: float) -> float:
        """Seconds until nothing runs or waits."""
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            facts = self.health()
            if not facts["running"] and not facts["waiting"]:
                return time.monotonic() - started
            time.sleep(0.01)
        raise AssertionError(f"still busy after {seconds} s: {self.health()}")


@contextmanager
def served(
    engine: Engine, *, model: str = MODEL, shutdown_timeout_s: float = 5, **settings: Any
) -> Iterator[Served]:
    """Serve ``engine`` until the block ends; its warm-up is over when the block begins."""
    server = ServerProcess(
        engine, ServerSettings(model_name=model, **settings), shutdown_timeout_s=shutdown_timeout_s
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        key = settings.get("api_key") or "any"
        found = Served(f"http://127.0.0.1:{port}", engine, server, key)
        while found.health()["status"] == "starting":
            time.sleep(0.01)
        yield found
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def script(
    tokenizer: Tokenizer, text: str, *, per_step: int = 1, slow: bool = False, max_len: int = 8192
) -> Engine:
    """An engine that answers ``text`` to every prompt, control tokens and all."""
    (end,) = tokenizer.encode(END, parse_control=True)
    ids = [*tokenizer.encode(text, parse_control=True), end]
    steps = [ids[:1], *(ids[i : i + per_step] for i in range(1, len(ids), per_step))]
    kind = SlowExecutor if slow else ScriptedExecutor
    pass_s = 0.02 if slow else 0.0
    executor = kind(steps, tokenizer.vocab_size, end_id=end, max_len=max_len, pass_s=pass_s)
    draft = ScriptedDraft(steps, wrong=1) if per_step > 1 else None
    return Engine(executor, draft=draft, num_draft_tokens=8, tokenizer=tokenizer, end_ids=[end])


def answering(
    tokenizer: Tokenizer, reply: Callable[[str], str], *, max_len: int = 300_000
) -> Engine:
    """An engine whose script for each prompt is what ``reply`` says to the prompt's text."""
    engine = script(tokenizer, "", max_len=max_len)
    executor, plain = engine.executor, engine.stream
    assert isinstance(executor, ScriptedExecutor)

    def stream(prompt_ids: Iterable[int], *rest: Any, **more: Any) -> Iterator[StreamEvent]:
        ids = list(prompt_ids)
        text = reply(tokenizer.decode(ids, skip_special_tokens=False))
        executor.rewrite([tokenizer.encode(text, parse_control=True)])
        return plain(ids, *rest, **more)

    engine.stream = stream  # type: ignore[method-assign]
    return engine


def events_of(response: httpx.Response) -> list[tuple[str | None, Any]]:
    """Name and value of every server-sent event; comments are left out."""
    found = []
    for block in response.text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        fields = dict(line.split(": ", 1) for line in lines)
        data = fields["data"]
        found.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    return found
