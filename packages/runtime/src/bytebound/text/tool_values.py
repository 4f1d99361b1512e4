"""Arguments of a tool call: from the model's plain text to JSON, typed by the tool's schema.

A schema names JSON types; text becomes a value of one of them or stays a string. Knows no tags.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

_TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
# Templates print a value of an earlier call as Python does, and models copy that.
_NULL = ("null", "None")
_BOOLEAN = {"true": "true", "True": "true", "false": "false", "False": "false"}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_BEGUN = re.compile(r"-?[0-9.eE+-]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_MOST_REFERENCES = 16  # a schema may refer to itself


def parameter_types(tool: Mapping[str, Any], name: str) -> frozenset[str]:
    """JSON types that ``tool``, the schema of a call's arguments, allows for parameter ``name``.

    Empty where the schema says nothing.
    """
    properties = tool.get("properties")
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    return _types(schema, tool, _MOST_REFERENCES, {})


def _types(
    schema: Any, root: Mapping[str, Any], references: int, known: dict[str, frozenset[str]]
) -> frozenset[str]:
    """``known`` are the types behind references: they may lead to the same place many times."""
    if not isinstance(schema, Mapping) or references == 0:
        return frozenset()
    found: set[str] = set()
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in known:
            known[reference] = frozenset()  # what it says of itself
            target = _referred(reference, root)
            known[reference] = _types(target, root, references - 1, known)
        found |= known[reference]
    declared = schema.get("type")
    names = [declared] if isinstance(declared, str) else _list(declared)
    found |= {name for name in names if isinstance(name, str)}
    if not found:
        values = [schema["const"]] if "const" in schema else _list(schema.get("enum"))
        found = {_type_of(value) for value in values}
    for word in ("anyOf", "oneOf"):
        for branch in _list(schema.get(word)) if not found else ():
            # A branch that allows anything allows a string.
            found |= _types(branch, root, references - 1, known) or {"string"}
    for branch in _list(schema.get("allOf")):
        found = found or set(_types(branch, root, references - 1, known))
    if found and schema.get("nullable") is True:
        found.add("null")
    return frozenset(found & _TYPES)


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    """What a reference within the same schema points to; None where it points elsewhere."""
    place: Any = root
    head, *path = reference.split("/")
    if head != "#":
        return None
    for part in path:
        key = part.replace("~1", "/").replace("~0", "~")
        place = place.get(key) if isinstance(place, Mapping) else None
    return place


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    kinds = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return kinds.get(type(value), "string")


class ValueWriter:
    """Writes one argument as JSON while its text comes in.

    A string goes out as it comes, as soon as the text cannot become another type that the schema
    allows; any other value goes out whole, at its end. Text that is a value of none of the types
    is written as a string.
    """

    def __init__(self, types: frozenset[str]) -> None:
        self._types = types or frozenset({"string"})
        self._text = ""
        self._is_string = False

    def push(self, text: str) -> str:
        """Take more text; return more JSON."""
        if self._is_string:
            return _escaped(text)
        self._text += text
        if "string" not in self._types or self._may_be_literal():
            return ""
        self._is_string = True
        return '"' + _escaped(self._text)

    def quotes_behind(self, text: str) -> bool:
        """Whether behind more ``text`` the value stands inside a string of an object or an array.

        Such a string ends with its line at the latest.
        """
        text = (self._text + text).lstrip()
        kind = {"{": "object", "[": "array"}.get(text[:1])
        if self._is_string or kind not in self._types:
            return False
        return '"' in _STRING.sub("", text.rpartition("\n")[2])

    def finish(self) -> str:
        """Return the rest of the JSON: the text is over."""
        if self._is_string:
            return '"'
        typed = _literal(self._text.strip(), self._types)
        return json.dumps(self._text, ensure_ascii=False) if typed is None else typed

    def _may_be_literal(self) -> bool:
        """Whether the text so far can still become a value that is no string."""
        types, text = self._types, self._text.strip()
        words: list[str] = []
        words += _NULL if "null" in types else ()
        words += _BOOLEAN if "boolean" in types else ()
        return (
            (not text and types != {"string"})
            or any(word.startswith(text) for word in words)
            or (not types.isdisjoint({"number", "integer"}) and bool(_NUMBER_BEGUN.fullmatch(text)))
            or ("object" in types and text.startswith("{"))
            or ("array" in types and text.startswith("["))
        )


def _literal(text: str, types: frozenset[str]) -> str | None:
    """JSON of ``text`` as a value of one of ``types`` but string; None if it is none of them."""
    if "null" in types and text in _NULL:
        return "null"
    if "boolean" in types and text in _BOOLEAN:
        return _BOOLEAN[text]
    number = _NUMBER.fullmatch(text)
    if number is not None and not types.isdisjoint({"number", "integer"}):
        value = float(text)
        whole = number[2] is None and number[3] is None
        # 2.0 is an integer for a JSON schema.
        if whole or (math.isfinite(value) and ("number" in types or value.is_integer())):
            return text
    kinds = {"object": ("{", dict), "array": ("[", list)}
    for name, (opening, kind) in kinds.items():
        if name in types and text.startswith(opening) and isinstance(loaded(text), kind):
            return text
    return None


def loaded(text: str) -> Any:
    """The value of a JSON text; None where it is no JSON that every reader takes."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
