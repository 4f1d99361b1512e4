"""``POST /v1/completions``: text that goes on, with ``echo`` and log probabilities of the prompt.

Several prompts are one request at the engine, which runs them in their order.
"""

import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from bytebound.engine import Engine
from bytebound.errors import InvalidRequestError
from bytebound.results import GenerationStats, StreamEvent
from bytebound.sampling import SamplingParams
from bytebound.server.errors import bad_request
from bytebound.server.formats import compiled_grammar
from bytebound.server.logprobs import CompletionLogprobs, check_score_size, score_prompt
from bytebound.server.openai_bodies import CompletionBody
from bytebound.server.openai_chat import DONE, openai_stream_failure, usage, visible_logprobs
from bytebound.server.replies import PlainSplitter
from bytebound.server.service import Service
from bytebound.server.sse import data_event, with_signs_of_life
from bytebound.server.turn import Turn, Update, admit, check_prompt, check_room, make_params
from bytebound.text.tokenizer import Tokenizer

ENDPOINT = "/v1/completions"


@dataclass(frozen=True, slots=True)
class _Prompt:
    ids: list[int]
    text: str
    params: SamplingParams


async def complete(service: Service, body: CompletionBody, request: Request) -> Response:
    """Answer one request, streamed or whole."""
    service.worker.check_place()
    prompts = await run_in_threadpool(_read_prompts, service, body)
    run = _Run(service, body, prompts)
    if body.stream:
        return service.stream(run.turn, run.events(), openai_stream_failure, ENDPOINT)
    return await service.answer(request, run.turn, run.collect())


def _read_prompts(service: Service, body: CompletionBody) -> list[_Prompt]:
    engine, settings, tokenizer = service.engine, service.settings, service.tokenizer
    found = []
    grammar = compiled_grammar(engine, body.response_format, "response_format")
    for given in body.prompts():
        ids = _encoded(tokenizer, given) if isinstance(given, str) else given
        for token_id in ids:
            if token_id >= engine.executor.vocab_size:
                raise bad_request(
                    f"prompt: got the id {token_id}, expected 0 to "
                    f"{engine.executor.vocab_size - 1}",
                    "prompt",
                )
        room = check_prompt(engine, settings, ids, "prompt")
        params = make_params(engine, settings, body.sampling(), room)
        params = replace(params, grammar=grammar)
        check_room(engine, ids, params, "prompt")
        if body.echo and body.logprobs is not None:
            check_score_size(engine, ids)
        found.append(
            _Prompt(ids, given if isinstance(given, str) else tokenizer.decode(ids), params)
        )
    return found


def _encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    try:
        return tokenizer.encode(text)
    except InvalidRequestError as error:
        raise bad_request(f"prompt{str(error).removeprefix('text')}", "prompt") from error


class _Choice:
    """The completion of one prompt."""

    def __init__(self, service: Service, body: CompletionBody, index: int, prompt: _Prompt) -> None:
        self.index = index
        self.prompt = prompt
        self.text = ""
        self.finish_reason: str | None = None
        self.stats: GenerationStats | None = None
        self._service = service
        self._body = body
        self._logprobs = CompletionLogprobs(service.tokenizer)
        self._entries: dict[str, list[Any]] = {}

    def take(self, update: Update) -> dict[str, Any] | None:
        """Add a step; return its part of a streamed reply, or None where it shows nothing."""
        event = update.event
        self.stats = event.stats or self.stats
        scored = event.stats is None  # the prompt's own log probabilities, before the first step
        text = self.prompt.text if scored else event.text_delta
        self.text += text
        entries: dict[str, list[Any]] | None = None
        if self._body.logprobs is not None:
            if scored:
                entries = self._logprobs.prompt(self.prompt.ids, event.logprobs or ())
            else:
                shown = visible_logprobs(self._service, self.prompt.params, update)
                entries = self._logprobs.take(shown)
            for name, items in entries.items():
                self._entries.setdefault(name, []).extend(items)
        self.finish_reason = event.finish_reason
        if not text and not (entries and entries["tokens"]):
            return None
        return {"index": self.index, "text": text, "logprobs": entries, "finish_reason": None}

    def whole(self) -> dict[str, Any]:
        """The choice of an unstreamed reply."""
        return {
            "index": self.index,
            "text": self.text,
            "logprobs": self._entries or None,
            "finish_reason": self.finish_reason,
        }

    def end(self) -> dict[str, Any]:
        """The choice of the last chunk of this completion."""
        return {
            "index": self.index,
            "text": "",
            "logprobs": None,
            "finish_reason": self.finish_reason,
        }


class _Run:
    """One request's completions in OpenAI's form."""

    def __init__(self, service: Service, body: CompletionBody, prompts: list[_Prompt]) -> None:
        self._service = service
        self._body = body
        self._choices = [_Choice(service, body, i, prompt) for i, prompt in enumerate(prompts)]
        self._id = f"cmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())
        first = prompts[0]
        self.turn: Turn = admit(
            service.worker, first.ids, first.params, PlainSplitter(), self._work
        )

    def _work(self, engine: Engine) -> Iterator[StreamEvent]:
        for choice in self._choices:
            prompt, top = choice.prompt, self._body.logprobs
            if self._body.echo:
                scored = () if top is None else tuple(score_prompt(engine, prompt.ids, top))
                yield StreamEvent((), "", scored)
            yield from engine.stream(prompt.ids, prompt.params)

    async def _updates(self) -> AsyncGenerator[tuple[_Choice, Update], None]:
        updates = self.turn.updates(replies=len(self._choices))
        try:
            for choice in self._choices:
                async for update in updates:
                    yield choice, update
                    if update.event.finish_reason is not None:
                        break
        finally:
            await updates.aclose()

    async def collect(self) -> Mapping[str, Any]:
        """All completions, whole."""
        async for choice, update in self._updates():
            choice.take(update)
        return {
            **self._head(),
            "choices": [choice.whole() for choice in self._choices],
            "usage": self._usage(),
            "x_bytebound": self.turn.report(),
        }

    async def events(self) -> AsyncGenerator[str, None]:
        """The completions as chunks, one after the other."""
        counts: dict[str, Any] = {"usage": None} if self._body.include_usage else {}
        note = self._service.waiting_note(self.turn)
        async for item in with_signs_of_life(self._updates(), note):
            if isinstance(item, str):
                yield item
                continue
            choice, update = item
            part = choice.take(update)
            if part is not None:
                yield data_event({**self._head(), "choices": [part], **counts})
            if choice.finish_reason is not None:
                report = {} if self._body.include_usage else {"x_bytebound": self.turn.report()}
                yield data_event({**self._head(), "choices": [choice.end()], **counts, **report})
        if self._body.include_usage:
            counts = {"usage": self._usage(), "x_bytebound": self.turn.report()}
            yield data_event({**self._head(), "choices": [], **counts})
        yield DONE

    def _head(self) -> dict[str, Any]:
        name = self._service.settings.model_name
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": name,
        }

    def _usage(self) -> dict[str, Any]:
        each = [usage(choice.stats) for choice in self._choices]
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        cached = sum(one["prompt_tokens_details"]["cached_tokens"] for one in each)
        return {
            **{name: sum(one[name] for one in each) for name in names},
            "prompt_tokens_details": {"cached_tokens": cached},
        }
