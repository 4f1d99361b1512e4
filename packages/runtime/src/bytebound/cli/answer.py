"""One answer as it comes in, whether it ends by itself or by Ctrl-C."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from bytebound.cli.interrupts import RememberedInterrupt
from bytebound.cli.progress import Waiting
from bytebound.clock import RequestClock
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
        self.stats = event.stats or self.stats
        if event.finish_reason is not None:
            self.finish_reason = event.finish_reason


def run_request(
    engine: "Engine",
    prompt_ids: list[int],
    params: "SamplingParams",
    show: Callable[[StreamEvent], None],
) -> Answer:
    """Generate and ``show`` each step as it comes. Ctrl-C ends the answer, not the program."""
    stream = engine.stream(prompt_ids, params)
    nothing = RequestClock().stats(
        prompt_tokens=len(prompt_ids), completion_tokens=0, bytes_per_token=engine.bytes_per_token
    )
    answer = Answer(nothing)
    with suppress(KeyboardInterrupt), RememberedInterrupt() as interrupt:
        for event in _patiently(stream):
            answer.take(event)
            show(event)
            # Raised in a destructor or a callback, it would be printed there and lost.
            interrupt.check()
    return answer


def _patiently(stream: Iterator[StreamEvent]) -> Iterator[StreamEvent]:
    """The same events; a long prompt shows that something happens."""
    with Waiting("reading the prompt"):
        first = next(stream)
    yield from chain([first], stream)
