"""From one row of logits to one token id: penalties, masks, truncation, seeded draws.

Order: logit bias, repetition penalty, presence and frequency penalty, mask (banned ids, end ids
before ``min_tokens``, what a grammar forbids), temperature, top_k, top_p, min_p. Knows nothing of
text, of models or of how drafts are accepted.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from bytebound import philox
from bytebound.errors import InvalidRequestError, NonFiniteLogitsError
from bytebound.philox import Purpose
from bytebound.results import TokenLogprob
from bytebound.sampling_params import SamplingParams

if TYPE_CHECKING:
    from bytebound.constraint import Constraint

__all__ = ["Purpose", "Sampler", "SamplingParams"]

BAN_BIAS = -100.0
# Far above any logit and far below the fp32 limit: penalties saturate here instead of becoming
# infinite.
_LOGIT_BOUND = 1e30
_NUCLEUS_GUESSES = (1024, 32768)


class Sampler:
    """One request's sampling state: penalties' history, end-token mask, random numbers.

    History grows by ``append`` alone, called for accepted tokens only, and random numbers are
    addressed by position: a discarded draft changes nothing here. All tensors are [vocab]; float64
    results live on the CPU, where sums run in one fixed order whatever device the logits came from.
    ``reply_ids`` are those of the prompt's that count as the reply's own, ``constraint`` is the
    state of the request's grammar, which moves with the history.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        vocab_size: int,
        end_ids: frozenset[int],
        seed: int,
        reply_ids: Sequence[int] = (),
        *,
        constraint: "Constraint | None" = None,
    ) -> None:
        params.check_vocab(vocab_size)
        self.params = params
        self.constraint = constraint
        self.vocab_size = vocab_size
        self.seed = seed
        self.greedy = params.greedy
        self.generated = 0
        bias = params.logit_bias or {}
        self.bias = {i: value for i, value in bias.items() if value > BAN_BIAS and value != 0}
        self.banned_ids = sorted(i for i, value in bias.items() if value <= BAN_BIAS)
        self.end_ids = sorted(i for i in end_ids if 0 <= i < vocab_size)
        self._repeats = params.repetition_penalty != 1
        self._counts_matter = params.presence_penalty != 0 or params.frequency_penalty != 0
        self._seen = torch.zeros(vocab_size if self._repeats else 0, dtype=torch.bool)
        self._counts = torch.zeros(vocab_size if self._counts_matter else 0, dtype=torch.float32)
        if self._repeats and len(prompt_ids) > 0:
            self._seen[torch.tensor(list(prompt_ids), dtype=torch.long)] = True
        if self._counts_matter:
            for token_id in reply_ids:
                self._counts[token_id] += 1

    @property
    def counts(self) -> torch.Tensor | None:
        """How often each id is in the reply, float32 [vocab]; None where no penalty asks."""
        return self._counts if self._counts_matter else None

    def logits(self, raw: torch.Tensor) -> torch.Tensor:
        """Apply bias, penalties and masks to the model's logits, in fp32.

        The result is ``raw`` itself when nothing is set: do not write to it. Raises
        NonFiniteLogitsError when ``raw`` holds NaN or infinity.
        """
        raw = raw.float()
        low, high = (float(bound) for bound in torch.aminmax(raw))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise NonFiniteLogitsError(
                f"the model's logits range from {low} to {high}; finite values were expected. "
                "Check the checkpoint with the reference backend in float32"
            )
        masked = self.banned_ids
        if self.generated < self.params.min_tokens:
            masked = masked + self.end_ids
        row = self._add_bias(raw)
        if self._repeats or self._counts_matter:
            row = self._penalise(row)
        if self.constraint is None:
            return self._mask(row, masked)
        return self._mask(_kept_bits(row, self.constraint.allowed()), masked)

    def probs(self, raw: torch.Tensor) -> torch.Tensor:
        """Return the distribution this request draws from: float64 on the CPU, sum 1."""
        return self._truncate(self.logits(raw))

    def draft_argmax(self, raw: torch.Tensor, guesses: Sequence[int] = ()) -> int | None:
        """Return the id a greedy draft guesses behind ``guesses``: the highest of ``raw``.

        None: the grammar allows none of the ids that ``raw`` holds finite values for.
        """
        if self.constraint is not None:
            raw = _kept_bits(raw, self.constraint.allowed(guesses))
            if float(raw.max()) == -math.inf:
                return None
        return int(torch.argmax(raw))

    def draft_probs(self, raw: torch.Tensor, guesses: Sequence[int] = ()) -> torch.Tensor | None:
        """Return the distribution a draft draws from: ``probs`` without what depends on history.

        The grammar counts: what it allows behind ``guesses``, which the draft made before. ``raw``
        may hold -inf at ids that the draft cannot propose. None: the request bans all of the
        others.
        """
        row = self._add_bias(raw.float())
        if self.constraint is not None:
            row = _kept_bits(row, self.constraint.allowed(guesses))
        if self.banned_ids:
            row = row.index_fill(0, torch.tensor(self.banned_ids, device=row.device), -math.inf)
        return None if float(row.max()) == -math.inf else self._truncate(row)

    def argmax(self, raw: torch.Tensor) -> int:
        """Return the id of the highest value of ``logits(raw)``, the lowest id on a tie."""
        return int(torch.argmax(self.logits(raw)))

    def choose(self, raw: torch.Tensor, position: int) -> int:
        """Return the next id: greedy, or one draw with the number of (position, TARGET)."""
        if self.greedy:
            return self.argmax(raw)
        return self.draw(self.probs(raw), position, Purpose.TARGET)

    def draw(self, probs: torch.Tensor, position: int, purpose: Purpose) -> int:
        """Return one id by inverse CDF in id order; ``probs`` need not be normalised."""
        cumulative = torch.cumsum(probs.double().cpu(), 0)
        total = float(cumulative[-1])
        if not 0 < total < math.inf:
            raise ValueError(f"cannot draw from probabilities that sum to {total}")
        threshold = self.uniform(position, purpose) * total
        # The product can round up to the total; the last id with any probability is then the
        # answer.
        threshold = min(threshold, math.nextafter(total, 0.0))
        return int(torch.searchsorted(cumulative, threshold, right=True))

    def uniform(self, position: int, purpose: Purpose) -> float:
        """Return the number in [0, 1) of one position and purpose; asking twice gives it twice."""
        return philox.uniform(self.seed, position, purpose)

    def append(self, token_id: int) -> None:
        """Add one accepted token to the history."""
        self.generated += 1
        if self.constraint is not None:
            self.constraint.append(token_id)
        if self._repeats:
            self._seen[token_id] = True
        if self._counts_matter:
            self._counts[token_id] += 1

    def token_logprob(self, raw: torch.Tensor, token_id: int) -> TokenLogprob:
        """Return log_softmax of the unmodified logits at ``token_id`` and at the likeliest ids.

        This is the model's own distribution: independent of temperature, truncation, penalties,
        bias and grammar.
        """
        row = raw.double()
        row = row - torch.logsumexp(row, 0)
        ids = _highest(row, self.params.logprobs or 0).tolist()
        if token_id not in ids:
            ids.append(token_id)
        values = row[torch.tensor(ids, device=row.device)].tolist()
        return TokenLogprob(token_id, float(row[token_id]), tuple(zip(ids, values, strict=True)))

    def _add_bias(self, row: torch.Tensor) -> torch.Tensor:
        if not self.bias:
            return row
        ids = torch.tensor(list(self.bias), device=row.device)
        values = torch.tensor(list(self.bias.values()), dtype=torch.float32, device=row.device)
        return row.index_put((ids,), row[ids] + values)

    def _penalise(self, row: torch.Tensor) -> torch.Tensor:
        # float64, so that any positive penalty is exact enough and none becomes 0 or infinite by
        # conversion.
        wide = row.double()
        if self._repeats:
            self._seen = self._seen.to(row.device)
            penalty = self.params.repetition_penalty
            scaled = torch.where(wide > 0, wide / penalty, wide * penalty)
            wide = torch.where(self._seen, scaled, wide)
        if self._counts_matter:
            self._counts = self._counts.to(row.device)
            wide = wide - (self._counts > 0) * self.params.presence_penalty
            wide = wide - self._counts * self.params.frequency_penalty
        return wide.clamp(-_LOGIT_BOUND, _LOGIT_BOUND).float()

    def _mask(self, row: torch.Tensor, ids: list[int]) -> torch.Tensor:
        if ids:
            row = row.index_fill(0, torch.tensor(ids, device=row.device), -math.inf)
        elif self.constraint is None:
            return row
        if float(row.max()) == -math.inf:
            reason = "logit_bias bans every id that min_tokens does not mask"
            if self.constraint is not None:
                reason = "the grammar allows no id here that logit_bias and stop ids leave"
            raise InvalidRequestError(f"no token is left to choose from: {reason}")
        return row

    def _truncate(self, row: torch.Tensor) -> torch.Tensor:
        params = self.params
        row = row.cpu().double()
        highest = row.max()
        if not math.isfinite(float(highest)):
            raise NonFiniteLogitsError("a distribution was asked of logits without finite maximum")
        if self.greedy:
            return torch.zeros_like(row).index_fill(0, torch.argmax(row), 1.0)
        # The maximum is subtracted before the division: a tiny temperature gives -inf, never an
        # overflow.
        if 0 < params.top_k < len(row):
            kept = _highest(row, params.top_k)
            weights = torch.exp((row[kept] - highest) / params.temperature)
            weights = self._nucleus(weights, _total(weights))
        else:
            kept = None
            weights = torch.exp((row - highest) / params.temperature)
            if params.top_p < 1:
                total = _total(weights)
                # Sorting a whole vocabulary is slow, and the nucleus is nearly always small.
                for count in (*_NUCLEUS_GUESSES, len(row)):
                    kept = _highest(row, count)
                    if float(weights[kept].sum()) >= params.top_p * float(total):
                        break
                weights = self._nucleus(weights[kept], total)
        if params.min_p > 0:
            # The likeliest id has weight 1.
            weights = weights * (weights >= params.min_p)
        weights = weights / _total(weights)
        return weights if kept is None else torch.zeros_like(row).index_put((kept,), weights)

    def _nucleus(self, weights: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        """Zero the descending ``weights`` behind those that reach ``top_p`` of ``total``."""
        if self.params.top_p >= 1:
            return weights
        before = torch.cumsum(weights, 0) - weights
        inside = before < self.params.top_p * total
        inside[0] = True
        return weights * inside


def _total(weights: torch.Tensor) -> torch.Tensor:
    # cumsum adds in order; sum() would split the row by the number of threads.
    return torch.cumsum(weights, 0)[-1]


def _kept_bits(row: torch.Tensor, bits: torch.Tensor | None) -> torch.Tensor:
    """``row`` with -inf where ``bits`` (``Constraint.allowed``) are 0; all of it for None."""
    if bits is None:
        return torch.full_like(row, -math.inf)
    places = torch.arange(8, dtype=torch.uint8, device=row.device)
    kept = (bits.to(row.device)[:, None] >> places) & 1
    return row.masked_fill(kept.flatten()[: len(row)] == 0, -math.inf)


def _highest(row: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the ``count`` highest values, highest first; ties by id, which topk leaves open."""
    if count == 0:
        return torch.empty(0, dtype=torch.long, device=row.device)
    if count < len(row):
        ids = torch.nonzero(row >= torch.topk(row, count).values[-1]).flatten()
        return ids[torch.sort(row[ids], descending=True, stable=True).indices][:count]
    return torch.sort(row, descending=True, stable=True).indices
