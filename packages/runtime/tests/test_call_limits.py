"""What is too much for a grammar of calls, what is not, and schemas that are none."""

import json
import random
from typing import Any

import pytest
from bytebound import Grammar, InvalidRequestError, ToolForm
from bytebound.constraint import Constraint
from bytebound.grammar_calls import MOST_PARAMETERS
from bytebound.grammar_compiler import GrammarCompiler
from bytebound.text.tokenizer import Tokenizer
from bytebound.text.tool_values import parameter_types

from .call_walks import closed, only_calls, random_reply, read_reply, strict, takes, written
from .grammar_walks import compiler, end_of

STRING = {"type": "string"}


@pytest.fixture(scope="module")
def compiled(tokenizer: Tokenizer) -> GrammarCompiler:
    return compiler(tokenizer)


@pytest.mark.parametrize("longest", [200, 2000, 20_000])
def test_long_strings_are_followed_to_their_end(
    compiled: GrammarCompiler, tokenizer: Tokenizer, longest: int
) -> None:
    tool = strict(["a", "b"], a={**STRING, "maxLength": longest}, b={**STRING, "minLength": 200})
    grammar = Grammar.tool_calls([tool], several=False)
    text = "the quick brown fox <b>jumps</b> over 12 lazy dogs é\n" * 5
    for length, right in ((190, True), (longest, True), (longest + 1, False)):
        value = (text * (longest // 200 + 1))[:length]
        assert takes(compiled, tokenizer, grammar, written("f", a=value, b=text)) == right
    for seed in range(3):  # each one after the other under the same compiled grammar
        (call,) = only_calls(
            read_reply(tokenizer, random_reply(compiled, tokenizer, grammar, seed), [tool])
        )
        values = json.loads(call.arguments)
        assert len(values["a"]) <= longest and len(values["b"]) >= 200
    with pytest.raises(InvalidRequestError, match=r"at #/properties/a: .*'minLength' with 513"):
        Grammar.tool_calls([strict([], a={**STRING, "minLength": 513})])


def test_as_many_parameters_as_are_taken(compiled: GrammarCompiler, tokenizer: Tokenizer) -> None:
    names = [f"p{i}" for i in range(MOST_PARAMETERS + 1)]
    most = strict([], **dict.fromkeys(names[1:], STRING))
    grammar = Grammar.tool_calls([most])
    assert takes(compiled, tokenizer, grammar, written("f", p1="x", p256="y"))
    with pytest.raises(InvalidRequestError, match="tools: f: schema: at #/properties: got 257"):
        Grammar.tool_calls([strict([], **dict.fromkeys(names, STRING))])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": None},
        {"type": [{"a": 1}]},
        {"type": {"a": 1}},
        {"anyOf": [{"type": [["x"]]}, STRING]},
        {"allOf": [STRING, {"type": None}]},
        {"allOf": [STRING, {"type": [None, "string"]}]},
    ],
)
def test_types_that_are_none(schema: Any) -> None:
    assert parameter_types(closed([], a=schema), "a") <= {"string"}
    with pytest.raises(InvalidRequestError, match=r"^tools: f: .* at #/properties/a: .*'type'"):
        Grammar.tool_calls([strict(["a"], a=schema)])


def test_control_characters(compiled: GrammarCompiler, tokenizer: Tokenizer) -> None:
    tool = strict(["a"], a={"enum": ["x\x7fy", "x\x01y"]})
    for text, right in (("x\x7fy", True), ("x\x01y", True), ("xy", False)):
        call = written("f", a=text)
        assert takes(compiled, tokenizer, Grammar.tool_calls([tool]), call) == right
    for name in ("a\x7f", "a\x01b"):
        with pytest.raises(InvalidRequestError, match="control character"):
            Grammar.tool_calls([strict([], **{name: STRING})])
        free = Grammar.tool_calls([ToolForm("f", closed([], **{name: STRING}))])
        assert takes(compiled, tokenizer, free, written("f"))


def test_references_that_lead_to_the_same_place_over_and_over() -> None:
    """Each of a few definitions offers the next one several times: 8 ** 60 ways to the last."""
    options: dict[str, Any] = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 8} for i in range(60)
    }
    round_about = {**closed([], a={"$ref": "#/$defs/d0"}), "$defs": {**options, "d60": STRING}}
    assert parameter_types(round_about, "a") <= {"string"}
    with pytest.raises(InvalidRequestError, match="more than 10000 schemas"):
        Grammar.tool_calls([ToolForm("f", round_about, strict=True)])


@pytest.mark.parametrize("inner", ["array", "object", None])
def test_definitions_inside_each_other_without_end(inner: str | None) -> None:
    """The library would go so deep that the process dies."""

    def behind(reference: dict[str, str]) -> dict[str, Any]:
        if inner is None:
            return reference
        return closed(["x"], x=reference) if inner == "object" else {"items": reference}

    definitions = {f"d{i}": behind({"$ref": f"#/$defs/d{i + 1}"}) for i in range(3000)}
    schema = {**closed([], a={"$ref": "#/$defs/d0"}), "$defs": {**definitions, "d3000": STRING}}
    assert parameter_types(schema, "a") <= {"string", "object"}
    with pytest.raises(InvalidRequestError, match="tools: f: schema: at #: more than 256 levels"):
        Grammar.tool_calls([ToolForm("f", schema, strict=True)])
    with pytest.raises(InvalidRequestError, match="schema: at #: more than 256 levels"):
        Grammar.json_schema(schema)


def follow(constraint: Constraint, ids: list[int]) -> None:
    for token in ids:
        constraint.allowed()
        constraint.append(token)


def test_an_answer_that_came_to_a_limit_ends_no_other(
    compiled: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    pattern = {**STRING, "pattern": "^[ab]*a[ab]{60}$"}
    grammar = Grammar.tool_calls([strict(["a"], a=pattern)], several=False)
    short = written("f", a="a" * 61)
    assert takes(compiled, tokenizer, grammar, short)
    choose = random.Random(0)
    text = "".join(choose.choice("ab") for _ in range(60_000))
    ids = tokenizer.encode(written("f", a=text), parse_control=True)
    with pytest.raises(InvalidRequestError, match="cannot be continued"):
        follow(compiled.constraint(grammar, [0], [end_of(tokenizer)]), ids)
    assert takes(compiled, tokenizer, grammar, short)
