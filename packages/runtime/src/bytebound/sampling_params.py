"""What one request asks of its answer: how tokens are chosen, and when it ends. Checked at once."""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NoReturn

from bytebound.errors import InvalidRequestError
from bytebound.grammar import Grammar


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
