"""A tool call written as JSON, ``{"name": ..., "arguments": {...}}``, read while it comes in."""

import json
from typing import Any

from bytebound.text.tool_values import loaded

_NAME = ("name",)
_ARGUMENTS = ("arguments", "parameters")


class JsonCall:
    """Takes the text of one object; gives its name and the text of its arguments, as written.

    Arguments that are themselves a JSON text in a string are taken out of it.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.done = False
        self.rest = ""
        """What came behind the object."""
        self.arguments = ""
        """Text of the arguments so far."""
        self._released = 0
        self._fresh: list[str] = []  # characters of this step that belong to the arguments
        self._depth = 0
        self._string: str | None = None  # the string that is open, as written
        self._escaped = False
        self._key: str | None = None  # of the pair at depth 1 whose value is open
        self._copying = False
        self._has_arguments = False

    @property
    def whole(self) -> bool:
        """Whether the arguments are one JSON object."""
        return isinstance(loaded(self.arguments), dict)

    def push(self, text: str) -> str:
        """Take more text; return more of the arguments, once the name is known."""
        for place, char in enumerate(text):
            self._take(char)
            if self.done:
                self.rest = text[place + 1 :]
                break
        self.arguments += "".join(self._fresh)
        self._fresh.clear()
        if self.done:
            self.arguments = self.arguments or "{}"
        if self.name is None:
            return ""
        delta = self.arguments[self._released :]
        self._released = len(self.arguments)
        return delta

    def _take(self, char: str) -> None:
        if self._copying:
            self._fresh.append(char)
        if self._string is not None:
            self._take_in_string(char)
        elif char == '"':
            self._string = char
        elif char in "{[":
            self._depth += 1
            if self._depth == 2 and self._awaits_arguments:
                self._fresh.append(char)
                self._copying = self._has_arguments = True
        elif char in "}]":
            self._depth -= 1
            self._copying = self._copying and self._depth > 1
            self.done = self._depth == 0
        elif char == "," and self._depth == 1:
            self._key = None

    def _take_in_string(self, char: str) -> None:
        self._string = (self._string or "") + char
        if self._escaped or char == "\\":
            self._escaped = not self._escaped
        elif char == '"':
            written, self._string = self._string, None
            if self._depth == 1:
                self._take_string(_value(written))

    def _take_string(self, value: str) -> None:
        """One string at depth 1 is over: a key, or the value of one."""
        if self._key is None:
            self._key = value
        elif self._key in _NAME:
            self.name = value
        elif self._awaits_arguments:
            self._fresh.append(value)
            self._has_arguments = True

    @property
    def _awaits_arguments(self) -> bool:
        return self._key in _ARGUMENTS and not self._has_arguments


def _value(written: str) -> str:
    try:
        value: Any = json.loads(written, strict=False)
    except ValueError:
        return written[1:-1]
    # Half of a surrogate pair, which JSON can spell, is no text.
    return str(value).encode("utf-8", "replace").decode("utf-8")
