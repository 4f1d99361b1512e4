"""What request bodies have in common: strictness, and the fields that choose tokens."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

LONGEST_STOP = 1024
MOST_STOPS = 16
DEEPEST = 64
MOST_LOGPROBS = 20


def _of_kind(kind: type) -> BeforeValidator:
    """A literal that another type's value equals, as true equals 1, is not meant by it."""

    def check(value: Any) -> Any:
        if value is not None and type(value) is not kind:
            raise ValueError(f"expected {'an integer' if kind is int else 'true or false'}")
        return value

    return BeforeValidator(check)


def one_of(expected: str) -> WrapValidator:
    """One message for a union, whose members would have one each, and the first be shown."""

    def check(value: Any, inner: ValidatorFunctionWrapHandler) -> Any:
        try:
            return inner(value)
        except ValidationError as error:
            raise ValueError(f"expected {expected}") from error

    return WrapValidator(check)


One = Annotated[Literal[1], _of_kind(int)]
Never = Annotated[Literal[False], _of_kind(bool)]
StopString = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
Stops = Annotated[
    StopString | Annotated[list[StopString], Field(max_length=MOST_STOPS)],
    one_of(f"a string of 1 to {LONGEST_STOP} characters, or a list of up to {MOST_STOPS}"),
]


class Body(BaseModel):
    """A request's body: no type is converted, and a field that is unknown is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_values(cls, raw: Any) -> Any:
        """Refuse what JSON does not have, wherever it stands, and nesting without a bound."""
        for name, field in raw.items() if isinstance(raw, dict) else ():
            for depth, value in _values(field):
                if depth > DEEPEST:
                    raise ValueError(f"{name}: nested more than {DEEPEST} deep")
                if isinstance(value, float) and not math.isfinite(value):
                    raise ValueError(f"{name}: got the number {value}, expected a finite one")
        return raw


class SamplingFields(Body):
    """How tokens are chosen; a field that is absent or null was not given, a zero was."""

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=2**31 - 1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: int | None = Field(None, ge=-(2**63), le=2**64 - 1)
    stop: Stops | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=64)] | None = None
    min_tokens: int | None = Field(None, ge=0, le=2**31 - 1)
    ignore_eos: bool | None = None

    @field_validator("logit_bias")
    @classmethod
    def _check_bias(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        for name in bias or ():
            if not (name.isascii() and name.isdecimal() and len(name) <= 10):
                raise ValueError(f"got the key {name[:20]!r}, expected token ids")
        return bias

    def sampling(self) -> dict[str, Any]:
        """The fields of SamplingParams that were given."""
        names = set(SamplingFields.model_fields) - {"logit_bias", "stop"}
        given = {name: getattr(self, name) for name in names}
        if self.stop is not None:
            given["stop"] = [self.stop] if isinstance(self.stop, str) else self.stop
        if self.logit_bias is not None:
            given["logit_bias"] = {int(key): value for key, value in self.logit_bias.items()}
        return {name: value for name, value in given.items() if value is not None}


def _values(root: Any) -> Iterator[tuple[int, Any]]:
    """Every value inside ``root`` with its depth, without recursion."""
    pending = [(0, root)]
    while pending:
        depth, value = pending.pop()
        yield depth, value
        if depth > DEEPEST:
            continue
        if isinstance(value, dict):
            pending += [(depth + 1, item) for item in value.values()]
        elif isinstance(value, list):
            pending += [(depth + 1, item) for item in value]
