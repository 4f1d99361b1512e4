"""Whether the options of a ``oneOf`` exclude each other, so that any one of them is exactly one.

What is shown is little, and enough for tagged unions: options of different types, or objects that
all require a property whose constants differ. An option that is not understood excludes nothing.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, cast

_MOST_REFS = 16
MOST_LEVELS = 256
"""Schemas inside each other, references followed: the library goes as deep into the C stack."""


class Resolver:
    """Follows ``$ref`` inside one schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def resolve(self, schema: Any) -> Mapping[str, Any]:
        """The schema behind a chain of references; an empty one where it cannot be followed."""
        for _ in range(_MOST_REFS):
            if not isinstance(schema, Mapping):
                return {}
            if "$ref" not in schema:
                return schema
            schema = self.target(schema["$ref"])
        return {}

    def levels(self) -> int:
        """How deep schemas are inside each other, where each reference is followed once."""
        deepest, seen, pending = 0, set[str](), [(1, cast(Any, self._root))]
        while pending:
            depth, schema = pending.pop()
            reference = schema.get("$ref") if isinstance(schema, Mapping) else None
            deepest = max(deepest, depth)
            if isinstance(reference, str) and reference not in seen:
                seen.add(reference)
                pending.append((depth + 1, self.target(reference)))
            pending += [(depth + 1, inner) for inner in reversed(_inside(schema))]
        return deepest

    def is_circular(self, reference: Any) -> bool:
        """Whether a reference leads back to itself by references alone: no value is valid then.

        Looks at so many references as may follow each other.
        """
        seen = set[str]()
        while isinstance(reference, str) and reference not in seen and len(seen) < MOST_LEVELS:
            seen.add(reference)
            target = self.target(reference)
            reference = target.get("$ref") if isinstance(target, Mapping) else None
        return reference is not None and reference in seen

    def target(self, reference: Any) -> Any:
        """What stands at the place that a reference names; None where there is nothing."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found: Any = self._root
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping):
                return None
            found = found.get(name)
        return found


def _inside(schema: Any) -> list[Any]:
    """The objects and lists inside a schema but for its definitions."""
    if isinstance(schema, Mapping):
        values = [schema[word] for word in schema if word not in ("$defs", "definitions")]
    else:
        values = list(schema) if isinstance(schema, (list, tuple)) else []
    return [value for value in values if isinstance(value, (Mapping, list, tuple))]


def disjoint(options: Sequence[Any], resolver: Resolver) -> bool:
    """Whether no value is valid for two of ``options``, as far as that is easy to see."""
    if len(options) > 256:
        return False
    seen = [resolver.resolve(option) for option in options]
    return all(_exclusive(one, other, resolver) for one, other in combinations(seen, 2))


def _exclusive(one: Mapping[str, Any], other: Mapping[str, Any], resolver: Resolver) -> bool:
    if not _types(one) & _types(other) or not _constants_meet(one, other):
        return True
    if not _types(one) | _types(other) <= {"object"}:
        return False
    for name in _required(one) & _required(other):
        tags = [resolver.resolve(_property(schema, name)) for schema in (one, other)]
        if not _constants_meet(*tags) or not _types(tags[0]) & _types(tags[1]):
            return True
    return False


def _types(schema: Mapping[str, Any]) -> set[str]:
    """The types that a value may have; whole numbers are numbers."""
    given = schema.get("type")
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence):
        return {"null", "boolean", "number", "string", "array", "object"}
    return {"number" if name == "integer" else str(name) for name in names}


def _constants_meet(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    first, second = _constants(one), _constants(other)
    return first is None or second is None or bool(first & second)


def _constants(schema: Mapping[str, Any]) -> set[str] | None:
    """The strings that a value may be; None where it may be something else."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return None
    return set(values)


def _required(schema: Mapping[str, Any]) -> set[str]:
    names = schema.get("required")
    listed = isinstance(names, Sequence) and not isinstance(names, str)
    return {name for name in names if isinstance(name, str)} if names and listed else set()


def _property(schema: Mapping[str, Any], name: str) -> Any:
    properties = schema.get("properties")
    return properties.get(name) if isinstance(properties, Mapping) else None
