"""Typed access to the fields of a JSON object that came with a model.

A wrong type or a value out of range is a ``CheckpointError`` that names file, field and value.
"""

import reprlib
from collections.abc import Mapping
from typing import Any

from bytebound.config_fields import CONFIG_FILE
from bytebound.errors import CheckpointError

# Beyond any real model, and small enough that arithmetic on them cannot run away.
LARGEST_INT = 2**31 - 1
LARGEST_FLOAT = 1e30


class FieldReader:
    """The fields of one object; ``file`` is the name that errors begin with."""

    def __init__(self, values: Mapping[str, Any], file: str = CONFIG_FILE) -> None:
        self._values = values
        self._file = file

    def _get(self, name: str) -> Any:
        if self._values.get(name) is None:
            raise CheckpointError(f"{self._file}: {name} is missing; it must be given")
        return self._values[name]

    def _wrong(self, name: str, value: Any, expected: str) -> CheckpointError:
        shown = reprlib.repr(value)  # a value may be a whole file long
        return CheckpointError(f"{self._file}: {name} is {shown}, expected {expected}")

    def positive_int(self, name: str, most: int = LARGEST_INT) -> int:
        """An integer from 1 to ``most``, which must be there."""
        value = self._get(name)
        if type(value) is not int or not 1 <= value <= most:
            raise self._wrong(name, value, f"an integer from 1 to {most}")
        return value

    def positive_float(self, name: str) -> float:
        """A number above 0, which must be there."""
        value = self._get(name)
        if type(value) not in (int, float) or not 0 < value <= LARGEST_FLOAT:
            raise self._wrong(name, value, "a positive number")
        return float(value)

    def optional_bool(self, name: str) -> bool | None:
        """A flag, or None."""
        value = self._values.get(name)
        if value is not None and type(value) is not bool:
            raise self._wrong(name, value, "true or false")
        return value

    def optional_int(self, name: str) -> int | None:
        """An integer that is not negative, or None."""
        value = self._values.get(name)
        if value is not None and (type(value) is not int or not 0 <= value <= LARGEST_INT):
            raise self._wrong(name, value, f"an integer from 0 to {LARGEST_INT}")
        return value

    def optional_float(
        self, name: str, low: float, high: float, *, above_low: bool = False
    ) -> float | None:
        """A number from ``low``, or above it, to ``high``; or None."""
        value = self._values.get(name)
        if value is None:
            return None
        if (
            type(value) not in (int, float)
            or not low <= value <= high
            or (above_low and value == low)
        ):
            first = f"above {low:g} and at most" if above_low else f"from {low:g} to"
            raise self._wrong(name, value, f"a number {first} {high:g}")
        return float(value)

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One id or a list of them, as a tuple; empty where the field is not there."""
        value = self._values.get(name)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        for token_id in ids:
            if type(token_id) is not int or not 0 <= token_id <= LARGEST_INT:
                raise self._wrong(name, value, "a token id or a list of token ids")
        return tuple(ids)
