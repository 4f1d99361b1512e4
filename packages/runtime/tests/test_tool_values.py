"""Arguments of a call, from text to JSON of the type that the schema asks for."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from bytebound.text.tool_values import ValueWriter, parameter_types
from hypothesis import given
from hypothesis import strategies as st


def written(text: str, *types: str, size: int = 1) -> str:
    writer = ValueWriter(frozenset(types))
    pieces = [writer.push(text[i : i + size]) for i in range(0, len(text), size)]
    return "".join(pieces) + writer.finish()


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize(
    ("types", "text", "value"),
    [
        ("string", "42", "42"),
        ("string", "true", "true"),
        ("string", '["a"]', '["a"]'),
        ("string", "", ""),
        ("string", ' "quoted"\n\\', ' "quoted"\n\\'),
        ("", "42", "42"),
        ("integer", "42", 42),
        ("integer", " -7\n", -7),
        ("integer", "2.0", 2.0),
        ("integer", "2.5", "2.5"),
        ("integer", "007", "007"),
        ("integer", "12 apples", "12 apples"),
        ("integer", "9" * 400, int("9" * 400)),
        ("integer", "", ""),
        ("number", "2.5e3", 2500.0),
        ("number", "1e999", "1e999"),
        ("number", "NaN", "NaN"),
        ("number", ".5", ".5"),
        ("boolean", "true", True),
        ("boolean", "False", False),
        ("boolean", "yes", "yes"),
        ("null", "None", None),
        ("null", "null", None),
        ("null", "nothing", "nothing"),
        ("array", '[1, "a", {"b": null}]', [1, "a", {"b": None}]),
        ("array", "1, 2", "1, 2"),
        ("array", '{"a": 1}', '{"a": 1}'),
        ("array", "[" * 5000, "[" * 5000),
        ("object", '{"a": [1]}', {"a": [1]}),
        ("object", '{"a": NaN}', '{"a": NaN}'),
        ("object", "{'a': 1}", "{'a': 1}"),
        ("string null", "null", None),
        ("string null", "nullable", "nullable"),
        ("string null", "nul", "nul"),
        ("string integer", "12", 12),
        ("string integer", "12-13", "12-13"),
        ("string boolean", "trueish", "trueish"),
        ("string object", '{"a": 1}', {"a": 1}),
        ("string object", "{a}", "{a}"),
        ("integer null", "None", None),
        ("integer null", "3", 3),
    ],
)
def test_values(types: str, text: str, value: object, size: int) -> None:
    found = json.loads(written(text, *types.split(), size=size))
    assert (found, type(found)) == (value, type(value))


@given(st.text(), st.sets(st.sampled_from(["string", "null", "boolean", "integer", "array"])))
def test_any_text_gives_json_and_a_string_comes_back(text: str, types: set[str]) -> None:
    value = json.loads(written(text, *types))
    assert value == text or not isinstance(value, str)
    assert json.loads(written(text, *types, size=3)) == value


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=8))
def test_what_a_template_prints_is_read_back(value: object) -> None:
    """Containers as JSON, all else as Python prints it."""
    kinds = {type(None): "null", bool: "boolean", int: "integer", str: "string", list: "array"}
    text = json.dumps(value) if isinstance(value, list) else str(value)
    found = json.loads(written(text, kinds[type(value)]))
    assert (found, type(found)) == (value, type(value))


def test_a_string_is_written_as_it_comes() -> None:
    writer = ValueWriter(frozenset({"string", "null", "integer"}))
    assert [writer.push(text) for text in ("n", "u", "m", "ber")] == ["", "", '"num', "ber"]
    writer = ValueWriter(frozenset({"string"}))
    assert [writer.push(text) for text in ("1", '"')] == ['"1', '\\"']


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"oneOf": [{"type": "integer"}, {}]}, {"integer", "string"}),
        ({"allOf": [{"description": "x"}, {"type": "array"}]}, {"array"}),
        ({"enum": ["a", "b"]}, {"string"}),
        ({"enum": [1, None, 2.5, True]}, {"integer", "null", "number", "boolean"}),
        ({"const": {}}, {"object"}),
        ({"$ref": "#/$defs/Place"}, {"object"}),
        ({"$ref": "#/$defs/a~1b"}, {"boolean"}),
        ({"$ref": "#/$defs/Loop"}, set()),
        ({"$ref": "#/nowhere"}, set()),
        ({"$ref": "https://example.com/schema"}, set()),
        ({"type": "integer", "nullable": True}, {"integer", "null"}),
        ({"type": "date"}, set()),
        ({"type": 3}, set()),
        ({}, set()),
        (True, set()),
    ],
)
def test_types_of_a_schema(schema: object, types: set[str]) -> None:
    tool: Mapping[str, Any] = {
        "type": "object",
        "properties": {"x": schema},
        "$defs": {
            "Place": {"type": "object"},
            "a/b": {"type": "boolean"},
            "Loop": {"$ref": "#/$defs/Loop"},
        },
    }
    assert parameter_types(tool, "x") == types
    assert parameter_types(tool, "y") == set()
    assert parameter_types({}, "x") == set()
