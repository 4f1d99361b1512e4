"""Rows of logits as log-probabilities in float64, a block of rows at a time.

A vocabulary of 248,320 makes 2 MB of one row in float64: the logits of a whole window are never
converted at once. Knows no model and no text.
"""

from collections.abc import Iterator

import torch
from bytebound.errors import NonFiniteLogitsError

BLOCK_VALUES = 1 << 23
"""Values of one block, 64 MB in float64."""


def compute_device() -> torch.device:
    """Where blocks are computed: the GPU if there is one, wherever the model runs."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def blocks(rows: int, vocab_size: int) -> Iterator[slice]:
    """Row ranges that cover ``rows``, each of at most ``BLOCK_VALUES`` values."""
    step = max(1, BLOCK_VALUES // vocab_size)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """``log_softmax`` over the vocabulary: float32 ``[n, vocab]`` to float64 of the same shape.

    Raises:
        NonFiniteLogitsError: a logit is NaN or infinite.
    """
    wide = logits.to(compute_device()).double()
    if not bool(torch.isfinite(wide).all()):
        raise NonFiniteLogitsError(
            "the model gave NaN or infinite logits; nothing can be measured with it"
        )
    return torch.log_softmax(wide, dim=-1)


def target_losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """``-log p(target)`` per row in nats: ``[n, vocab]`` and int64 ``[n]`` to float64 ``[n]``."""
    parts = []
    for block in blocks(*logits.shape):
        own = log_probabilities(logits[block])
        parts.append(-own.gather(1, targets[block, None].to(own.device))[:, 0].cpu())
    return torch.cat(parts)
