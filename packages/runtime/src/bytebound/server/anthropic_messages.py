"""``POST /v1/messages`` and ``/v1/messages/count_tokens``, as Anthropic's clients expect them."""

import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from bytebound.results import GenerationStats
from bytebound.server.anthropic_bodies import CountBody, MessagesBody
from bytebound.server.conversation import render
from bytebound.server.errors import RequestFailure
from bytebound.server.formats import requested_grammar
from bytebound.server.service import Service, json_response
from bytebound.server.sse import named_event, with_signs_of_life
from bytebound.server.turn import Turn, admit, check_prompt, check_room, make_params, thinking_work
from bytebound.text.messages import from_anthropic
from bytebound.text.pieces import (
    Piece,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from bytebound.text.reply import ReplySplitter

ENDPOINT = "/v1/messages"


async def count_tokens(service: Service, body: CountBody) -> Response:
    """Say how many tokens the prompt of a turn has."""
    return json_response({"input_tokens": len(await _render(service, body))})


async def create_message(service: Service, body: MessagesBody, request: Request) -> Response:
    """Answer one request, streamed or whole."""
    service.worker.check_place()
    turn = await _admit(service, body)
    message = _Message(service, body, turn)
    if body.stream:
        return service.stream(turn, message.events(), _stream_failure, ENDPOINT)
    return await service.answer(request, turn, message.collect())


async def _render(service: Service, body: CountBody) -> list[int]:
    variables = {}
    if body.thinking is not None:
        variables["enable_thinking"] = body.thinking.type != "disabled"
    messages = from_anthropic(body.system, body.messages)
    tools = [tool.for_template() for tool in body.offered()]
    return await run_in_threadpool(
        render, service.tokenizer, messages, tools or None, variables, False
    )


async def _admit(service: Service, body: MessagesBody) -> Turn:
    engine, settings = service.engine, service.settings
    prompt = await _render(service, body)
    room = check_prompt(engine, settings, prompt)
    # Stop strings end the answer alone, so the splitter looks for them, and not the engine.
    chosen = make_params(engine, settings, body.sampling(), room)
    schemas = {tool.name: tool.input_schema for tool in body.offered()}
    grammar = await requested_grammar(engine, body.form(), "output_config", body.tool_use())
    params = replace(chosen, stop=(), grammar=grammar)
    check_room(engine, prompt, params)
    split = ReplySplitter(
        service.tokenizer,
        prompt,
        schemas or None,
        call_id=lambda index: f"toolu_{secrets.token_hex(12)}",
        stop=chosen.stop,
    )
    limit = body.thinking.limit if body.thinking is not None else None
    work = thinking_work(engine, prompt, params, limit, calls=bool(schemas))
    return admit(service.worker, prompt, params, split, work)


class Blocks:
    """Content blocks as they grow; each is started and stopped once, and holds one kind."""

    def __init__(self) -> None:
        self.content: list[dict[str, Any]] = []
        self.called = False
        """Whether a whole call is among them."""
        self._open = False
        self._json = ""

    def take(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """Add a piece; the events that say so."""
        match piece:
            case ReasoningDelta(text):
                yield from self._grow("thinking", "thinking", "thinking_delta", text)
            case TextDelta(text):
                yield from self._grow("text", "text", "text_delta", text)
            case ToolCallStart(_, call_id, name):
                block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                yield from self._start(block)
            case ToolCallArguments(_, delta):
                self._json += delta
                yield self._delta({"type": "input_json_delta", "partial_json": delta})
            case ToolCallEnd(_, complete):
                self.called = self.called or complete
                yield from self.stop()

    def stop(self) -> Iterator[dict[str, Any]]:
        """End the block that is open."""
        if not self._open:
            return
        self._open = False
        if self._json:
            # Of a call that was cut off, what came of its arguments; clients read them alike.
            self.content[-1]["input"] = from_json(self._json, allow_partial=True)
            self._json = ""
        yield {"type": "content_block_stop", "index": len(self.content) - 1}

    def _grow(self, kind: str, field: str, delta: str, text: str) -> Iterator[dict[str, Any]]:
        if not self._open or self.content[-1]["type"] != kind:
            block = {"type": kind, field: ""}
            yield from self._start(block | ({"signature": ""} if kind == "thinking" else {}))
        self.content[-1][field] += text
        yield self._delta({"type": delta, field: text})

    def _start(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self.stop()
        self.content.append(block)
        self._open = True
        index = len(self.content) - 1
        yield {"type": "content_block_start", "index": index, "content_block": dict(block)}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        index = len(self.content) - 1
        return {"type": "content_block_delta", "index": index, "delta": delta}


class _Message:
    """One reply in Anthropic's form."""

    def __init__(self, service: Service, body: MessagesBody, turn: Turn) -> None:
        self._service = service
        self._turn = turn
        self._ignored = body.ignored()
        self._blocks = Blocks()
        self._id = f"msg_{secrets.token_hex(12)}"

    async def collect(self) -> Mapping[str, Any]:
        """The whole reply."""
        async for update in self._turn.updates():
            for piece in update.pieces:
                for _ in self._blocks.take(piece):
                    pass
        for _ in self._blocks.stop():
            pass
        return {
            **self._head(),
            "content": self._blocks.content,
            **self._end(),
            "usage": _usage(self._turn.stats),
            "x_bytebound": self._report(),
        }

    async def events(self) -> AsyncGenerator[str, None]:
        """The reply as events: the message, its blocks, why it ended, its end."""
        begun = False
        note = self._service.waiting_note(self._turn)
        async for update in with_signs_of_life(self._turn.updates(), note):
            if isinstance(update, str):
                yield update
                continue
            if not begun:
                begun = True
                yield named_event({"type": "message_start", "message": self._opening()})
            for piece in update.pieces:
                for event in self._blocks.take(piece):
                    yield named_event(event)
        for event in self._blocks.stop():
            yield named_event(event)
        yield named_event(
            {
                "type": "message_delta",
                "delta": self._end(),
                "usage": _usage(self._turn.stats),
                "x_bytebound": self._report(),
            }
        )
        yield named_event({"type": "message_stop"})

    def _head(self) -> dict[str, Any]:
        model = self._service.settings.model_name
        return {"id": self._id, "type": "message", "role": "assistant", "model": model}

    def _opening(self) -> dict[str, Any]:
        """The message before its first block; what the prompt cost is known by now."""
        nothing = {"stop_reason": None, "stop_sequence": None}
        counts = _usage(self._turn.stats)
        return {**self._head(), "content": [], **nothing, "usage": counts}

    def _end(self) -> dict[str, Any]:
        turn = self._turn
        reason = "end_turn"
        if turn.finish_reason == "length":
            reason = "max_tokens"
        elif turn.matched_stop is not None:
            reason = "stop_sequence"
        elif self._blocks.called:
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": turn.matched_stop}

    def _report(self) -> dict[str, Any]:
        return self._turn.report() | ({"ignored": self._ignored} if self._ignored else {})


def _usage(stats: GenerationStats | None) -> dict[str, int]:
    """Counts of tokens; what was cached is not among the input tokens, as the protocol has it."""
    if stats is None:
        raise RuntimeError("a reply without an event")
    return {
        "input_tokens": stats.prompt_tokens - stats.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.cached_tokens,
        "output_tokens": stats.completion_tokens,
    }


def _stream_failure(failure: RequestFailure) -> str:
    """The end of a stream that failed."""
    return named_event(failure.anthropic())
