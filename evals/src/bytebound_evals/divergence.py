"""How far a model Q is from a reference P, usually itself in 16 bits: KL and top-1 agreement.

``KL(P || Q) = sum over ids of p * (log p - log q)`` in nats, over the whole vocabulary, in float64,
at each scored position of the same windows: what Q loses where P is the truth. The mean over
positions is the figure; the order of the two models matters and is always this one. Top-1
agreement is the share of positions at which both have the same likeliest id, the lowest one on a
tie.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from bytebound import Engine

from bytebound_evals.errors import ReferenceMismatchError
from bytebound_evals.intervals import METHOD, Interval, bootstrap_mean
from bytebound_evals.logprobs import blocks, log_probabilities
from bytebound_evals.perplexity import Perplexity, Tick, scored_rows, summarize
from bytebound_evals.windows import CutText

DIRECTION = "KL(reference || model)"
QUANTILES = (0.5, 0.9, 0.99, 0.999)
POSITIONS = (0, 128, 1024, 4096, 16384, 65536)
"""Where the ranges of ``Divergence.kl_by_position`` begin."""


class Reference(Protocol):
    """Where the logits of P come from."""

    def rows(self, index: int) -> torch.Tensor:
        """Logits float32 ``[n, vocab]`` that predict the n targets of window ``index``."""


class LiveReference:
    """P computed side by side: a second engine scores the same windows."""

    def __init__(self, engine: Engine, text: CutText) -> None:
        self._engine = engine
        self._text = text

    def rows(self, index: int) -> torch.Tensor:
        """See ``Reference``."""
        return scored_rows(self._engine, self._text.windows[index])


@dataclass(frozen=True, slots=True)
class Divergence:
    """Q against P on one text."""

    kl: float
    """Mean of KL(P || Q) in nats."""
    kl_interval: Interval | None
    top1: float
    top1_interval: Interval | None
    kl_quantiles: dict[float, float]
    kl_max: float
    kl_by_position: dict[int, float]
    """Mean KL of the targets that have at least so many ids in front of them, up to the next key.

    A state that drifts shows here as growth.
    """
    model: Perplexity
    reference: Perplexity
    window_kl: tuple[float, ...]
    """Mean KL of each window, in order."""

    def as_dict(self) -> dict[str, Any]:
        """What reports show, in JSON's types."""
        return {
            "kl": self.kl,
            "kl_interval": self.kl_interval,
            "direction": DIRECTION,
            "top1": self.top1,
            "top1_interval": self.top1_interval,
            "kl_quantiles": {f"{share:g}": value for share, value in self.kl_quantiles.items()},
            "kl_max": self.kl_max,
            "kl_by_position": {str(start): value for start, value in self.kl_by_position.items()},
            "ppl": self.model.ppl,
            "ppl_interval": self.model.ppl_interval,
            "reference_ppl": self.reference.ppl,
            "reference_ppl_interval": self.reference.ppl_interval,
            "interval_method": METHOD,
        }


def check_same_vocabulary(
    reference_tokenizer: str, tokenizer: str, reference_vocab_size: int, vocab_size: int
) -> None:
    """Refuse two models whose ids do not mean the same; tokenizers by ``tokenizer_digest``.

    Raises:
        ReferenceMismatchError: tokenizer or vocabulary differ.
    """
    if reference_tokenizer != tokenizer:
        raise ReferenceMismatchError(
            f"the reference has another tokenizer ({reference_tokenizer[:12]}, the model's is "
            f"{tokenizer[:12]}): their ids do not mean the same; compare a model with its own "
            "original"
        )
    if reference_vocab_size != vocab_size:
        raise ReferenceMismatchError(
            f"the reference has a vocabulary of {reference_vocab_size} ids, the model one of "
            f"{vocab_size}; compare a model with its own original"
        )


def measure_divergence(
    engine: Engine, reference: Reference, text: CutText, tick: Tick | None = None
) -> Divergence:
    """Score every window with ``engine`` and compare with ``reference``.

    Raises:
        ReferenceMismatchError: the two have vocabularies of different sizes.
        NonFiniteLogitsError: one of the two gave NaN or infinite logits.
    """
    per_window = []
    for index, window in enumerate(text.windows):
        targets = torch.tensor(window.targets)
        per_window.append(_compare(reference.rows(index), scored_rows(engine, window), targets))
        if tick is not None:
            tick(len(targets))
    counts = [len(one.kl) for one in per_window]
    kl_sums = [float(one.kl.sum()) for one in per_window]
    agreed = [one.agreed for one in per_window]
    all_kl = torch.cat([one.kl for one in per_window])
    return Divergence(
        kl=math.fsum(kl_sums) / sum(counts),
        kl_interval=bootstrap_mean(kl_sums, counts),
        top1=sum(agreed) / sum(counts),
        top1_interval=bootstrap_mean(agreed, counts),
        kl_quantiles=dict(zip(QUANTILES, _quantiles(all_kl), strict=True)),
        kl_max=float(all_kl.max()),
        kl_by_position=_by_position(all_kl, text),
        model=summarize([one.loss for one in per_window], text),
        reference=summarize([one.reference_loss for one in per_window], text),
        window_kl=tuple(total / count for total, count in zip(kl_sums, counts, strict=True)),
    )


@dataclass(frozen=True, slots=True)
class _WindowComparison:
    kl: torch.Tensor  # float64 [n]
    agreed: int
    loss: float
    reference_loss: float


def _compare(
    expected: torch.Tensor, given: torch.Tensor, targets: torch.Tensor
) -> _WindowComparison:
    """Logits of P and Q ``[n, vocab]`` and the n ids that follow."""
    if expected.shape != given.shape:
        raise ReferenceMismatchError(
            f"the reference has {expected.shape[1]} logits at {expected.shape[0]} positions, the "
            f"model {given.shape[1]} at {given.shape[0]}; compare a model with its own original"
        )
    kl, agreed, loss, reference_loss = [], 0, 0.0, 0.0
    for block in blocks(*given.shape):
        log_p, log_q = log_probabilities(expected[block]), log_probabilities(given[block])
        kl.append((log_p.exp() * (log_p - log_q)).sum(-1).cpu())
        agreed += int((log_p.argmax(-1) == log_q.argmax(-1)).sum())
        following = targets[block, None].to(log_p.device)
        loss -= float(log_q.gather(1, following).sum())
        reference_loss -= float(log_p.gather(1, following).sum())
    return _WindowComparison(torch.cat(kl), agreed, loss, reference_loss)


def _by_position(kl: torch.Tensor, text: CutText) -> dict[int, float]:
    """``kl`` holds one value for each target of all windows, in order."""
    ranges = [torch.arange(window.first, len(window.ids)) for window in text.windows]
    place = torch.bucketize(torch.cat(ranges), torch.tensor(POSITIONS), right=True) - 1
    means = {}
    for index, start in enumerate(POSITIONS):
        chosen = kl[place == index]
        if len(chosen):
            means[start] = float(chosen.mean())
    return means


def _quantiles(values: torch.Tensor) -> Sequence[float]:
    """Nearest-rank quantiles; ``torch.quantile`` refuses more than 16 million values."""
    ordered = values.sort().values
    last = len(ordered) - 1
    return [float(ordered[round(share * last)]) for share in QUANTILES]
