"""Calls under a grammar: which there may be, with what around them; refusals; random schemas."""

import json
import random
from typing import Any

import jsonschema
import pytest
from bytebound import Grammar, InvalidRequestError, SamplingParams, ToolForm
from bytebound.grammar_compiler import GrammarCompiler
from bytebound.text.tokenizer import Tokenizer

from .call_walks import closed, only_calls, random_reply, read_reply, strict, takes, written
from .grammar_runs import POINT, scripted
from .grammar_walks import compiler, end_of
from .test_random_schemas import random_schema

ASK = [{"role": "user", "content": "why?"}]
NAMES = ["a", "b", "long name", "é x", "z-9"]


@pytest.fixture(scope="module")
def compiled(tokenizer: Tokenizer) -> GrammarCompiler:
    return compiler(tokenizer)


INTEGER = {"type": "integer"}

FREE: list[tuple[dict[str, Any], list[dict[str, str]], list[dict[str, str]]]] = [
    (closed(["a"], a=INTEGER, b={}), [{}, {"b": "x", "a": "y\n"}], [{"c": "x"}, {"a ": "x"}]),
    ({}, [{}, {"any thing": "x", "é": ""}], [{"": "x"}, {" a": "x"}, {"a<": "x"}]),
    ({"type": "object"}, [{}, {"x": "1"}], []),
    ({"type": "object", "properties": {}}, [{}], [{"a": "x"}]),
    ({"type": "object", "additionalProperties": False}, [{}], [{"a": "x"}]),
    ({"properties": {}, "additionalProperties": {"type": "null"}}, [{}, {"a": "x"}], []),
    ({"properties": {"a<b": {}, "c": {}}}, [{"c": "x"}], [{"a<b": "x"}]),
]


class TestCalls:
    TOOL = strict(["a", "c"], a={"type": "string"}, b=INTEGER, c={"type": "boolean"}, d=INTEGER)

    @pytest.mark.parametrize(
        ("values", "right"),
        [
            ({"a": "x", "c": "true"}, True),
            ({"a": "x", "b": "1", "c": "true", "d": "2"}, True),
            ({"a": "x", "c": "true", "d": "2"}, True),
            ({"a": "x"}, False),
            ({"c": "true"}, False),
            ({}, False),
            ({"a": "x", "c": "true", "b": "1"}, False),
            ({"a": "x", "c": "true", "e": "1"}, False),
        ],
    )
    def test_required_parameters_are_there_and_no_others(
        self, compiled: GrammarCompiler, tokenizer: Tokenizer, values: Any, right: bool
    ) -> None:
        grammar = Grammar.tool_calls([self.TOOL])
        assert takes(compiled, tokenizer, grammar, written("f", **values)) == right

    def test_none_twice(self, compiled: GrammarCompiler, tokenizer: Tokenizer) -> None:
        grammar = Grammar.tool_calls([strict([], a={"type": "string"}, b=INTEGER)])
        one = "<parameter=a>\nx\n</parameter>\n"
        for count, right in ((0, True), (1, True), (2, False)):
            text = f"<tool_call>\n<function=f>\n{one * count}</function>\n</tool_call>"
            assert takes(compiled, tokenizer, grammar, text) == right

    def test_names_that_are_offered_and_nothing_but_calls(
        self, compiled: GrammarCompiler, tokenizer: Tokenizer
    ) -> None:
        tools = [ToolForm("read"), ToolForm("re.ad-2", {"properties": {}}, strict=True)]
        one, two, other = (written(name) for name in ("read", "re.ad-2", "rea"))
        many = Grammar.tool_calls(tools)
        for text in (one, two, f"\n\n{one}\n{two}\n", f"{two}{two}{one}"):
            assert takes(compiled, tokenizer, many, text), text
        single = Grammar.tool_calls(tools, several=False)
        assert takes(compiled, tokenizer, single, f"{one}\n")
        assert not takes(compiled, tokenizer, single, f"{one}\n{one}")
        inside = one.replace("</function>\n", f"</function>\n{two[12:-12]}")
        for text in ("", "\n", "x", other, f"x{one}", f"{one}x", f"{one}\n\n\n{one}", inside):
            assert not takes(compiled, tokenizer, many, text), text

    def test_text_around_calls(self, compiled: GrammarCompiler, tokenizer: Tokenizer) -> None:
        tools = [strict(["n"], n=INTEGER), ToolForm("g")]
        good, bad = written("f", n="3"), written("f", n="x")
        many = Grammar.text_or_calls(tools)
        for text in (
            "",
            "hello",
            f"I do:\n\n{good}",
            f"{good}\n{good} and {written('g')} done",
            good,
        ):
            assert takes(compiled, tokenizer, many, text), text
        single = Grammar.text_or_calls(tools, several=False)
        for text in ("", "hello", f"I do:\n\n{good}\n", good):
            assert takes(compiled, tokenizer, single, text), text
        for grammar in (many, single):
            for text in (
                bad,
                f"x{bad}",
                f"{good}{bad}",
                "<tool_call>\n<function=h>",
                "<tool_call>",
            ):
                assert not takes(compiled, tokenizer, grammar, text), text
        assert not takes(compiled, tokenizer, single, f"{good}{good}")
        assert not takes(compiled, tokenizer, single, f"{good} done")
        # What only looks like a tag is text.
        ids = [*tokenizer.encode(bad), end_of(tokenizer)]
        constraint = compiled.constraint(many, [0], [end_of(tokenizer)])
        assert constraint.admitted(ids) == len(ids)

    def test_json_or_strict_calls(self, compiled: GrammarCompiler, tokenizer: Tokenizer) -> None:
        tools = [strict(["n"], n=INTEGER)]
        good, json_ = written("f", n="3"), '{"x": 1, "on": true}'
        grammar = Grammar.json_schema(POINT).or_calls_of(tools)
        for text in (json_, f"\n\n{json_}", good, f"{good}\n{good}"):
            assert takes(compiled, tokenizer, grammar, text), text
        for text in ("x", written("f", n="x"), f"{good}{json_}", f"{json_}{good}"):
            assert not takes(compiled, tokenizer, grammar, text), text
        single = Grammar.json_schema(POINT).or_calls_of(tools, several=False)
        assert not takes(compiled, tokenizer, single, f"{good}\n{good}")

    @pytest.mark.parametrize(("schema", "good", "bad"), FREE, ids=range(len(FREE)))
    def test_free_tools_keep_to_their_names(
        self, compiled: GrammarCompiler, tokenizer: Tokenizer, schema: Any, good: Any, bad: Any
    ) -> None:
        grammar = Grammar.tool_calls([ToolForm("f", schema)])
        for values in good:
            assert takes(compiled, tokenizer, grammar, written("f", **values)), values
        for values in bad:
            assert not takes(compiled, tokenizer, grammar, written("f", **values)), values

    def test_a_thought_comes_before_and_a_call_may_end_it(self, tokenizer: Tokenizer) -> None:
        prompt = tokenizer.apply_chat_template(ASK, enable_thinking=True)
        call = written("f", n="3")
        for text in (f"free {{ <tool_call </think>\n\n{call}", f"hm{call}"):
            for per_step in (1, 3):
                engine = scripted(tokenizer, text, per_step=per_step)
                params = SamplingParams(
                    max_tokens=200, grammar=Grammar.tool_calls([strict(["n"], n=INTEGER)])
                )
                assert engine.generate(prompt, params).text == text

    def test_a_model_that_talks_calls(self, tokenizer: Tokenizer) -> None:
        tool = strict(["n"], n={"type": "integer", "minimum": 0, "maximum": 9})
        params = SamplingParams(max_tokens=200, grammar=Grammar.tool_calls([tool], several=False))
        result = scripted(tokenizer, "Sure, I call f with 3.").generate([1], params)
        assert result.finish_reason == "stop"
        (call,) = only_calls(read_reply(tokenizer, result.token_ids[:-1], [tool]))
        assert 0 <= json.loads(call.arguments)["n"] <= 9


REFUSED: list[tuple[ToolForm, str]] = [
    (strict([], v={"type": "string", "not": {}}), "tools: f: schema: at #/properties/v: the word"),
    (strict([], v={"type": "array", "uniqueItems": True}), "the word 'uniqueItems'"),
    (strict(["x"]), "at #/required: 'x' is none of the properties"),
    (strict([], **{"a<b": {}}), "at #/properties/a<b: a parameter's name"),
    (strict([], **{" a": {}}), "a parameter's name"),
    (strict(["v"], v=False), "it is required, and no value is valid"),
    (strict([], v={"enum": ["1", 1]}), "the value '1' would be read as another one"),
    (strict([], v={"enum": ["</parameter></function>"]}), "would be read as another one"),
    (strict([], v={"type": ["string", "integer"], "minimum": 3}), "a string or a number within"),
    (strict([], v={"oneOf": [{"type": "string"}, {"maxLength": 3}]}), "'oneOf'"),
    (strict([], v={"enum": ["a"], "maxLength": 3}), "'enum' and 'const' beside ['maxLength']"),
    (strict([], v={"type": "string", "pattern": "(("}), "unclosed group"),
    (strict([], v={"type": "string", "pattern": "a)(b"}), "closes a group"),
    (strict([], v={"type": "string", "pattern": "a^b"}), "lookarounds not supported"),
    (strict([], v={"type": "string", "pattern": "(?=a)"}), "not supported"),
    (strict([], v={"type": "string", "pattern": 3}), "'pattern' with 3"),
    (strict([], v={"type": "string", "format": "color"}), "Unknown format: color"),
    (strict([], v={"type": "string", "minLength": "3"}), "a length of '3'"),
    (strict([], v={"type": "string", "pattern": "^a$", "minLength": 3}), "no value is valid"),
    (strict([], v={"type": "integer", "minimum": 3, "maximum": 1}), "tools: f: v"),
    (strict([], v={"type": "text"}), "'type' with 'text'"),
    (strict([], v={"$ref": "#/$defs/x"}), "refers to no schema"),
    (strict([], v={"anyOf": [{"$ref": "#/properties/v"}, {}]}), "refers to itself"),
    (
        strict([], v={"allOf": [{"type": ["string", "null"]}, {"maxLength": 3}]}),
        "write anyOf of both",
    ),
    (ToolForm("f", {"anyOf": [{}]}, strict=True), "the word 'anyOf' is not supported for the arg"),
    (ToolForm("f", {"type": "array"}, strict=True), "at #/type: got 'array'"),
    (ToolForm("a b"), "tools: got the name 'a b'"),
]


class TestRefusals:
    @pytest.mark.parametrize(("tool", "message"), REFUSED, ids=range(len(REFUSED)))
    def test_what_cannot_be_held_to_is_named(
        self, compiled: GrammarCompiler, tool: ToolForm, message: str
    ) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            compiled.check(Grammar.text_or_calls([ToolForm("good"), tool]))
        assert message in str(caught.value)
        assert str(caught.value).startswith("tools: ")
        assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)

    def test_a_name_is_for_one_tool(self) -> None:
        with pytest.raises(InvalidRequestError, match="tools: f is offered twice"):
            Grammar.tool_calls([ToolForm("f"), ToolForm("g"), strict([])])

    def test_no_tools(self) -> None:
        with pytest.raises(InvalidRequestError, match="tools: got none"):
            Grammar.tool_calls([])

    def test_too_many(self) -> None:
        tools = [strict([], v={"enum": ["x" * 9000]}) for _ in range(40)]
        named = [ToolForm(f"f{i}", tool.parameters, strict=True) for i, tool in enumerate(tools)]
        assert Grammar.tool_calls(named)  # values that are alike are written once
        for i, tool in enumerate(named):
            tool.parameters["properties"]["v"]["enum"][0] += str(i)
        with pytest.raises(InvalidRequestError, match=r"at most \d+ are taken: offer fewer"):
            Grammar.tool_calls(named)

    def test_a_vocabulary_without_the_tokens_of_a_call(
        self, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bytebound.text.thinking.control_id", lambda tokenizer, name: None)
        with pytest.raises(InvalidRequestError, match="no tokens around a call"):
            compiler(tokenizer).check(Grammar.tool_calls([ToolForm("f")]))


@pytest.mark.parametrize("part", range(4))
def test_random_calls_are_valid(compiled: GrammarCompiler, tokenizer: Tokenizer, part: int) -> None:
    """Every answer under random schemas reads back as arguments that are valid, or is refused."""
    answers = refused = quoted = 0
    for seed in range(300 * part, 300 * part + 300):
        choose = random.Random(seed)
        definitions = choose.choice([[], [], ["d0", "d1"]])
        names = choose.sample(NAMES, choose.randint(0, 4))
        schema = {
            "type": "object",
            "properties": {name: random_schema(choose, definitions, 1) for name in names},
            "required": choose.sample(names, choose.randint(0, len(names))),
            "$defs": {name: random_schema(choose, definitions, 1) for name in definitions},
            "additionalProperties": choose.choice([False, True]),
        }
        tools = [ToolForm("f", schema, strict=True), ToolForm("free", closed([], a={}))]
        try:
            grammar = Grammar.tool_calls(tools, several=choose.random() < 0.3)
            compiled.check(grammar)
        except InvalidRequestError:
            refused += 1
            continue
        check = jsonschema.Draft202012Validator(schema)
        for walk in range(3):
            ids = random_reply(compiled, tokenizer, grammar, 3 * seed + walk, limit=20_000)
            text = tokenizer.decode(ids, skip_special_tokens=False)
            calls = only_calls(read_reply(tokenizer, ids, tools, 1 + 2 * walk))
            begun = sum(text.count(f"<function={tool.name}>") for tool in tools)
            assert 0 < len(calls) == begun
            for call in calls:
                value = json.loads(call.arguments)
                assert call.name == "free" or check.is_valid(value), (seed, text, schema)
                assert set(value) <= ({*names} if call.name == "f" else {"a"})
            answers += 1
            quoted += "</parameter></function>" in text
    assert answers > 450
    assert refused < 150
    assert quoted > 0 or part
