"""The form of tool calls, as rules in the grammar library's language.

What stands between the control tokens of a call is written as the chat templates of this family
write it, and as ``text/tool_calls.py`` reads it::

    <function=NAME>
    <parameter=KEY>
    value
    </parameter>
    </function>

A value that is plain text is one terminal together with what follows it, another parameter or the
end of the function: only so is it clear where it ends.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bytebound.errors import InvalidRequestError
from bytebound.grammar_strings import literal
from bytebound.grammar_values import FREE, ValueForm, value_form
from bytebound.json_schema import LONGEST, WHITE_SPACE, checked_schema
from bytebound.text.tool_values import parameter_types

_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")
_KEY = re.compile(r"(?!\s)[^<>\x00-\x1f\x7f]{1,256}(?<!\s)")
_ANY_KEY = r"/[^<>\s]([^<>\n]{0,126}[^<>\s])?/"
_NEXT, _LAST = "</parameter>\n<parameter=", "</parameter>\n</function>"
_AT_ROOT = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
)
MOST_PARAMETERS = 256
"""Of a strict tool: the library goes as deep into the C stack as there are of them."""


@dataclass(frozen=True, slots=True)
class ToolForm:
    """A function as a request offers it.

    ``parameters`` is the JSON schema of its arguments. With ``strict`` a call's arguments are valid
    under it: those it requires are there, each is of its schema, none is beside its properties, and
    they come in the order of the properties. Without, its properties say which names may be used,
    in any order, and values are free. Names are free too where it says nothing of properties, and
    where it has none but allows additional ones.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False


@dataclass(frozen=True, slots=True)
class CallRules:
    """The rule ``body`` of what a call holds, with the rules that it uses."""

    rules: str
    parts: tuple[tuple[str, str], ...] = ()
    """Each value of a parameter as a grammar of its own, under its name: all must have a text."""

    @classmethod
    def loose(cls, names: Iterable[str]) -> "CallRules":
        """A call of one of ``names`` with any arguments, in tags or as a JSON object."""
        given = tuple(names)
        for name in given:
            _check_name(name)
        call = {
            "type": "object",
            "properties": {"name": {"enum": list(given)}, "arguments": {"type": "object"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
            "x-guidance": {"whitespace_pattern": WHITE_SPACE},
        }
        return cls(
            "body: HEAD ARGUMENTS | LEAD? named LEAD?\n"
            f'HEAD: /[ \\n]{{0,4}}<function=/ ({" | ".join(map(literal, given))}) ">"\n'
            "ARGUMENTS: /(?s:.*)<\\/function>[ \\n]{0,4}/\n"
            f"named: %json {json.dumps(call)}\n"
        )

    @classmethod
    def of(cls, tools: Sequence[ToolForm]) -> "CallRules":
        """A call of one of ``tools``, in tags.

        Raises:
            InvalidRequestError: a name that is none, no tool, or a schema that cannot be held to;
                the tool and the parameter are named.
        """
        writer = _Writer()
        for tool in tools:
            if sum(other.name == tool.name for other in tools) > 1:
                raise InvalidRequestError(f"tools: {tool.name} is offered twice; rename one")
        names = [writer.add(tool) for tool in tools]
        if not names:
            raise InvalidRequestError("tools: got none, expected one at least to call")
        head = f"body: {literal(chr(10) + '<function=')} ({' | '.join(names)}) {literal(chr(10))}"
        rules = "\n".join([head, *writer.lines, ""])
        if len(rules) > LONGEST:
            raise InvalidRequestError(
                f"tools: the form of their calls has {len(rules)} characters; at most {LONGEST} "
                "are taken: offer fewer tools, or smaller schemas"
            )
        return cls(rules, tuple((name, part) for part, name in writer.parts.items()))


class _Writer:
    """Writes the rules of several tools; values of one form share their terminals."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.parts: dict[str, str] = {}  # names by grammars: what is alike is compiled once
        self._texts: dict[str, int] = {}
        self._tools = 0

    def add(self, tool: ToolForm) -> str:
        """Add a tool; return the name of its rule, which begins with the function's name."""
        _check_name(tool.name)
        rule = f"t{self._tools}"
        self._tools += 1
        head = literal(f"{tool.name}>\n")
        try:
            if tool.strict:
                self._add_strict(rule, head, tool)
            else:
                self._add_free(rule, head, tool.parameters)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"tools: {tool.name}: {error}") from error
        return rule

    def _add_free(self, rule: str, head: str, parameters: Mapping[str, Any]) -> None:
        given, others = (parameters.get(word) for word in ("properties", "additionalProperties"))
        keys: list[str] = []
        if given and isinstance(given, Mapping):
            keys = [literal(key) for key in given if isinstance(key, str) and _KEY.fullmatch(key)]
        elif others or (others is None and given is None):
            keys = [_ANY_KEY]
        end = literal("</function>")
        if not keys:
            self.lines.append(f"{rule}: {head} {end}")
            return
        text = self._text(FREE)
        self.lines += [
            f"{rule}: {head} ({literal('<parameter=')} {rule}_p | {end})",
            f"{rule}_p: {rule.upper()}_KEY (NEXT{text} {rule}_p | LAST{text})",
            f"{rule.upper()}_KEY: ({' | '.join(keys)}) {literal(chr(62) + chr(10))}",
        ]

    def _add_strict(self, rule: str, head: str, tool: ToolForm) -> None:
        forms = _parameter_forms(tool.parameters)
        required = [needed for _, _, needed in forms]
        # What may come behind the parameters before place i: `{rule}_i` one of the others, where
        # its tag has begun, and `{rule}_e_i` its tag or the end.
        self.lines.append(f"{rule}: {head} {self._rest(rule, 0, required)}")
        for place, (key, form, needed) in enumerate(forms):
            more = [f"{rule}_{place + 1}"] if place + 1 < len(forms) else []
            name = literal(f"{key}>\n")
            values = []
            if form.text is not None:
                text = self._text(form.text)
                self.parts.setdefault(f"start: TEXT\nTEXT: {form.text}\n", f"{tool.name}: {key}")
                values += [f"NEXT{text} {one}" for one in more]
                values += [] if any(required[place + 1 :]) else [f"LAST{text}"]
            if form.schema is not None:
                value = f"{rule}_v_{place}"
                self.lines.append(f"{value}: %json {form.schema}")
                self.parts.setdefault(f"start: %json {form.schema}\n", f"{tool.name}: {key}")
                end = literal("\n</parameter>\n")
                values.append(f"{value} {end} {self._rest(rule, place + 1, required)}")
            others = [] if needed else more
            here = f"{name} ({' | '.join(values)})"
            self.lines.append(f"{rule}_{place}: {' | '.join([here, *others])}")

    @staticmethod
    def _rest(rule: str, place: int, required: Sequence[bool]) -> str:
        """What follows where no tag has begun: a parameter from ``place`` on, or the end."""
        options = [f"{literal('<parameter=')} {rule}_{place}"] if place < len(required) else []
        options += [] if any(required[place:]) else [literal("</function>")]
        return f"({' | '.join(options)})"

    def _text(self, form: str) -> int:
        """The number of the terminals of a text: NEXT before another parameter, LAST at the end."""
        if form not in self._texts:
            number = self._texts[form] = len(self._texts)
            self.lines += [
                f"TEXT{number}: {form}",
                f"NEXT{number}: TEXT{number} {literal(chr(10) + _NEXT)}",
                f"LAST{number}: TEXT{number} {literal(chr(10) + _LAST)}",
            ]
        return self._texts[form]


def _parameter_forms(parameters: Mapping[str, Any]) -> list[tuple[str, ValueForm, bool]]:
    """Name, form and whether it must be given, of each parameter of a strict tool."""
    root: Any = json.loads(checked_schema(dict(parameters)))
    del root["x-guidance"]
    unknown = sorted(root.keys() - _AT_ROOT)
    if unknown:
        raise InvalidRequestError(
            f"schema: at #: the word {unknown[0][:60]!r} is not supported for the arguments of a "
            "strict tool; write their properties there"
        )
    if root.get("type", "object") != "object":
        raise InvalidRequestError(f"schema: at #/type: got {root['type']!r}, expected 'object'")
    properties, required = root.get("properties", {}), root.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise InvalidRequestError("schema: at #/required: expected a list of names")
    if len(properties) > MOST_PARAMETERS:
        raise InvalidRequestError(
            f"schema: at #/properties: got {len(properties)} parameters; a strict tool may have "
            f"{MOST_PARAMETERS}"
        )
    for name in required:
        if name not in properties:
            raise InvalidRequestError(
                f"schema: at #/required: {name[:60]!r} is none of the properties; add it there"
            )
    forms = []
    for key, schema in properties.items():
        place = f"schema: at #/properties/{key[:100]}"
        if not _KEY.fullmatch(key):
            raise InvalidRequestError(
                f"{place}: a parameter's name may have up to 256 characters, no '<', '>' or "
                "control character, and no white space at its ends"
            )
        try:
            form = value_form(schema, root, parameter_types(parameters, key))
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{place}: {error}") from error
        if form is not None:
            forms.append((key, form, key in required))
        elif key in required:
            raise InvalidRequestError(f"{place}: it is required, and no value is valid")
    return forms


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"tools: got the name {str(name)[:60]!r}, expected letters, digits and _ . : -"
        )
