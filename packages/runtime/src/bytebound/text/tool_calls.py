"""The inside of a tool call: from the model's text to a name and JSON arguments, as they come.

Two forms, told apart by the first character. JSON: see ``json_call.py``. And tags::

    <function=NAME>
    <parameter=KEY>
    value
    </parameter>
    </function>

These inner tags are plain text to the tokenizer, unlike the ``<tool_call>`` around them. So a value
ends only at a ``</parameter>`` behind which another parameter or the end of the function follows,
and not inside a string of its JSON, if it is an object or an array. One newline at either end of it
belongs to the form.
"""

import json
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from bytebound.text.json_call import JsonCall
from bytebound.text.pieces import Piece, ToolCallArguments, ToolCallEnd, ToolCallStart
from bytebound.text.tool_values import ValueWriter, parameter_types

OPEN = "<tool_call>"
CLOSE = "</tool_call>"

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_LONGEST_NAME = 256
_NAME = rf"([^<>\n]{{1,{_LONGEST_NAME}}})>"
_VALUE_END = re.compile(rf"\n?{_PARAMETER_END}\s*(?={_PARAMETER}|{_FUNCTION_END})")
# Of a value that was never closed: what of its ending is no part of it.
_LOOSE_END = re.compile(rf"\n?(?:{_PARAMETER_END}\s*)?(?:{_FUNCTION_END}\s*)?\Z")


def _begun(literal: str) -> str:
    """A pattern for any beginning of ``literal``, from nothing to all of it."""
    pattern = ""
    for char in reversed(literal):
        pattern = f"(?:{re.escape(char)}{pattern})?"
    return pattern


_HELD = re.compile(
    rf"(?:\n|\n?(?:{_PARAMETER_END}\s*(?:{_begun(_PARAMETER)}|{_begun(_FUNCTION_END)}\s*)"
    rf"|<{_begun(_PARAMETER_END[1:])}|<{_begun(_FUNCTION_END[1:])}|{_FUNCTION_END}\s*))\Z"
)
"""An ending of a value that may turn out to be no part of it."""


def new_call_id(index: int) -> str:
    """A random id for a call; ``index`` is its place in the reply."""
    return f"call_{secrets.token_hex(12)}"


class ToolCallReader:
    """Reads what stands between one ``<tool_call>`` and its end: one function, seldom several.

    ``tools``: from the name of a function to the JSON schema of its arguments. ``started`` is
    whether there is a call at all; ``failed`` that the text is none, and ``raw`` is then that text.
    """

    def __init__(
        self,
        tools: Mapping[str, Mapping[str, Any]],
        first_index: int = 0,
        call_id: Callable[[int], str] = new_call_id,
    ) -> None:
        self.started = False
        self.failed = False
        self.raw = ""
        self.next_index = first_index
        self._tools = tools
        self._call_id = call_id
        self._buffer = ""
        self._read: Callable[[list[Piece]], bool] = self._read_head
        self._schema: Mapping[str, Any] = {}
        self._json = JsonCall()
        self._writer: ValueWriter | None = None
        self._any_arguments = False

    @property
    def in_value(self) -> bool:
        """Whether the text goes on inside an argument's value, where tags may be quoted."""
        return self._writer is not None

    def push(self, text: str) -> list[Piece]:
        """Take more of the call's text."""
        if not self.started:
            self.raw += text
        self._buffer += text
        pieces: list[Piece] = []
        while self._read(pieces):
            pass
        return pieces

    def close(self, *, by_tag: bool, cut: bool = False) -> list[Piece]:
        """The call's text is over: by its own end tag, or because the reply ended.

        An open call is completed by the tag. Where the reply ended without it, it is complete if
        the reply ended right behind a closed value and was not ``cut`` at its limit.
        """
        pieces: list[Piece] = []
        if self._read == self._read_json:
            if self._json.name:
                pieces.append(ToolCallEnd(self._index, self._json.whole))
        elif self._writer is not None:
            found = _LOOSE_END.search(self._buffer)
            text = self._buffer[: found.start()] if found else self._buffer
            closed = by_tag or (not cut and _PARAMETER_END in self._buffer[len(text) :])
            delta = self._writer.push(text)
            self._argue(pieces, delta + self._writer.finish() if closed else delta)
            self._end(pieces, complete=closed)
        elif self._read == self._read_parameters:
            self._end(pieces, complete=by_tag)
        self._buffer = ""
        self._read = self._read_nothing
        self.failed = not self.started
        return pieces

    @property
    def _index(self) -> int:
        return self.next_index - 1

    def _read_nothing(self, pieces: list[Piece]) -> bool:
        return False

    def _read_head(self, pieces: list[Piece]) -> bool:
        """Until it is known which function is called, in which form."""
        text = self._buffer.lstrip()
        if not text:
            return False
        if text.startswith("{"):
            self._json = JsonCall()
            self._read = self._read_json
            return True
        name = re.match(_FUNCTION + _NAME, text)
        if name is not None:
            self._start(pieces, name[1].strip())
            self._buffer = text[name.end() :]
            self._any_arguments = False
            self._read = self._read_parameters
            return True
        if not _may_become(_FUNCTION, text):
            # Behind a call that is over, what is no other one is of no use to anybody.
            self.failed = not self.started
            self._read = self._read_nothing
        return False

    def _read_json(self, pieces: list[Piece]) -> bool:
        call, fresh = self._json, self._json.name is None
        delta = call.push(self._buffer)
        self._buffer = call.rest
        if call.name and fresh:
            self._start(pieces, call.name)
        if delta and call.name:
            pieces.append(ToolCallArguments(self._index, delta))
        if not call.done:
            return False
        if call.name:
            pieces.append(ToolCallEnd(self._index, call.whole))
            self._read = self._read_head
            return True
        self.failed = not self.started
        self._read = self._read_nothing
        return False

    def _read_parameters(self, pieces: list[Piece]) -> bool:
        """Between the values of a function."""
        text = self._buffer.lstrip()
        if text.startswith(_FUNCTION_END):
            self._buffer = text[len(_FUNCTION_END) :]
            self._end(pieces, complete=True)
            self._read = self._read_head
            return True
        key = re.match(_PARAMETER + _NAME, text)
        if key is not None:
            name = key[1].strip()
            self._buffer = text[key.end() :]
            written = json.dumps(name, ensure_ascii=False)
            pieces.append(
                ToolCallArguments(self._index, f"{', ' if self._any_arguments else '{'}{written}: ")
            )
            self._any_arguments = True
            self._writer = ValueWriter(parameter_types(self._schema, name))
            self._read = self._read_value_start
            return True
        if text and not (_may_become(_PARAMETER, text) or _FUNCTION_END.startswith(text)):
            # No tag of the form can begin here: look for one further on.
            self._buffer = text[1:]
            return True
        return False

    def _read_value_start(self, pieces: list[Piece]) -> bool:
        if not self._buffer:
            return False
        self._buffer = self._buffer.removeprefix("\n")
        self._read = self._read_value
        return True

    def _read_value(self, pieces: list[Piece]) -> bool:
        if self._writer is None:
            raise RuntimeError("a value is read that was not begun")
        for end in _VALUE_END.finditer(self._buffer):
            if self._writer.quotes_behind(self._buffer[: end.start()]) and end[0][0] != "\n":
                continue
            text = self._buffer[: end.start()]
            self._argue(pieces, self._writer.push(text) + self._writer.finish())
            self._buffer = self._buffer[end.end() :]
            self._writer = None
            self._read = self._read_parameters
            return True
        held = _HELD.search(self._buffer)
        cut = held.start() if held else len(self._buffer)
        if cut:
            self._argue(pieces, self._writer.push(self._buffer[:cut]))
            self._buffer = self._buffer[cut:]
        return False

    def _start(self, pieces: list[Piece], name: str) -> None:
        self.started = True
        self._schema = self._tools.get(name, {})
        index = self.next_index
        self.next_index += 1
        pieces.append(ToolCallStart(index, self._call_id(index), name))

    def _argue(self, pieces: list[Piece], delta: str) -> None:
        if delta:
            pieces.append(ToolCallArguments(self._index, delta))

    def _end(self, pieces: list[Piece], *, complete: bool) -> None:
        if complete:
            self._argue(pieces, "}" if self._any_arguments else "{}")
        self._writer = None
        pieces.append(ToolCallEnd(self._index, complete))


def _may_become(tag: str, text: str) -> bool:
    """Whether ``text`` can be the beginning of ``tag`` and a name."""
    if len(text) <= len(tag):
        return tag.startswith(text)
    name = text[len(tag) :]
    return (
        text.startswith(tag)
        and len(name) <= _LONGEST_NAME
        and not any(char in name for char in "<>\n")
    )
