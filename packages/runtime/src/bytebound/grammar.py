"""What an answer must look like: JSON that follows a schema, or calls of functions beside it.

A ``Grammar`` is plain data, good for any model. ``grammar_compiler.py`` makes of it what runs.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bytebound.errors import InvalidRequestError
from bytebound.json_schema import WHITE_SPACE, checked_schema

LONGEST_LEAD = "\n\n"
"""White space that may stand before an answer: a blank, or one or two of these newlines."""

_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")


@dataclass(frozen=True, slots=True)
class Grammar:
    """The form of an answer. Build it with ``json_schema`` or ``json_object``.

    The answer is one JSON value, with a few blanks or newlines before it at most. Thinking comes
    before and is free. What is not in the form is never generated: a guess of a draft stands only
    where the form allows it.
    """

    schema: str
    """A JSON schema as text, checked."""
    calls: tuple[str, ...] = ()
    """Functions that may be called in place of the JSON answer."""

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str) -> "Grammar":
        """JSON that is valid under ``schema`` (2020-12), which is an object or its text.

        Properties come in the order of the schema, additional ones behind them. ``format`` is
        enforced.

        Raises:
            InvalidRequestError: a word that cannot be enforced, named with its place.
        """
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as error:
                raise InvalidRequestError(f"schema: it is not JSON: {error}") from error
        return cls(checked_schema(dict(schema) if isinstance(schema, Mapping) else schema))

    @classmethod
    def json_object(cls) -> "Grammar":
        """Any JSON object."""
        return cls.json_schema({"type": "object"})

    def or_calls(self, names: Iterable[str]) -> "Grammar":
        """The same, or one call and more of these functions, in the model's own format.

        A call names one of the functions; its arguments are as free as they are without a grammar.
        """
        given = tuple(names)
        for name in given:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise InvalidRequestError(
                    f"tools: got the name {str(name)[:60]!r}, expected letters, digits and _ . : -"
                )
        return replace(self, calls=given)

    def rules(self, call_open: int | None, call_close: int | None) -> str:
        """The grammar in the library's language.

        The ids are those of the control tokens around a call; without them there are no calls.
        """
        answer = f"LEAD: / |\\n{{1,2}}/\nvalue: %json {self.schema}\n"
        if not self.calls or call_open is None or call_close is None:
            return f"start: LEAD? value\n{answer}"
        names = " | ".join(json.dumps(name) for name in self.calls)
        named = {
            "type": "object",
            "properties": {"name": {"enum": list(self.calls)}, "arguments": {"type": "object"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
            "x-guidance": {"whitespace_pattern": WHITE_SPACE},
        }
        return (
            "start: LEAD? (value | call+)\n"
            f"{answer}"
            f"call: <[{call_open}]> (HEAD ARGUMENTS | LEAD? named LEAD?) <[{call_close}]> LEAD?\n"
            f'HEAD: /[ \\n]{{0,4}}<function=/ ({names}) ">"\n'
            "ARGUMENTS: /(?s:.*)<\\/function>[ \\n]{0,4}/\n"
            f"named: %json {json.dumps(named)}\n"
        )
