"""Which JSON schemas can be enforced, word by word, and the form that the grammar library takes.

Everything is read as JSON Schema 2020-12. A word that would not be enforced exactly is refused, and
so is a word that nobody knows: an answer that passes is valid.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NoReturn

from bytebound.errors import InvalidRequestError
from bytebound.schema_patterns import check_pattern
from bytebound.schema_unions import MOST_LEVELS, Resolver, disjoint

DEEPEST = 64
LONGEST = 256 * 1024
"""Characters of a schema's text: what is compiled of it takes about 250 times as many bytes."""
LARGEST_MULTIPLE = 10_000
"""Of the digits of all ``multipleOf`` together: an automaton has a state for each remainder."""

# As JSON is written by hand: a blank, or a new line with its indentation. A model that falls into
# writing blanks gets no further.
WHITE_SPACE = r" |\r?\n( {0,32}|\t{0,16})"

_ONE = frozenset({"items", "additionalProperties"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_ASSERTIONS = frozenset(
    {
        *("$ref", "type", "const", "enum", "pattern", "format", "minLength", "maxLength"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minItems", "maxItems", "required", "minProperties", "maxProperties"),
    }
)
_ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "contentEncoding", "contentMediaType", "discriminator"),
    }
)
_AT_ROOT = frozenset({"$schema", "$id"})
_DRAFTS = ("2020-12", "2019-09", "draft-07", "draft-06")


def checked_schema(schema: Any) -> str:
    """Return ``schema`` as text for the grammar library.

    Raises:
        InvalidRequestError: a word that cannot be enforced, named with its place, or no schema.
    """
    if not isinstance(schema, (dict, bool)):
        _refuse("#", f"got {type(schema).__name__}, expected an object, true or false")
    if schema is False:
        _refuse("#", "the schema is false: no value is valid")
    _check_values(schema)
    root: dict[str, Any] = {} if isinstance(schema, bool) else schema
    multiples: list[Decimal] = []
    resolver = Resolver(root)
    if resolver.levels() > MOST_LEVELS:
        _refuse("#", f"more than {MOST_LEVELS} levels deep where its references are followed")
    kept = _checked(root, "#", resolver, multiples)
    _check_multiples(multiples)
    kept["x-guidance"] = {"whitespace_pattern": WHITE_SPACE}
    text = json.dumps(kept, ensure_ascii=False)
    if len(text) > LONGEST:
        _refuse("#", f"the schema has {len(text)} characters; at most {LONGEST} are taken")
    return text


def _checked(
    schema: Any, place: str, resolver: Resolver, multiples: list[Decimal]
) -> dict[str, Any]:
    """A copy of an object schema; ``oneOf`` is ``anyOf`` where no value fits two options."""
    kept: dict[str, Any] = {}
    for word, value in schema.items():
        here = f"{place}/{word}"
        if word in _ONE:
            kept[word] = _sub(value, here, resolver, multiples)
        elif word in _LISTS:
            if not isinstance(value, (list, tuple)) or not value:
                _refuse(here, "expected a list of schemas")
            parts = [_sub(v, f"{here}/{i}", resolver, multiples) for i, v in enumerate(value)]
            if word == "oneOf" and "anyOf" not in schema and disjoint(value, resolver):
                word = "anyOf"
            kept[word] = parts
        elif word in _MAPS:
            if not isinstance(value, dict):
                _refuse(here, "expected an object of schemas")
            if word == "patternProperties":
                for pattern in value:
                    _check_pattern(pattern, here)
            kept[word] = {k: _sub(v, f"{here}/{k}", resolver, multiples) for k, v in value.items()}
        elif word in _ASSERTIONS:
            _check_assertion(schema, word, place, multiples)
            if word == "$ref" and resolver.is_circular(value):
                _refuse(here, f"{value!r} refers to itself, so no value is valid")
            kept[word] = value
        elif word in _AT_ROOT and place == "#":
            if word == "$schema" and not any(draft in str(value) for draft in _DRAFTS):
                _refuse(here, f"got {value!r}; schemas of {', '.join(_DRAFTS)} are read")
        elif word not in _ANNOTATIONS and not (word == "uniqueItems" and value is False):
            _refuse(
                place,
                f"the word {word[:60]!r} is not supported; leave it out, or say it in the prompt",
            )
    return kept


def _sub(schema: Any, place: str, resolver: Resolver, multiples: list[Decimal]) -> Any:
    if isinstance(schema, bool):
        return schema
    if isinstance(schema, dict):
        return _checked(schema, place, resolver, multiples)
    way_out = "; write prefixItems" if place.endswith("/items") else ""
    _refuse(place, f"got {type(schema).__name__}, expected a schema{way_out}")


def _check_assertion(
    schema: Mapping[str, Any], word: str, place: str, multiples: list[Decimal]
) -> None:
    value = schema[word]
    if word == "$ref" and not (isinstance(value, str) and (value == "#" or value[:2] == "#/")):
        _refuse(f"{place}/$ref", f"got {value!r}, expected a place in this schema, as '#/$defs/a'")
    if word == "pattern" and isinstance(value, str):
        _check_pattern(value, f"{place}/pattern")
    if word == "multipleOf":
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            _refuse(f"{place}/multipleOf", f"got {value!r}, expected a number above 0")
        multiples.append(Decimal(str(value)))
    is_zero = value == 0 and not isinstance(value, bool)
    if word == "exclusiveMaximum" and is_zero and schema.get("type") != "integer":
        _refuse(
            f"{place}/exclusiveMaximum",
            "got 0 for numbers, under which -0 would pass; write a maximum just below 0",
        )
    if word == "minProperties" and isinstance(value, int) and value > 1:
        # A grammar cannot tell whether two names are the same.
        required = schema.get("required")
        named = len(required) if isinstance(required, Sequence) else 0
        if value > named + 1:
            _refuse(
                f"{place}/minProperties",
                f"got {value} with {named} required properties; at most {named + 1} can be "
                "enforced, so name more of them in 'required'",
            )


def _check_pattern(pattern: str, place: str) -> None:
    try:
        check_pattern(pattern)
    except InvalidRequestError as error:
        _refuse(place, str(error))


def _check_multiples(multiples: Sequence[Decimal]) -> None:
    """Refuse numbers whose least common multiple has too many remainders."""
    if not multiples:
        return
    digits = max(max(0, -int(value.as_tuple().exponent)) for value in multiples)
    whole = 1
    for value in multiples:
        whole = math.lcm(whole, int(value.scaleb(digits)))
        if whole > LARGEST_MULTIPLE * 10**digits:
            break
    while digits and whole % 10 == 0:
        whole, digits = whole // 10, digits - 1
    if whole > LARGEST_MULTIPLE:
        given = ", ".join(str(value) for value in multiples[:4])
        _refuse(
            "#",
            f"the word 'multipleOf' with {given}: the digits of the least common multiple of all "
            f"may be at most {LARGEST_MULTIPLE}",
        )


def _check_values(schema: Any) -> None:
    """Refuse what JSON cannot say, and nesting without a bound."""
    for place, depth, value in _values(schema):
        if depth > DEEPEST:
            _refuse("#", f"nested more than {DEEPEST} deep")
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    _refuse(place, f"got the key {key!r}, expected strings")
                _check_unicode(place, key)
        elif isinstance(value, str):
            _check_unicode(place, value)
        elif isinstance(value, float) and not math.isfinite(value):
            _refuse(place, f"got the number {value}, expected a finite one")
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            _refuse(place, "got a whole number of more than 64 bits")
        elif not isinstance(value, (int, float, list, tuple, type(None))):
            _refuse(place, f"got {type(value).__name__}, expected a JSON value")


def _check_unicode(place: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        _refuse(place.encode(errors="replace").decode(), "got half of a surrogate pair")


def _values(root: Any) -> Iterator[tuple[str, int, Any]]:
    """Place, depth and value of everything inside, without recursion."""
    pending = [("#", 0, root)]
    while pending:
        place, depth, value = pending.pop()
        yield place, depth, value
        if isinstance(value, dict):
            pending += [(f"{place}/{key}", depth + 1, item) for key, item in value.items()]
        elif isinstance(value, (list, tuple)):
            pending += [(f"{place}/{i}", depth + 1, item) for i, item in enumerate(value)]


def _refuse(place: str, problem: str) -> NoReturn:
    raise InvalidRequestError(f"schema: at {place[:200]}: {problem[:200]}")
