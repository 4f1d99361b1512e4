"""One request on its way: admitted, queued, run, and its events split into pieces."""

import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bytebound.budgeted_stream import stream_with_budget
from bytebound.engine import Engine
from bytebound.results import GenerationStats, StreamEvent
from bytebound.sampling import SamplingParams
from bytebound.server.errors import RequestFailure, bad_request
from bytebound.server.replies import Splitter
from bytebound.server.settings import ServerSettings
from bytebound.server.worker import EngineWorker, Job, Work
from bytebound.text.pieces import Piece
from bytebound.text.thinking_budget import ThinkingBudget

SEED_BITS = 32  # JSON readers that keep numbers as doubles read such a seed exactly


@dataclass(frozen=True, slots=True)
class Update:
    """What one step of the model added to a reply."""

    pieces: list[Piece]
    event: StreamEvent


class Turn:
    """One request at the engine. ``admit`` checks it and puts it in the queue."""

    def __init__(
        self, job: Job[StreamEvent], prompt: Sequence[int], params: SamplingParams, split: Splitter
    ) -> None:
        self.job = job
        self.prompt = prompt
        self.params = params
        self.finish_reason: str | None = None
        self.matched_stop: str | None = None
        self.stats: GenerationStats | None = None
        self._split = split

    async def updates(self, replies: int = 1) -> AsyncGenerator[Update, None]:
        """The reply as it comes; the last update holds everything that was held back.

        ``replies`` is how many the job gives, one after the other.
        """
        results = self.job.results()
        try:
            async for event in results:
                pieces = self._split.push(event.token_ids, event.text_delta)
                event = _without_last(event, self._split.surplus)
                self.stats = event.stats or self.stats
                self.matched_stop = self._split.matched_stop
                self.finish_reason = "stop" if self.matched_stop else event.finish_reason
                if self.finish_reason is not None:
                    pieces = pieces + self._split.finish(self.finish_reason)
                    self.matched_stop = self._split.matched_stop
                    replies -= 1
                yield Update(pieces, event)
                if replies == 0:
                    return
        finally:
            await results.aclose()

    def report(self) -> dict[str, Any]:
        """``x_bytebound``: times, speed, what the draft was worth, and the sampling used."""
        stats, params = self.stats, self.params
        if stats is None:
            return {}
        return {
            "queued_s": round(self.job.queued_s, 6),
            "prefill_s": round(stats.prefill_s, 6),
            "decode_s": round(stats.decode_s, 6),
            "tok_per_s": round(stats.tok_per_s, 3),
            "cached_tokens": stats.cached_tokens,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "mean_accepted_len": round(stats.mean_accepted_len, 4),
            "sampling": {
                "max_tokens": params.max_tokens,
                "temperature": params.temperature,
                "top_p": params.top_p,
                "top_k": params.top_k,
                "min_p": params.min_p,
                "repetition_penalty": params.repetition_penalty,
                "presence_penalty": params.presence_penalty,
                "frequency_penalty": params.frequency_penalty,
                "seed": params.seed,
            },
        }


def _without_last(event: StreamEvent, count: int) -> StreamEvent:
    """The event without its last ``count`` tokens, which are no part of the reply."""
    if count == 0:
        return event
    logprobs, stats = event.logprobs, event.stats
    if stats is not None:
        stats = replace(stats, completion_tokens=stats.completion_tokens - count)
    return replace(
        event,
        token_ids=event.token_ids[:-count],
        logprobs=None if logprobs is None else logprobs[:-count],
        stats=stats,
    )


def make_params(
    engine: Engine, settings: ServerSettings, given: Mapping[str, Any], room: int
) -> SamplingParams:
    """The request's fields before the server's, the model's own and the built-in ones.

    Without ``max_tokens`` the reply may take all ``room`` that the context has.
    """
    chosen = {"max_tokens": max(room, 1), **settings.sampling, **given}
    params = engine.default_params(**chosen)
    if params.seed is None and not params.greedy:
        seed = engine.seed if engine.seed is not None else secrets.randbits(SEED_BITS)
        params = engine.default_params(**{**chosen, "seed": seed})
    params.check_vocab(engine.executor.vocab_size)
    return params


def check_prompt(
    engine: Engine, settings: ServerSettings, prompt: Sequence[int], field: str = "messages"
) -> int:
    """Refuse a prompt that is empty or too long; return how many tokens may follow it.

    ``field`` is what the request calls that which the prompt was made of.
    """
    if not prompt:
        raise bad_request(f"{field}: empty; the prompt needs at least one token", field)
    limit, what = engine.max_len, "the context"
    if settings.max_prompt_tokens is not None and settings.max_prompt_tokens < limit:
        limit, what = settings.max_prompt_tokens, "what this server takes"
    if len(prompt) > limit:
        # Agents look for these words and numbers, and then shorten their history.
        raise _too_long(
            f"prompt is too long: {len(prompt)} tokens > {limit} maximum, {what}", field
        )
    return engine.max_len - len(prompt)


def check_room(
    engine: Engine, prompt: Sequence[int], params: SamplingParams, field: str = "messages"
) -> None:
    """Refuse a prompt that leaves no place for the tokens asked for."""
    if len(prompt) >= engine.max_len and params.max_tokens > 0:
        raise _too_long(
            f"the prompt has {len(prompt)} tokens and the context {engine.max_len}: no room for "
            f"a completion of up to {params.max_tokens} tokens",
            field,
        )


def thinking_work(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams,
    limit: int | None,
    *,
    calls: bool,
) -> Work[StreamEvent] | None:
    """The engine's stream with a bound on its thought; None where no ``limit`` is set."""
    if limit is None:
        return None
    budget = ThinkingBudget(engine.tokenizer, prompt, limit, calls=calls)

    def stream(engine: Engine) -> Iterator[StreamEvent]:
        return stream_with_budget(engine, prompt, params, budget)

    return stream


def admit(
    worker: EngineWorker,
    prompt: Sequence[int],
    params: SamplingParams,
    split: Splitter,
    work: Work[StreamEvent] | None = None,
) -> Turn:
    """Queue a request that was checked; ``work`` is by default the engine's stream."""

    def stream(engine: Engine) -> Iterator[StreamEvent]:
        return engine.stream(prompt, params)

    return Turn(worker.submit(stream if work is None else work), prompt, params, split)


def _too_long(message: str, field: str) -> RequestFailure:
    return bad_request(
        message + ". Shorten the prompt, or start the server with a larger --max-len where the "
        "model has one",
        field,
        "context_length_exceeded",
    )
