"""``POST /v1/chat/completions``: a turn of a conversation, as OpenAI's clients expect it."""

import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from bytebound.results import GenerationStats, TokenLogprob
from bytebound.sampling import SamplingParams
from bytebound.server import conversation
from bytebound.server.errors import RequestFailure
from bytebound.server.formats import requested_grammar
from bytebound.server.logprobs import chat_entries
from bytebound.server.openai_bodies import ChatBody, NamedTool
from bytebound.server.replies import Reply
from bytebound.server.service import Service
from bytebound.server.sse import data_event, with_signs_of_life
from bytebound.server.turn import (
    Turn,
    Update,
    admit,
    check_prompt,
    check_room,
    make_params,
    thinking_work,
)
from bytebound.text.messages import from_openai
from bytebound.text.pieces import (
    Piece,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
)
from bytebound.text.reply import ReplySplitter

ENDPOINT = "/v1/chat/completions"
DONE = "data: [DONE]\n\n"


async def complete_chat(service: Service, body: ChatBody, request: Request) -> Response:
    """Answer one request, streamed or whole."""
    service.worker.check_place()
    turn = await _admit(service, body)
    chat = _Chat(service, body, turn)
    if body.stream:
        return service.stream(turn, chat.events(), openai_stream_failure, ENDPOINT)
    return await service.answer(request, turn, chat.collect())


async def _admit(service: Service, body: ChatBody) -> Turn:
    engine, settings = service.engine, service.settings
    messages = from_openai(body.messages)
    variables = conversation.template_variables(body)
    offered = body.offered()
    hidden = {"function": {"strict"}}  # the grammar's affair, and no word to the model
    tools = [tool.model_dump(exclude_unset=True, exclude=hidden) for tool in offered]
    prompt = await run_in_threadpool(
        conversation.render, service.tokenizer, messages, tools or None, variables
    )
    grammar = await requested_grammar(
        engine, body.response_format, "response_format", body.tool_use()
    )
    room = check_prompt(engine, settings, prompt)
    # Stop strings end the answer alone, so the splitter looks for them, and not the engine.
    chosen = make_params(engine, settings, body.sampling(), room)
    params = replace(chosen, stop=(), grammar=grammar)
    check_room(engine, prompt, params)
    schemas = {tool.function.name: tool.function.parameters or {} for tool in offered}
    split = ReplySplitter(
        service.tokenizer, prompt, schemas or None, stop=chosen.stop, min_tokens=chosen.min_tokens
    )
    work = thinking_work(engine, prompt, params, body.thinking_budget, calls=bool(offered))
    return admit(service.worker, prompt, params, split, work)


class _Chat:
    """One reply in OpenAI's form."""

    def __init__(self, service: Service, body: ChatBody, turn: Turn) -> None:
        self._service = service
        self._body = body
        self._turn = turn
        self._reply = Reply()
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())

    async def collect(self) -> Mapping[str, Any]:
        """The whole reply."""
        entries: list[dict[str, Any]] = []
        async for update in self._turn.updates():
            self._reply.take(update.pieces)
            entries += self._entries(update)
        reply = self._reply
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if reply.calls and not reply.text else reply.text,
            "refusal": None,
        }
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in reply.calls
            ]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": {"content": entries, "refusal": None} if self._body.logprobs else None,
            "finish_reason": self._finish_reason(),
        }
        return {
            **self._head("chat.completion"),
            "choices": [choice],
            "usage": usage(self._turn.stats),
            "x_bytebound": self._turn.report(),
        }

    async def events(self) -> AsyncGenerator[str, None]:
        """The reply as chunks: the role, deltas, the finish reason, the counts if asked for."""
        yield self._chunk({"role": "assistant", "content": ""})
        note = self._service.waiting_note(self._turn)
        async for update in with_signs_of_life(self._turn.updates(), note):
            if isinstance(update, str):
                yield update
                continue
            self._reply.take(update.pieces)
            entries = self._entries(update)
            deltas = [delta for piece in update.pieces if (delta := _delta(piece))]
            if entries and not deltas:
                deltas = [{"content": ""}]
            for delta in deltas:
                yield self._chunk(delta, entries)
                entries = []
        last = {} if self._body.include_usage else {"x_bytebound": self._turn.report()}
        yield self._chunk({}, finish_reason=self._finish_reason(), more=last)
        if self._body.include_usage:
            counts = {"usage": usage(self._turn.stats), "x_bytebound": self._turn.report()}
            yield data_event({**self._head("chat.completion.chunk"), "choices": [], **counts})
        yield DONE

    def _head(self, kind: str) -> dict[str, Any]:
        name = self._service.settings.model_name
        return {"id": self._id, "object": kind, "created": self._created, "model": name}

    def _chunk(
        self,
        delta: Mapping[str, Any],
        entries: list[dict[str, Any]] | None = None,
        finish_reason: str | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> str:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": {"content": entries, "refusal": None} if entries else None,
            "finish_reason": finish_reason,
        }
        counts = {"usage": None} if self._body.include_usage else {}
        head = self._head("chat.completion.chunk")
        return data_event({**head, "choices": [choice], **counts, **(more or {})})

    def _finish_reason(self) -> str | None:
        reason = self._turn.finish_reason
        # As OpenAI has it: a call that was asked for by name is an answer like any other.
        named = isinstance(self._body.tool_choice, NamedTool)
        whole = any(call.complete for call in self._reply.calls) and not named
        return "tool_calls" if reason == "stop" and whole else reason

    def _entries(self, update: Update) -> list[dict[str, Any]]:
        if not self._body.logprobs:
            return []
        shown = visible_logprobs(self._service, self._turn.params, update)
        return chat_entries(self._service.tokenizer, shown, self._body.top_logprobs or 0)


def _delta(piece: Piece) -> dict[str, Any] | None:
    match piece:
        case ReasoningDelta(text):
            return {"reasoning_content": text}
        case TextDelta(text):
            return {"content": text}
        case ToolCallStart(index, call_id, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": call_id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case ToolCallArguments(index, delta):
            return {"tool_calls": [{"index": index, "function": {"arguments": delta}}]}
    return None


def visible_logprobs(
    service: Service, params: SamplingParams, update: Update
) -> tuple[TokenLogprob, ...]:
    """Those of a step's tokens but the one that only ends the reply."""
    logprobs = update.event.logprobs or ()
    ends = set(params.stop_token_ids)
    if not params.ignore_eos:
        ends |= service.engine.end_ids
    if update.event.finish_reason == "stop" and logprobs and logprobs[-1].token_id in ends:
        logprobs = logprobs[:-1]
    return logprobs


def usage(stats: GenerationStats | None) -> dict[str, Any]:
    """Counts of tokens in OpenAI's form."""
    prompt = 0 if stats is None else stats.prompt_tokens
    completion = 0 if stats is None else stats.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0 if stats is None else stats.cached_tokens},
    }


def openai_stream_failure(failure: RequestFailure) -> str:
    """The end of a stream that failed."""
    return data_event(failure.openai()) + DONE
