"""Values of a strict tool's parameters: what they may be, and what the reader takes them for."""

import json
from typing import Any

import jsonschema
import pytest
from bytebound import Grammar, ToolForm
from bytebound.grammar_compiler import GrammarCompiler
from bytebound.text.tokenizer import Tokenizer
from bytebound.text.tool_calls import ToolCallReader

from .call_walks import closed, only_calls, random_reply, read_reply, strict, takes, written
from .grammar_walks import compiler


@pytest.fixture(scope="module")
def compiled(tokenizer: Tokenizer) -> GrammarCompiler:
    return compiler(tokenizer)


INTEGER = {"type": "integer"}
# A schema, texts that its value may be with what they are, and texts that it may not be.
VALUES: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "string": (
        {"type": "string"},
        {one: one for one in ("", "a\n\nb\n", "\n", "12", "null", '"q"', "</parameter> <p>", "é")},
        ["\n</parameter>\n<parameter=f>\n", "</parameter></function>", "</parameter>\n</function>"],
    ),
    "anything is a string": ({}, {"12": "12", "{": "{"}, []),
    "string or null": (
        {"type": ["string", "null"]},
        {"null": None, "nul": "nul", "": "", "12": "12", "true": "true"},
        ["None", " null", "null\n"],
    ),
    "optional": (
        {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        {"null": None, "abc": "abc"},
        ["abcd"],
    ),
    "string or number": (
        {"type": ["string", "number"]},
        {"12": 12, "-1.5e3": -1500.0, "a12": "a12", "1,5": "1,5", "[1]": "[1]"},
        [" 12", "1e999", "1e400"],
    ),
    "string or object": (
        {"anyOf": [{"type": "string"}, closed(["a"], a=INTEGER)]},
        {'{"a": 3}': {"a": 3}, "a": "a", "[": "["},
        ["{", ' {"a": 3}', '{"a": "x"}', "{}"],
    ),
    "integer": (INTEGER, {"12": 12, "-3": -3, "0": 0}, ["1.5", "a", "", "true", "012", '"1"']),
    "bounds": (
        {"type": "integer", "minimum": 3, "exclusiveMaximum": 20},
        {"3": 3, "19": 19},
        ["2", "20", "3.0"],
    ),
    "number": ({"type": "number"}, {"2.50": 2.5, "1e5": 1e5}, ["1e999", "NaN", "x", "1."]),
    "bounded number": ({"type": "number", "minimum": 0}, {"0.5": 0.5, "7": 7}, ["-1", "1e999"]),
    "boolean": ({"type": "boolean"}, {"true": True, "false": False}, ["True", "0", '"true"']),
    "null": ({"type": "null"}, {"null": None}, ["None", ""]),
    "several types": (
        {"type": ["integer", "boolean", "null", "array"], "maxItems": 1, "items": INTEGER},
        {"3": 3, "true": True, "null": None, "[4]": [4], "[]": []},
        ["[1, 2]", "x", '["x"]'],
    ),
    "enum": (
        {"enum": ["a b", "é\n👍", "", 3, -2.5, None, True, [1, {}], {"a": 1}]},
        {"a b": "a b", "é\n👍": "é\n👍", "": "", "3": 3, "-2.5": -2.5, "null": None, "true": True}
        | {"[1,{}]": [1, {}], '{"a": 1}': {"a": 1}},
        ["a", '"a b"', "4", "None", "[1]", "{}"],
    ),
    "enum of a type": ({"type": "string", "enum": ["x", 3]}, {"x": "x"}, ["3"]),
    "const": ({"const": "k"}, {"k": "k"}, ["kk", ""]),
    "reference": (
        {"$ref": "#/$defs/color"},
        {"red": "red"},
        ["blue", '"red"'],
    ),
    "reference in a list": (
        {"type": "array", "items": {"$ref": "#/$defs/node"}},
        {'[{"next": null}]': [{"next": None}]}
        | {'[{"next": {"next": null}}]': [{"next": {"next": None}}]},
        ['[{"next": 3}]', "[3]"],
    ),
    "reference to the whole": (
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        {"null": None, '{"v": {"v": null}}': {"v": {"v": None}}},
        ['{"v": 3}', "{}"],
    ),
    "one of all": ({"allOf": [{"$ref": "#/$defs/color"}]}, {"red": "red"}, ["x"]),
    "all of strings": (
        {"type": "string", "allOf": [{"minLength": 2}, {"pattern": "^a"}], "maxLength": 3},
        {"ab": "ab", "aa\n": "aa\n"},
        ["a", "ba", "abcd"],
    ),
    "all of objects": (
        {"allOf": [closed(["a"], a=INTEGER), closed(["b"], b=INTEGER)], "type": "object"},
        {'{"a": 1, "b": 2}': {"a": 1, "b": 2}},
        ['{"a": 1}', '{"a": "x", "b": 2}'],
    ),
    "lengths": (
        {"type": "string", "minLength": 2, "maxLength": 3},
        {"ab": "ab", "é👍\n": "é👍\n"},
        ["a", "abcd"],
    ),
    "pattern": (
        {"type": "string", "pattern": "b|^a/[|)]\\d$"},
        {"xbx": "xbx", "a/|7": "a/|7", "a/)0": "a/)0", "\nb": "\nb"},
        ["a/|", "xa/|7", "a/|77", "a/|٣"],
    ),
    "escaped anchors": (
        {"type": "string", "pattern": "^\\^x\\$$"},
        {"^x$": "^x$"},
        ["x", "^x", "a^x$"],
    ),
    "tags in JSON": (
        {"type": "array", "items": {"type": "string"}},
        {'["</parameter> <parameter=f>", "</parameter></function>", "\\""]': [
            "</parameter> <parameter=f>",
            "</parameter></function>",
            '"',
        ]},
        ["x"],
    ),
}  # fmt: skip
DEFS = {
    "color": {"enum": ["red", "green"]},
    "node": closed(["next"], next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}),
}


FORMATS: dict[str, tuple[list[str], list[str]]] = {
    "date": (["2024-02-29", "2000-02-29", "1999-12-31"], ["2023-02-29", "1900-02-29"]),
    "time": (["23:59:59Z", "00:00:00.5+01:30"], ["24:00:00Z", "12:00:00", "12:60:00Z"]),
    "date-time": (["2024-01-31T10:00:00Z"], ["2024-01-31", "2024-04-31T10:00:00Z"]),
    "duration": (["P3D", "PT4H", "P1Y2M3DT4H5M6S", "P2W"], ["P", "PT", "3D", "P1D2M"]),
    "email": (["a.b+c@x-y.org"], ["a", "@x.org", "a@", "a..b@x.org", "a b@x.org"]),
    "hostname": (["x", "a-b.c9.org"], ["-a", "a-", "a..b", "a_b", "x" * 64, ""]),
    "ipv4": (["0.0.0.0", "255.10.199.1"], ["256.0.0.1", "1.2.3", "01.2.3.4"]),
    "ipv6": (["::", "::1", "1::", "1:2:3:4:5:6:7:8", "a::1.2.3.4"], ["1", ":::", "1::2::3"]),
    "uuid": (["123e4567-e89b-12d3-a456-426614174000"], ["123e4567e89b12d3a456426614174000"]),
    "uri": (["https://x.org/a?b=%20#c", "mailto:a@b.c"], ["x", "http://a b", "https:%2"]),
}  # fmt: skip


class TestValues:
    @pytest.mark.parametrize("last", [True, False], ids=["last", "before another"])
    @pytest.mark.parametrize("name", VALUES)
    def test_what_a_value_may_be_and_is_read_as(
        self, compiled: GrammarCompiler, tokenizer: Tokenizer, name: str, last: bool
    ) -> None:
        schema, good, bad = VALUES[name]
        more = {} if last else {"w": INTEGER}
        parameters = {**closed(["v", *more], v=schema, **more), "$defs": DEFS}
        if "#" in schema.get("anyOf", [{}])[0].get("$ref", "").split("/"):
            parameters["required"] = ["v"]  # the value is the whole again
        tool = ToolForm("f", parameters, strict=True)
        grammar = Grammar.tool_calls([tool])
        check = jsonschema.Draft202012Validator(parameters)
        others = dict.fromkeys(more, "5")
        for text, value in good.items():
            reply = written("f", v=text, **others)
            assert takes(compiled, tokenizer, grammar, reply), text
            ids = tokenizer.encode(reply, parse_control=True)
            for step in (1, 5):
                (call,) = only_calls(read_reply(tokenizer, ids, [tool], step))
                read = json.loads(call.arguments)
                assert read == {"v": value, **dict.fromkeys(more, 5)}
                assert type(read["v"]) is type(value)
                assert check.is_valid(read)
        for text in bad:
            assert not takes(compiled, tokenizer, grammar, written("f", v=text, **others)), text

    @pytest.mark.parametrize("name", FORMATS)
    def test_formats_of_strings(
        self, compiled: GrammarCompiler, tokenizer: Tokenizer, name: str
    ) -> None:
        grammar = Grammar.tool_calls([strict(["v"], v={"type": "string", "format": name})])
        good, bad = FORMATS[name]
        for text in good:
            assert takes(compiled, tokenizer, grammar, written("f", v=text)), text
        for text in bad:
            assert not takes(compiled, tokenizer, grammar, written("f", v=text)), text

    @pytest.mark.parametrize("name", FORMATS)
    def test_random_values_of_a_format_are_valid(
        self, compiled: GrammarCompiler, tokenizer: Tokenizer, name: str
    ) -> None:
        tool = strict(["v"], v={"type": "string", "format": name, "maxLength": 60})
        grammar = Grammar.tool_calls([tool])
        formats = jsonschema.Draft202012Validator.FORMAT_CHECKER
        checked = name in ("date", "email", "ipv4", "ipv6", "uuid")
        assert not checked or name in formats.checkers
        for seed in range(20):
            ids = random_reply(compiled, tokenizer, grammar, seed)
            for call in only_calls(read_reply(tokenizer, ids, [tool])):
                value = json.loads(call.arguments)["v"]
                # A year of zeros is one for the format, and none for the checker.
                assert not checked or value.startswith("0000") or formats.conforms(value, name)


def test_what_the_reader_takes_for_the_end_of_json() -> None:
    """Quoted tags are a part of it; where the JSON is broken, its line ends the string."""
    schema = closed([], a={"type": "object"}, b={"type": "string"})
    values = {
        '{"x": "</parameter>\\n<parameter=b>"}': '{"x": "</parameter>\\n<parameter=b>"}',
        '{"x": "</parameter><parameter=b>"}': '{"x": "</parameter><parameter=b>"}',
        "{'x': 1}": json.dumps("{'x': 1}"),
        '{"x': json.dumps('{"x'),
    }
    for text, expected in values.items():
        assert arguments(schema, written("f", a=text, b="y")) == f'{{"a": {expected}, "b": "y"}}'
    del schema["properties"]["a"]  # a string ends at the first
    found = arguments(schema, written("f", a='{"x": "</parameter><parameter=b>"}'))
    assert found.startswith('{"a": "{\\"x\\": \\"", "b": ')


def arguments(schema: Any, text: str) -> str:
    inside = text.removeprefix("<tool_call>").removesuffix("</tool_call>")
    pieces = ToolCallReader({"f": schema})
    found = [piece for char in inside for piece in pieces.push(char)]
    found += pieces.close(by_tag=True)
    return "".join(getattr(piece, "json_delta", "") for piece in found)
