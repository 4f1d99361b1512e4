"""Counts and times of one request. Time that the caller spends between events is nobody's."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bytebound.results import GenerationStats


@dataclass(slots=True)
class Pass:
    """One pass of the model."""

    device_s: float = 0.0


class RequestClock:
    """Sums up what ``GenerationStats`` reports."""

    def __init__(self) -> None:
        self.prefill_s = 0.0
        self.decode_s = 0.0
        self.steps = 0
        self.drafted = 0
        self.accepted = 0

    @contextmanager
    def prefill(self) -> Iterator[None]:
        """Time the prompt and the choice of the first token."""
        start = time.perf_counter()
        yield
        self.prefill_s += time.perf_counter() - start

    @contextmanager
    def decode(self) -> Iterator["Pass"]:
        """Time one step after it: what was waited, or what the device took if that is longer.

        A pass that ran while the caller was busy with the last event was not waited for.
        """
        start, one = time.perf_counter(), Pass()
        yield one
        self.decode_s += max(time.perf_counter() - start, one.device_s)
        self.steps += 1

    def count(self, *, drafted: int, accepted: int) -> None:
        """Add one step's guesses and how many of them reached the completion."""
        self.drafted += drafted
        self.accepted += accepted

    def stats(
        self,
        *,
        prompt_tokens: int,
        completion_tokens: int,
        bytes_per_token: float | None,
        read_gb_s: float | None = None,
        cached_tokens: int = 0,
    ) -> GenerationStats:
        """The finished request's record."""
        decoded = max(0, completion_tokens - 1)  # the first token belongs to the prefill
        tok_per_s = decoded / self.decode_s if self.decode_s > 0 else 0.0
        percent = None
        if read_gb_s is not None and bytes_per_token is not None:
            percent = 100 * tok_per_s * bytes_per_token / (read_gb_s * 1e9)
        return GenerationStats(
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            completion_tokens=completion_tokens,
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
            tok_per_s=tok_per_s,
            steps=self.steps,
            drafted=self.drafted,
            accepted=self.accepted,
            mean_accepted_len=decoded / self.steps if self.steps else 0.0,
            bytes_per_token=bytes_per_token,
            percent_of_limit=percent,
        )
