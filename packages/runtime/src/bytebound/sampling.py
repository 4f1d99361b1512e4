"""From one row of logits to one token id: checked parameters, penalties, truncation, seeded draws.

Order: logit bias, repetition penalty, presence and frequency penalty, mask (banned ids, end ids
before ``min_tokens``, what a grammar forbids), temperature, top_k, top_p, min_p. Knows nothing of
text, of models or of how drafts are accepted.
"""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from bytebound import philox
from bytebound.errors import InvalidRequestError, NonFiniteLogitsError
from bytebound.grammar import Grammar
from bytebound.philox import Purpose
from bytebound.results import TokenLogprob

if TYPE_CHECKING:
    from bytebound.constraint import Constraint

__all__ = ["Purpose", "Sampler", "SamplingParams"]

BAN_BIAS = -100.0
# Far above any logit and far below the fp32 limit: penalties saturate here instead of becoming
# infinite.
_LOGIT_BOUND = 1e30
_NUCLEUS_GUESSES = (1024, 32768)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request chooses its tokens and when it ends; each field is checked at once."""

    max_tokens: int = 256
    temperature: float = 0.0
    """0 is greedy: the highest logit, the lowest id on a tie."""
    top_p: float = 1.0
    """Keep the smallest set of ids whose probability reaches this; 1 keeps all."""
    top_k: int = 0
    """Keep this many ids; 0, or more than the vocabulary, keeps all."""
    min_p: float = 0.0
    """Keep ids at least this likely relative to the likeliest; 0 keeps all."""
    repetition_penalty: float = 1.0
    """Over prompt and completion: positive logits are divided by it, negative ones multiplied."""
    presence_penalty: float = 0.0
    """Over the completion: subtracted once from the logit of each id that occurred."""
    frequency_penalty: float = 0.0
    """Over the completion: subtracted once per occurrence."""
    logit_bias: Mapping[int, float] | None = None
    """Added to the logits of these ids; -100 bans the id outright."""
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    """End tokens are masked until this many ids were generated."""
    logprobs: int | None = None
    """None reports none; n reports each token's own and the n likeliest."""
    grammar: Grammar | None = None
    """What the answer must look like; it ends where the form does. None: anything."""

    def __post_init__(self) -> None:
        checked: dict[str, object] = {
            "max_tokens": _integer("max_tokens", self.max_tokens, 0),
            "temperature": _number("temperature", self.temperature, 0, math.inf),
            "top_p": _number("top_p", self.top_p, 0, 1, open_low=True),
            "top_k": _integer("top_k", self.top_k, 0),
            "min_p": _number("min_p", self.min_p, 0, 1),
            "repetition_penalty": _number(
                "repetition_penalty", self.repetition_penalty, 0, math.inf, open_low=True
            ),
            "presence_penalty": _number("presence_penalty", self.presence_penalty, -2, 2),
            "frequency_penalty": _number("frequency_penalty", self.frequency_penalty, -2, 2),
            "logit_bias": _bias(self.logit_bias),
            "stop": _stop_strings(self.stop),
            "stop_token_ids": tuple(
                _integer("stop_token_ids", token_id, 0)
                for token_id in _items("stop_token_ids", self.stop_token_ids)
            ),
            "ignore_eos": _flag("ignore_eos", self.ignore_eos),
            "min_tokens": _integer("min_tokens", self.min_tokens, 0),
        }
        if self.seed is not None:
            checked["seed"] = _integer("seed", self.seed, -(2**63), 2**64 - 1)
        if self.logprobs is not None:
            checked["logprobs"] = _integer("logprobs", self.logprobs, 0)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.min_tokens > self.max_tokens:
            _refuse(
                "min_tokens", self.min_tokens, f"at most max_tokens, which is {self.max_tokens}"
            )
        if self.grammar is not None:
            if not isinstance(self.grammar, Grammar):
                _refuse("grammar", type(self.grammar).__name__, "a Grammar")
            # The form alone says when such an answer ends.
            if self.min_tokens:
                _refuse("min_tokens", self.min_tokens, "0 together with a grammar")
            if self.ignore_eos:
                _refuse("ignore_eos", True, "false together with a grammar")

    @property
    def greedy(self) -> bool:
        """Whether the highest logit is taken instead of a draw."""
        return self.temperature == 0

    def check_vocab(self, vocab_size: int) -> None:
        """Refuse ids outside ``0 .. vocab_size-1`` and more logprobs than there are ids."""
        for name, ids in (
            ("logit_bias", self.logit_bias or ()),
            ("stop_token_ids", self.stop_token_ids),
        ):
            for token_id in ids:
                if token_id >= vocab_size:
                    _refuse(name, token_id, f"token ids of this model, 0 to {vocab_size - 1}")
        if self.logprobs is not None and self.logprobs > vocab_size:
            _refuse("logprobs", self.logprobs, f"at most the vocabulary size, {vocab_size}")


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
                reason = "the grammar allows no id here that logit_bias does not ban"
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


def _refuse(field: str, value: object, allowed: str) -> NoReturn:
    raise InvalidRequestError(f"{field}: got {value!r}, expected {allowed}")


def _is_bool(value: object) -> bool:
    # numpy's bool is matched by name: numpy itself is not needed here.
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


def _integer(field: str, value: Any, low: int, high: int | None = None) -> int:
    allowed = (
        f"a whole number, {low} or more" if high is None else f"a whole number, {low} to {high}"
    )
    if _is_bool(value):
        _refuse(field, value, allowed)
    try:
        number = operator.index(value)
    except TypeError:
        _refuse(field, value, allowed)
    if number < low or (high is not None and number > high):
        _refuse(field, value, allowed)
    return number


def _number(field: str, value: Any, low: float, high: float, *, open_low: bool = False) -> float:
    bound = f"above {low}" if open_low else f"{low} or more"
    allowed = f"a finite number, {bound}" + ("" if high == math.inf else f" and at most {high}")
    if _is_bool(value) or not isinstance(value, Real):
        _refuse(field, value, allowed)
    try:
        number = float(value)
    except OverflowError:
        _refuse(field, value, allowed)
    too_low = number <= low if open_low else number < low
    if not math.isfinite(number) or too_low or number > high:
        _refuse(field, value, allowed)
    return number


def _flag(field: str, value: Any) -> bool:
    if not _is_bool(value):
        _refuse(field, value, "true or false")
    return bool(value)


def _items(field: str, value: Any) -> list[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        _refuse(field, value, "a list")
    return list(value)


def _stop_strings(value: Any) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else _items("stop", value)
    for string in strings:
        if not isinstance(string, str) or not string:
            _refuse("stop", string, "non-empty strings")
    return tuple(strings)


def _bias(value: Any) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        _refuse("logit_bias", value, "a mapping from token id to a number")
    return {
        _integer("logit_bias", token_id, 0): _number("logit_bias", bias, -100, 100)
        for token_id, bias in value.items()
    }
