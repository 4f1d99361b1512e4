"""What an answer must look like: JSON that follows a schema, calls of functions, or either.

A ``Grammar`` is plain data, good for any model. ``grammar_compiler.py`` makes of it what runs.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bytebound.errors import InvalidRequestError
from bytebound.grammar_calls import CallRules, ToolForm
from bytebound.json_schema import checked_schema

__all__ = ["LONGEST_LEAD", "Grammar", "ToolForm"]

LONGEST_LEAD = "\n\n"
"""White space that may stand before an answer: a blank, or one or two of these newlines."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The form of an answer. Build it with one of the methods of the class.

    The answer is one JSON value or calls, with a few blanks or newlines before it at most, or text
    with calls in it. Thinking comes before and is free. What is not in the form is never generated:
    a guess of a draft stands only where the form allows it.
    """

    schema: str | None = None
    """A JSON schema as text, checked: the answer may be a value of it."""
    calls: CallRules | None = None
    """Calls that there may be; without a schema and text, there is one at least."""
    several: bool = True
    """Whether there may be more calls than one."""
    text: bool = False
    """Whether there may be any text around calls; never beside a schema."""

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

    @classmethod
    def tool_calls(cls, tools: Sequence[ToolForm], *, several: bool = True) -> "Grammar":
        """A call of one of ``tools``, or more of them where ``several``, and nothing else.

        Raises:
            InvalidRequestError: no tool, a name that is none, or a strict tool whose schema cannot
                be enforced; tool and parameter are named.
        """
        return cls(calls=CallRules.of(tools), several=several)

    @classmethod
    def text_or_calls(cls, tools: Sequence[ToolForm], *, several: bool = True) -> "Grammar":
        """Any text with calls of ``tools`` in it, or with one at most, behind which nothing comes.

        Raises as ``tool_calls`` does.
        """
        return cls(calls=CallRules.of(tools), several=several, text=True)

    def or_calls(self, names: Iterable[str]) -> "Grammar":
        """The same, or one call and more of these functions, in the model's own format.

        A call names one of the functions; its arguments are as free as they are without a grammar.
        """
        given = tuple(names)
        return replace(self, calls=CallRules.loose(given) if given else None)

    def or_calls_of(self, tools: Sequence[ToolForm], *, several: bool = True) -> "Grammar":
        """The same, or calls as ``tool_calls`` has them. Raises as that does."""
        return replace(self, calls=CallRules.of(tools), several=several)

    def rules(self, call_open: int | None, call_close: int | None) -> str:
        """The grammar in the library's language.

        The ids are those of the control tokens around a call; without them there are no calls.

        Raises:
            InvalidRequestError: there are none, and the form is one of calls.
        """
        lines = [r"LEAD: / |\n{1,2}/"]
        if self.schema is not None:
            lines.append(f"value: %json {self.schema}")
        if self.calls is None or call_open is None or call_close is None:
            if self.schema is None:
                raise InvalidRequestError(
                    "tools: the model's vocabulary has no tokens around a call, so calls cannot be "
                    "held to a form; ask without tool_choice, strict and one call at most"
                )
            return "\n".join(["start: LEAD? value", *lines, ""])
        calls = "call (LEAD? call)* LEAD?" if self.several else "call LEAD?"
        if self.text:
            start = "TEXT? (call TEXT?)*" if self.several else f"TEXT? ({calls})?"
            lines.append("TEXT: /(?s:.+)/")
        else:
            start = f"LEAD? ({calls})" if self.schema is None else f"LEAD? (value | {calls})"
        lines.append(f"call: <[{call_open}]> body <[{call_close}]>")
        return "\n".join([f"start: {start}", *lines, self.calls.rules])
