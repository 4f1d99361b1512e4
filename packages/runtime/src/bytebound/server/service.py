"""What the endpoints share: the engine's thread, the settings, and whether all of it is ready."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from bytebound.engine import Engine
from bytebound.errors import ByteboundError
from bytebound.grammar import Grammar
from bytebound.results import StreamEvent
from bytebound.sampling import SamplingParams
from bytebound.server.disconnect import EventStream, until_gone
from bytebound.server.errors import RequestFailure
from bytebound.server.metrics import Metrics
from bytebound.server.settings import ServerSettings
from bytebound.server.sse import dumps, with_errors
from bytebound.server.turn import Turn
from bytebound.server.worker import EngineWorker

T = TypeVar("T")

# Enough ids for a wide pass of a prompt, and passes enough for every number of drafts.
WARM_UP_PROMPT = {"cuda": 1100}
WARM_UP_PROMPT_ELSEWHERE = 64
WARM_UP_TOKENS = 16
WARM_UP_LIMIT_S = 1800.0
LAST_PASS_S = 10.0


class Service:
    """One engine behind HTTP."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.tokenizer = engine.tokenizer  # without one there is no text to serve
        self.worker = EngineWorker(
            engine, max_queue=settings.max_queue, timeout_s=settings.request_timeout_s
        )
        self.metrics = Metrics(self.worker)
        self.created = int(time.time())
        self.warm = False
        self.warm_up_error: str | None = None
        self.last_pass_s = LAST_PASS_S
        """Seconds that the end of the server waits for the engine to leave its pass."""

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncGenerator[None, None]:
        """Start the thread, warm the engine up while requests may queue; stop it at the end."""
        self.worker.start()
        warming = asyncio.ensure_future(self._warm_up())
        try:
            yield
        finally:
            warming.cancel()
            await run_in_threadpool(self.worker.stop, self.last_pass_s)

    def state(self) -> tuple[bool, dict[str, Any]]:
        """Whether requests are answered at once, and the facts for ``/health``."""
        problem = self.worker.lost or self.warm_up_error
        status = "failed" if problem else "ready" if self.warm else "starting"
        facts: dict[str, Any] = {
            "status": status,
            "model": self.settings.model_name,
            "running": int(self.worker.busy),
            "waiting": self.worker.depth,
        }
        if problem:
            facts["problem"] = problem
        return status == "ready", facts

    async def _warm_up(self) -> None:
        """Compile, record and touch what the first request would otherwise pay for."""
        engine = self.engine
        length = WARM_UP_PROMPT.get(engine.backend or "", WARM_UP_PROMPT_ELSEWHERE)
        length = max(1, min(length, engine.max_len - WARM_UP_TOKENS))
        prompt = [index % engine.executor.vocab_size for index in range(length)]
        params = SamplingParams(max_tokens=WARM_UP_TOKENS)

        def stream(engine: Engine) -> Iterator[StreamEvent]:
            yield from engine.stream(prompt, params)
            engine.reader.forget()  # a prompt that nobody goes on from

        try:
            with suppress(ByteboundError):  # without a template there are no chats to be slow
                hello = [{"role": "user", "content": "hello"}]
                await run_in_threadpool(self.tokenizer.apply_chat_template, hello)
            with suppress(ByteboundError):  # nor structured output without a vocabulary of bytes
                # Reading a large vocabulary holds up every thread for seconds.
                await run_in_threadpool(self.engine.grammars.check, Grammar.json_object())
            job = self.worker.submit(stream, deadline=time.monotonic() + WARM_UP_LIMIT_S)
            async for _ in job.results():
                pass
        except Exception as error:
            self.warm_up_error = f"the warm-up failed: {type(error).__name__}"
        else:
            self.warm = True

    async def answer(
        self, request: Request, turn: Turn, collect: Awaitable[Mapping[str, Any]]
    ) -> Response:
        """The whole reply as JSON; a client that leaves ends the work."""

        async def work() -> Mapping[str, Any]:
            return await collect

        try:
            found = await until_gone(request.receive, work())
        finally:
            turn.job.cancel()
            self.count(turn)
        return json_response(found, headers=queue_headers(turn))

    def stream(
        self,
        turn: Turn,
        events: AsyncGenerator[str, None],
        render_failure: Callable[[RequestFailure], str],
        endpoint: str,
    ) -> EventStream:
        """The reply as events; what goes wrong in mid-stream is the last of them."""

        def failed(failure: RequestFailure) -> None:
            self.metrics.requests.labels(endpoint, f"{failure.status} in stream").inc()

        def ended() -> None:
            turn.job.cancel()
            self.count(turn)

        guarded = with_errors(events, render_failure, failed)
        return EventStream(guarded, ended, queue_headers(turn))

    def count(self, turn: Turn) -> None:
        """Add a request that has ended to the metrics."""
        if turn.stats is not None:
            self.metrics.generated(turn.stats, turn.job.queued_s)

    def waiting_note(self, turn: Turn) -> Callable[[], str]:
        """What a stream says before its first token."""

        def note() -> str:
            place = self.worker.place_of(turn.job)
            return f"waiting behind {place} requests" if place else "reading the prompt"

        return note


def queue_headers(turn: Turn) -> dict[str, str]:
    """Where the request stood when it came."""
    return {"X-Bytebound-Queue-Position": str(turn.job.position)}


def json_response(
    value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A response of JSON in UTF-8."""
    return Response(dumps(value), status, headers=headers, media_type="application/json")
