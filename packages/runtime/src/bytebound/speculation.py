"""Acceptance: which guesses of a draft stand, and what replaces the first that does not.

Greedy: a guess stands if it is the target's own choice. Sampling (Leviathan et al., "Fast Inference
from Transformers via Speculative Decoding", 2023): with p the target's distribution and q the one
the guess was drawn from, a guess x stands with probability min(1, p(x)/q(x)), else one id is drawn
from max(0, p - q) normalised. Either way the token at each position is distributed as p, whatever
the draft says.
"""

from collections.abc import Iterator

import torch

from bytebound.drafts.base import Proposal
from bytebound.philox import Purpose
from bytebound.sampling import Sampler


def accept(
    proposal: Proposal, rows: torch.Tensor, sampler: Sampler, position: int
) -> Iterator[int]:
    """Yield what one step gains: the guesses that stand, then one token of the target's own.

    ``rows`` [k+1, vocab] fp32 are the target's logits: row i chooses the token at ``position + i``.
    Each token enters the sampler's history before the next row is looked at, so penalties see
    exactly what plain decoding would show them; a caller that stops early leaves nothing of the
    rest behind.
    """
    for i, guess in enumerate(proposal.ids):
        drawn_from = None if proposal.probs is None else proposal.probs[i]
        token = _decide(guess, drawn_from, rows[i], sampler, position + i)
        sampler.append(token)
        yield token
        if token != guess:
            return
    token = sampler.choose(rows[len(proposal.ids)], position + len(proposal.ids))
    sampler.append(token)
    yield token


def _decide(
    guess: int, drawn_from: torch.Tensor | None, row: torch.Tensor, sampler: Sampler, position: int
) -> int:
    """The token at ``position``: ``guess`` if it stands, else its replacement."""
    if sampler.greedy:
        return sampler.argmax(row)
    target = sampler.probs(row)
    if drawn_from is None:
        drawn_from = torch.zeros_like(target)
        drawn_from[guess] = 1.0
    ratio = float(target[guess]) / float(drawn_from[guess])
    if sampler.uniform(position, Purpose.ACCEPT) < ratio:
        return guess
    residual = (target - drawn_from).clamp(min=0.0)
    return sampler.draw(residual, position, Purpose.RESIDUAL)
