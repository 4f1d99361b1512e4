"""Perplexity: ``exp`` of the mean of ``-log p(id | what stands in front of it in its window)``.

In nats, over the scored ids of all windows (``windows.py``), in float64. Every window starts from
an empty state.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from bytebound import Engine

from bytebound_evals.errors import LossOverflowError
from bytebound_evals.intervals import METHOD, Interval, bootstrap_mean
from bytebound_evals.logprobs import target_losses
from bytebound_evals.windows import CutText, Window

Tick = Callable[[int], object]
"""Told how many scored ids were added."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """The mean loss of one model on one text."""

    ppl: float
    ppl_interval: Interval | None
    """95 %, see ``intervals.bootstrap_mean``; None for a single window."""
    loss: float
    """Mean of ``-log p`` in nats."""
    window_losses: tuple[float, ...]
    """Mean loss of each window, in order."""

    def as_dict(self) -> dict[str, Any]:
        """What reports show, in JSON's types."""
        return {
            "ppl": self.ppl,
            "ppl_interval": self.ppl_interval,
            "loss": self.loss,
            "interval_method": METHOD,
        }


def measure_perplexity(engine: Engine, text: CutText, tick: Tick | None = None) -> Perplexity:
    """Score every window with ``engine``.

    Raises:
        ContextOverflowError: a window is longer than the engine's context.
        NonFiniteLogitsError: the model gave NaN or infinite logits.
        LossOverflowError: the loss is so large that perplexity is no number.
    """
    sums = []
    for window in text.windows:
        targets = torch.tensor(window.targets)
        sums.append(float(target_losses(scored_rows(engine, window), targets).sum()))
        if tick is not None:
            tick(len(targets))
    return summarize(sums, text)


def scored_rows(engine: Engine, window: Window) -> torch.Tensor:
    """Logits float32 ``[n, vocab]`` that predict the window's n targets, from an empty state."""
    return engine.score(window.ids)[window.rows]


def summarize(sums: list[float], text: CutText) -> Perplexity:
    """From the summed loss of each window in nats to perplexity.

    Raises:
        LossOverflowError: the loss is so large that perplexity is no number.
    """
    counts = [len(window.targets) for window in text.windows]
    loss = math.fsum(sums) / sum(counts)
    interval = bootstrap_mean(sums, counts)
    return Perplexity(
        ppl=_exp(loss),
        ppl_interval=None if interval is None else (_exp(interval[0]), _exp(interval[1])),
        loss=loss,
        window_losses=tuple(total / count for total, count in zip(sums, counts, strict=True)),
    )


def _exp(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError as error:
        raise LossOverflowError(
            f"a loss of {loss:.6g} nat a token is beyond any perplexity: the model is damaged"
        ) from error
