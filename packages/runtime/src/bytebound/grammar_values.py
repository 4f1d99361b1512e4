"""The value of one parameter of a tool call, as its schema has it: text for strings, else JSON.

A value is written as models write it and as ``text/tool_values.py`` reads it back: a string as it
is, anything else in JSON. What would be read as a value of another type that the schema allows is
then no string: where null is allowed, the text ``null`` is null.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from bytebound.errors import InvalidRequestError
from bytebound.grammar_strings import ANY, literal, matching, of_format, of_length
from bytebound.json_schema import WHITE_SPACE
from bytebound.schema_unions import Resolver
from bytebound.text.tool_values import ValueWriter, loaded

_SPACE = r"[\s\x1c-\x1f]*"  # of Python's str.strip
_NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_BYTES = "~(/a/ & /b/)"
"""Any bytes. Behind what rules a text out, the library sees at once that nothing may follow; behind
``(?s:.*)``, any characters, it tries each length that the text may yet have."""
_READ_AS = {
    "null": f"/{_SPACE}(null|None){_SPACE}/",
    "boolean": f"/{_SPACE}(true|True|false|False){_SPACE}/",
    "integer": f"/{_SPACE}{_NUMBER}{_SPACE}/",
    "number": f"/{_SPACE}{_NUMBER}{_SPACE}/",
    "object": rf"(/{_SPACE}\{{/ {_BYTES})",
    "array": rf"(/{_SPACE}\[/ {_BYTES})",
}
# Of at most 200 digits and a small exponent: what every reader takes for a finite number.
_WRITTEN = {
    "null": '"null"',
    "boolean": '"true" | "false"',
    "integer": "/-?(0|[1-9][0-9]{0,199})/",
    "number": r"/-?(0|[1-9][0-9]{0,199})(\.[0-9]{1,199})?([eE][+-]?[0-9]{1,2})?/",
}
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_OF_NUMBERS = _BOUNDS | {"multipleOf"}
_LARGEST = 10**15
_MOST_OPTIONS = 10_000
_LONGEST_LEAST = 512  # characters: at each of them, it is looked for whether the rest can come
_WHOLE = frozenset({"integer"})
_JOINED = frozenset({"$ref", "anyOf", "oneOf", "allOf"})
_DEFINITIONS = frozenset({"$defs", "definitions"})
_END = re.compile(r"</parameter>\s*(<parameter=|</function>)")
NO_END = rf"~(/(?s:.*)<\/parameter>{_SPACE}(<parameter=|<\/function>)/ {_BYTES})"
"""The terminal of what a value may be: no text that ends it."""
FREE = f"{ANY} & {NO_END}"


@dataclass(frozen=True, slots=True)
class ValueForm:
    """What a value may be; None for a part that it may not."""

    text: str | None
    """An expression of terminals: strings, numbers and words, with no end of a value in them."""
    schema: str | None
    """A JSON schema as text: objects, arrays and numbers within bounds."""


def value_form(schema: Any, root: Mapping[str, Any], types: frozenset[str]) -> ValueForm | None:
    """The form of values under ``schema``, of the checked schema ``root``; None: none is valid.

    ``types`` are those that the reader takes the value to be of, empty for strings alone.

    Raises:
        InvalidRequestError: a word, or two together, that cannot be held to.
    """
    return _Forms(root, types or frozenset({"string"})).form(schema)


class _Forms:
    """Collects the forms of a schema's options."""

    def __init__(self, root: Mapping[str, Any], types: frozenset[str]) -> None:
        self._root = root
        self._resolver = Resolver(root)
        self._types = types
        self._strings: list[str] = []
        self._words: list[str] = []  # terminals of values that are no strings
        self._schemas: list[dict[str, Any]] = []
        self._has_numbers = False  # among the schemas
        self._looked_at = 0

    def form(self, schema: Any) -> ValueForm | None:
        self._take(schema, ())
        if self._strings and self._has_numbers:
            _refuse("a string or a number within bounds: leave out one of them, or the bounds")
        texts = list(dict.fromkeys(self._words))
        if self._strings:
            options = list(dict.fromkeys(self._strings))
            strings = options[0] if len(options) == 1 else f"({' | '.join(options)})"
            texts.append(" & ".join([strings, *self._not_read_as(), NO_END]))
        text = texts[0] if len(texts) == 1 else " | ".join(f"({one})" for one in texts) or None
        if not self._schemas:
            return None if text is None else ValueForm(text, None)
        schemas = self._schemas
        joined = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        return ValueForm(text, self._embedded(joined))

    def _count(self) -> None:
        """Note one more schema; references may lead to the same one without end."""
        self._looked_at += 1
        if self._looked_at > _MOST_OPTIONS:
            _refuse(f"more than {_MOST_OPTIONS} schemas that its references and options lead to")

    def _not_read_as(self) -> list[str]:
        """What a string may not be, since it would be read as something else."""
        kinds = sorted(self._types - {"string"})
        return [f"~{text}" for text in dict.fromkeys(_READ_AS[kind] for kind in kinds)]

    def _take(self, schema: Any, seen: tuple[str, ...]) -> None:
        """Add the values of ``schema``, which was reached through the references ``seen``."""
        if schema is False:
            return
        self._count()
        schema = {} if schema is True else schema
        words = schema.keys() - _DEFINITIONS
        if words == {"$ref"}:
            self._take(self._referred(schema["$ref"], seen), (*seen, schema["$ref"]))
        elif words == {"anyOf"}:
            for option in schema["anyOf"]:
                self._take(option, seen)
        elif words == {"allOf"} and len(schema["allOf"]) == 1:
            self._take(schema["allOf"][0], seen)
        elif words & {"enum", "const"}:
            self._take_constants(schema, words)
        elif words & _JOINED:
            self._take_joined(schema, seen)
        else:
            self._take_types(schema, words)

    def _take_types(self, schema: Mapping[str, Any], words: set[str]) -> None:
        kinds = self._kinds(schema)
        if "string" in kinds:
            self._strings += self._texts(schema, ()) or []
        bounded = {"integer", "number"} if words & _OF_NUMBERS else set()
        in_json = kinds & ({"object", "array"} | bounded)
        self._words += [_WRITTEN[kind] for kind in sorted(kinds - in_json - {"string"})]
        if in_json:
            self._add_schema(schema, in_json)

    def _take_constants(self, schema: Mapping[str, Any], words: set[str]) -> None:
        others = words - {"enum", "const", "type"}
        if others or {"enum", "const"} <= words:
            _refuse(f"'enum' and 'const' beside {sorted(others) or 'each other'}: give one word")
        kinds = self._kinds(schema)
        containers = []
        values = schema["enum"] if "enum" in words else [schema["const"]]
        if not isinstance(values, (list, tuple)):
            _refuse(f"'enum' with {type(values).__name__}, expected a list")
        for value in values:
            if "type" in words and not _is_of(value, kinds):
                continue
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            if isinstance(value, (dict, list, tuple)):
                containers.append(value)
            elif _END.search(text) or not self._reads_back(text, value):
                _refuse(f"the value {text[:60]!r} would be read as another one")
            elif isinstance(value, str):
                self._strings.append(literal(text))
            else:
                self._words.append(literal(text))
        if containers:
            self._schemas.append({"enum": containers})

    def _take_joined(self, schema: Mapping[str, Any], seen: tuple[str, ...]) -> None:
        """Words of which all must hold: for strings, or for the rest, but not for both."""
        if "oneOf" in schema:
            _refuse("'oneOf' with options that may hold together: write anyOf")
        kinds = self._kinds(schema)
        texts = self._texts(schema, seen) if "string" in kinds else None
        others = kinds - {"string"}
        if texts and others:
            _refuse("strings and other types under words that must all hold: write anyOf of both")
        if texts:
            self._strings += texts
        elif others:
            self._add_schema(schema, others)

    def _add_schema(self, schema: Mapping[str, Any], kinds: frozenset[str] | set[str]) -> None:
        added = {word: value for word, value in schema.items() if word not in _DEFINITIONS}
        added["type"] = sorted(kinds)
        if kinds & {"integer", "number"}:
            self._has_numbers = True
            # Within bounds there are no exponents, so that a number is finite.
            if not added.keys() & _BOUNDS:
                added |= {"minimum": -_LARGEST, "maximum": _LARGEST}
        self._schemas.append(added)

    def _kinds(self, schema: Mapping[str, Any]) -> frozenset[str]:
        """Types that a value under ``schema`` may have and is read as."""
        if "type" not in schema:
            return self._types
        declared = schema["type"]
        names = [declared] if isinstance(declared, str) else declared
        if not isinstance(names, (list, tuple)) or not names:
            _refuse(f"'type' with {declared!r}, expected a name or a list of them")
        known = ["string", *_READ_AS]
        unknown = [name for name in names if name not in known]
        if unknown:
            _refuse(f"'type' with {unknown[0]!r}, expected one of {', '.join(known)}")
        return frozenset(names) & self._types

    def _texts(self, schema: Any, seen: tuple[str, ...]) -> list[str] | None:
        """Expressions of which one must hold for a string under ``schema``; None: no string may be.

        All the words of a schema hold together.
        """
        if schema is False:
            return None
        self._count()
        schema = {} if schema is True else schema
        if "type" in schema and "string" not in self._kinds(schema):
            return None
        parts = self._plain_texts(schema)
        if parts is None:
            return None
        joined = [(value, seen) for value in schema.get("allOf", ())]
        if "$ref" in schema:
            reference = schema["$ref"]
            joined.append((self._referred(reference, seen), (*seen, reference)))
        for value, seen_there in joined:
            found = self._texts(value, seen_there)
            if found is None:
                return None
            parts.append(f"({' | '.join(found)})")
        if "oneOf" in schema:
            _refuse("'oneOf' with options that may hold together: write anyOf")
        if "anyOf" in schema:
            options = [self._texts(option, seen) for option in schema["anyOf"]]
            texts = [text for option in options for text in option or ()]
            if not texts:
                return None
            parts.append(f"({' | '.join(texts)})")
        return [f"({' & '.join(parts)})" if parts else ANY]

    def _plain_texts(self, schema: Mapping[str, Any]) -> list[str] | None:
        """Expressions that all must hold; None where that cannot be."""
        parts = []
        for word in ("enum", "const"):
            if word in schema:
                values = schema[word] if word == "enum" else [schema[word]]
                texts = [literal(value) for value in values if isinstance(value, str)]
                if not texts:
                    return None
                parts.append(f"({' | '.join(texts)})")
        for word, terminal in (("pattern", matching), ("format", of_format)):
            if word in schema:
                if not isinstance(schema[word], str):
                    _refuse(f"{word!r} with {schema[word]!r}, expected a string")
                parts.append(terminal(schema[word]))
        least, most = (schema.get(word) for word in ("minLength", "maxLength"))
        for number in (least, most):
            if number is not None and not (_is_of(number, _WHOLE) and number >= 0):
                _refuse(f"a length of {number!r}, expected a whole number of 0 or more")
        if least is not None and least > _LONGEST_LEAST:
            _refuse(f"'minLength' with {least}, expected at most {_LONGEST_LEAST}")
        if least is not None or most is not None:
            if most is not None and most < (least or 0):
                return None
            parts.append(of_length(int(least or 0), None if most is None else int(most)))
        return parts

    def _referred(self, reference: str, seen: tuple[str, ...]) -> Any:
        if reference in seen:
            _refuse(f"{reference[:60]!r} refers to itself, so no value is valid")
        found = self._resolver.target(reference)
        if not isinstance(found, (Mapping, bool)):
            _refuse(f"{reference[:60]!r} refers to no schema")
        return found

    def _reads_back(self, text: str, value: Any) -> bool:
        writer = ValueWriter(self._types)
        read = loaded(writer.push(text) + writer.finish())
        return type(read) is type(value) and read == value

    def _embedded(self, schema: dict[str, Any]) -> str:
        """``schema`` as a schema of its own: with all that it refers to."""
        places: dict[str, str] = {}
        definitions: dict[str, Any] = {}
        moved = self._moved(schema, places)
        while len(definitions) < len(places):
            reference = list(places)[len(definitions)]
            target = self._referred(reference, ())
            definitions[f"d{len(definitions)}"] = self._moved(target, places)
        if definitions:
            moved["$defs"] = definitions
        moved["x-guidance"] = {"whitespace_pattern": WHITE_SPACE}
        return json.dumps(moved, ensure_ascii=False)

    def _moved(self, schema: Any, places: dict[str, str]) -> Any:
        """A copy whose references are to the places in ``places``, to which new ones are added."""
        if not isinstance(schema, Mapping):
            return schema
        moved: dict[str, Any] = {}
        for word, value in schema.items():
            if word == "$ref":
                moved[word] = f"#/$defs/{places.setdefault(value, f'd{len(places)}')}"
            elif word in ("properties", "patternProperties"):
                moved[word] = {name: self._moved(sub, places) for name, sub in value.items()}
            elif word in ("anyOf", "oneOf", "allOf", "prefixItems"):
                moved[word] = [self._moved(sub, places) for sub in value]
            elif word in ("items", "additionalProperties"):
                moved[word] = self._moved(value, places)
            elif word not in _DEFINITIONS:
                moved[word] = value
        return moved


def _is_of(value: Any, kinds: frozenset[str]) -> bool:
    """Whether a JSON value is of one of the types."""
    if isinstance(value, bool):
        return "boolean" in kinds
    if isinstance(value, (int, float)):
        whole = float(value).is_integer() if isinstance(value, float) else True
        return "number" in kinds or ("integer" in kinds and whole)
    names = {str: "string", type(None): "null", dict: "object", list: "array", tuple: "array"}
    return names[type(value)] in kinds


def _refuse(problem: str) -> NoReturn:
    raise InvalidRequestError(f"it cannot be enforced: {problem[:240]}")
