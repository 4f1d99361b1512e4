"""One streamed reply of an OpenAI-compatible server, timed as a caller sees it.

Time to the first token is to the first piece of any kind: a thought is a token, too. How many
tokens there were is what the server's usage says, never the number of pieces: a server that drafts
sends several tokens in one. Where the usage comes with every piece, the tokens of the first piece
are known and belong to the prefill; else the first piece counts as one.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bytebound_evals.errors import RivalError
from bytebound_evals.rivals.http import Server
from bytebound_evals.speed.samples import Sample

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
_PIECES = ("content", "reasoning_content", "reasoning", "tool_calls")


@dataclass(frozen=True, slots=True)
class TimedReply:
    """A reply, its timing, and what the server itself reports."""

    sample: Sample
    text: str
    """Thoughts and answer, as streamed."""
    finish_reason: str | None
    first_tokens_known: bool
    timings: Mapping[str, Any] = field(default_factory=dict)
    """The server's own clock, where it sends one (llama.cpp)."""


def timed_reply(
    server: Server,
    path: str,
    body: Mapping[str, Any],
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> TimedReply:
    """Send one request and time its stream.

    Raises:
        RivalError: the server refuses, its stream breaks off, or it does not say how many tokens
            prompt and completion have.
    """
    request = {
        **body,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    usage: Mapping[str, Any] = {}
    timings: Mapping[str, Any] = {}
    text, pieces, first_tokens, finish = "", 0, None, None
    first = last = None
    started = clock()
    for event in server.stream(path, request):
        now = clock()
        counted = event.get("usage") or {}
        usage = counted or usage
        timings = event.get("timings") or timings
        for choice in event.get("choices") or ():
            finish = choice.get("finish_reason") or finish
            piece = _piece(choice)
            if piece:
                text += piece
                pieces += 1
                last = now
                if first is None:
                    first, first_tokens = now, counted.get("completion_tokens")
    if first is None or last is None:
        raise RivalError(f"{server.url}{path}: the reply is empty (finish reason: {finish})")
    if pieces == 1 and body.get("max_tokens", 0) > 1:
        raise RivalError(
            f"{server.url}{path}: the reply came in one piece, so its speed cannot be timed; the "
            "server does not stream"
        )
    prompt_tokens, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not isinstance(prompt_tokens, int) or not isinstance(completion, int):
        raise RivalError(
            f"{server.url}{path}: no usage in the stream, so its tokens cannot be counted; a "
            "server is needed that honours stream_options.include_usage"
        )
    return TimedReply(
        sample=Sample(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion,
            first_token_s=first - started,
            decode_s=last - first,
            cached_tokens=_cached(usage, timings),
            first_tokens=first_tokens or 1,
            steps=_steps(completion, timings),
            drafted=timings.get("draft_n"),
            accepted=timings.get("draft_n_accepted"),
        ),
        text=text,
        finish_reason=finish,
        first_tokens_known=first_tokens is not None,
        timings=dict(timings),
    )


def completion_body(
    prompt: Sequence[int] | str, model: str, new_tokens: int, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """A greedy request for exactly ``new_tokens`` tokens after a prompt of ids or text."""
    given = list(prompt) if not isinstance(prompt, str) else prompt
    return {
        "model": model,
        "prompt": given,
        "max_tokens": new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        **extra,
    }


def chat_body(text: str, model: str, new_tokens: int, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The same for one message of a user, with the server's own template, thinking off."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "chat_template_kwargs": {"enable_thinking": False},
        **extra,
    }


def _piece(choice: Mapping[str, Any]) -> str:
    delta = choice.get("delta")
    if not isinstance(delta, Mapping):
        return str(choice.get("text") or "")
    return "".join(str(delta.get(name) or "") for name in _PIECES)


def _cached(usage: Mapping[str, Any], timings: Mapping[str, Any]) -> int:
    details = usage.get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or timings.get("cache_n") or 0)


def _steps(completion: int, timings: Mapping[str, Any]) -> int | None:
    """Passes of the target after the first token, where the server counts accepted guesses."""
    accepted = timings.get("draft_n_accepted")
    return None if accepted is None else max(1, completion - 1 - int(accepted))
