"""One answer as it comes in, whether it ends by itself or by Ctrl-C."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from bytebound.cli.progress import Waiting
from bytebound.results import GenerationStats, StreamEvent, TokenLogprob

if TYPE_CHECKING:
    from bytebound.engine import Engine
    from bytebound.sampling import SamplingParams

INTERRUPTED_REASON = "interrupted"


@dataclass(slots=True)
class Answer:
    """What was generated so far."""

    stats: GenerationStats
    finish_reason: str = INTERRUPTED_REASON
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self.finish_reason == INTERRUPTED_REASON

    def take(self, event: StreamEvent) -> None:
        """Add one step."""
        self.text += event.text_delta
        self.token_ids += event.token_ids
        self.logprobs += event.logprobs or ()
        if event.finish_reason is not None and event.stats is not None:
            self.finish_reason, self.stats = event.finish_reason, event.stats


def run_request(
    engine: "Engine",
    prompt_ids: list[int],
    params: "SamplingParams",
    show: Callable[[StreamEvent], None],
) -> Answer:
    """Generate and ``show`` each step as it comes. Ctrl-C ends the answer, not the program."""
    stream = engine.stream(prompt_ids, params)
    watch = _Watch(len(prompt_ids))
    answer = Answer(watch.stats())
    try:
        for event in _patiently(stream):
            watch.step(len(event.token_ids))
            answer.take(event)
            show(event)
    except KeyboardInterrupt:
        answer.stats = watch.stats()
    return answer


def _patiently(stream: Iterator[StreamEvent]) -> Iterator[StreamEvent]:
    """The same events; a long prompt shows that something happens."""
    with Waiting("reading the prompt"):
        first = next(stream)
    yield from chain([first], stream)


class _Watch:
    """Counts what the engine reports at the end only, for answers that never get there."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._start = time.perf_counter()
        self._first: float | None = None
        self._tokens = 0
        self._steps = 0

    def step(self, tokens: int) -> None:
        if self._first is None:
            self._first = time.perf_counter()
        else:
            self._steps += 1
        self._tokens += tokens

    def stats(self) -> GenerationStats:
        now = time.perf_counter()
        first = now if self._first is None else self._first
        decoded = max(0, self._tokens - 1)
        return GenerationStats(
            prompt_tokens=self._prompt_tokens,
            cached_tokens=0,
            completion_tokens=self._tokens,
            prefill_s=first - self._start,
            decode_s=now - first,
            tok_per_s=decoded / (now - first) if now > first else 0.0,
            steps=self._steps,
            drafted=0,
            accepted=decoded - self._steps,
            mean_accepted_len=decoded / self._steps if self._steps else 0.0,
        )
