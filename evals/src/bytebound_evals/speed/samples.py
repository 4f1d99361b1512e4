"""One timed reply, and the metrics that several of them make: the same for every engine.

Nothing here runs an engine or reads a clock.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bytebound_evals.results import Metric

SPEED_TOLERANCE_PCT = 3.0
ACCEPTANCE_TOLERANCE_PCT = 1.0
FIRST_TOKEN_TOLERANCE_PCT = 10.0
EXACT = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What one request took. Counts come from the engine, never from pieces of a stream."""

    prompt_tokens: int
    completion_tokens: int
    first_token_s: float
    """From the request to the first token of any kind, thought or answer."""
    decode_s: float
    """From the first token to the last."""
    cached_tokens: int = 0
    """Tokens of the prompt that a cache answered for: such a prefill is not a cold one."""
    first_tokens: int = 1
    """Tokens that had arrived at ``first_token_s``: they belong to the prefill."""
    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None

    @property
    def tok_s(self) -> float:
        """Tokens after the first ones per second of decoding."""
        return (self.completion_tokens - self.first_tokens) / self.decode_s

    @property
    def accepted_per_step(self) -> float | None:
        """Tokens gained per pass, the target's own included; None where nobody counts passes."""
        return (self.completion_tokens - self.first_tokens) / self.steps if self.steps else None

    @property
    def acceptance(self) -> float | None:
        """Share of the guesses that stood; None without guesses."""
        return (self.accepted or 0) / self.drafted if self.drafted else None

    def line(self) -> str:
        """The sample for a reader."""
        parts = [
            f"{self.tok_s:.1f} tok/s",
            f"first token {self.first_token_s * 1e3:.1f} ms after {self.prompt_tokens} tokens",
        ]
        if self.cached_tokens:
            parts.append(f"{self.cached_tokens} of them cached")
        if self.drafted and self.accepted_per_step is not None:
            parts.append(f"{self.accepted_per_step:.2f} tok/step")
        return ", ".join(parts)


def decode_metrics(
    stem: str, samples: Sequence[Sample], case: Mapping[str, Any], *, with_speed: bool = True
) -> dict[str, Metric]:
    """Metrics of decoding: speed, and beside it what decides it with drafts.

    ``<stem>.tok_s``; with drafts ``<stem>.step_ms``, which does not depend on acceptance,
    ``<stem>.accepted_per_step`` and ``<stem>.acceptance``. ``with_speed`` False leaves out tokens
    per second and acceptance, which mean nothing where the weights are random.
    """
    found: dict[str, Metric] = {}

    def add(name: str, unit: str, better: str, values: Sequence[float], tol_pct: float) -> None:
        found[f"{stem}.{name}"] = Metric(unit, better, tuple(values), dict(case), tol_pct)

    timed = [sample for sample in samples if sample.completion_tokens > sample.first_tokens]
    if not timed:
        return found
    if with_speed:
        add("tok_s", "tok/s", "higher", [s.tok_s for s in timed], SPEED_TOLERANCE_PCT)
    if not any(sample.drafted for sample in timed):
        return found
    steps = [s.decode_s / s.steps * 1e3 for s in timed if s.steps]
    if steps:
        add("step_ms", "ms", "lower", steps, SPEED_TOLERANCE_PCT)
    gained = [s.accepted_per_step for s in timed if s.accepted_per_step is not None]
    shares = [s.acceptance for s in timed if s.acceptance is not None]
    if gained and with_speed:
        add("accepted_per_step", "tok/step", "higher", gained, ACCEPTANCE_TOLERANCE_PCT)
    if shares and with_speed:
        add("acceptance", "share", "higher", shares, ACCEPTANCE_TOLERANCE_PCT)
    return found


def prefill_metrics(
    stem: str, samples: Sequence[Sample], case: Mapping[str, Any]
) -> dict[str, Metric]:
    """``<stem>.tok_s`` and ``<stem>.first_token_ms`` over cold runs; cached ones stand apart."""
    found: dict[str, Metric] = {}
    cold = [sample for sample in samples if not sample.cached_tokens]
    cached = [sample for sample in samples if sample.cached_tokens]
    if cold:
        speeds = tuple(s.prompt_tokens / s.first_token_s for s in cold)
        found[f"{stem}.tok_s"] = Metric("tok/s", "higher", speeds, dict(case), SPEED_TOLERANCE_PCT)
    for name, group in (("first_token_ms", cold), ("cached.first_token_ms", cached)):
        if group:
            times = tuple(s.first_token_s * 1e3 for s in group)
            found[f"{stem}.{name}"] = Metric(
                "ms", "lower", times, dict(case), FIRST_TOKEN_TOLERANCE_PCT
            )
    return found


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive values: a ratio counts the same on every prompt."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def depth_label(tokens: int) -> str:
    """1024 as "1k", anything that is no multiple of it as the number."""
    return f"{tokens // 1024}k" if tokens and tokens % 1024 == 0 else str(tokens)
