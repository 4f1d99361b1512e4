"""Which schemas are taken: each word by name, and nothing that would not be enforced."""

import json
import math
import re
from typing import Any

import jsonschema
import pytest
from bytebound import Grammar, InvalidRequestError
from bytebound.grammar_compiler import GrammarCompiler
from bytebound.json_schema import DEEPEST, LONGEST
from bytebound.text.tokenizer import Tokenizer

from .grammar_walks import SCHEMAS, allowed_ids, compiler, end_of, random_answer


@pytest.fixture(scope="module")
def compiled(tokenizer: Tokenizer) -> GrammarCompiler:
    return compiler(tokenizer)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_answer_is_valid(compiled: GrammarCompiler, tokenizer: Tokenizer, name: str) -> None:
    schema = SCHEMAS[name]
    check = jsonschema.Draft202012Validator(schema)
    grammar = Grammar.json_schema(schema)
    answers = set()
    for seed in range(25):
        *ids, end = random_answer(compiled, tokenizer, grammar, seed)
        assert end == end_of(tokenizer)
        text = tokenizer.decode(ids, skip_special_tokens=False)
        check.validate(json.loads(text))
        answers.add(text)
    assert len(answers) > 5 or name == "const"


def test_text_and_object_are_the_same_grammar() -> None:
    schema = SCHEMAS["nested"]
    assert Grammar.json_schema(schema) == Grammar.json_schema(json.dumps(schema))
    assert Grammar.json_schema(True) == Grammar.json_schema({})
    assert Grammar.json_object() == Grammar.json_schema({"type": "object"})


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


REFUSED: list[tuple[Any, str]] = [
    ({"type": "array", "uniqueItems": True}, "at #: the word 'uniqueItems'"),
    ({"not": {"type": "string"}}, "'not'"),
    ({"w" * 10_000: 1}, "'www"),
    ({"$ref": "x" * 10_000}, r"at #/\$ref: got 'xxx"),
    ({"if": {"type": "string"}, "then": {"minLength": 3}}, "'if'"),
    ({"type": "object", "propertyNames": {"pattern": "^a"}}, "'propertyNames'"),
    ({"dependentRequired": {"a": ["b"]}}, "'dependentRequired'"),
    ({"contains": {"type": "string"}}, "'contains'"),
    ({"unevaluatedProperties": False}, "'unevaluatedProperties'"),
    ({"type": "string", "nullable": True}, "'nullable'"),
    ({"type": "string", "x-guidance": {"lenient": True}}, "'x-guidance'"),
    ({"$dynamicRef": "#a"}, r"'\$dynamicRef'"),
    (
        {"properties": {"a": {"items": {"anyOf": [{}, {"minContains": 1}]}}}},
        "at #/properties/a/items/anyOf/1: the word 'minContains'",
    ),
    ({"$defs": {"unused": {"not": {}}}}, r"at #/\$defs/unused: the word 'not'"),
    ({"properties": {"a": {"$id": "b"}}}, r"at #/properties/a: the word '\$id'"),
    ({"$schema": "http://json-schema.org/draft-04/schema#"}, r"at #/\$schema"),
    ({"items": [{"type": "string"}]}, "at #/items: .*write prefixItems"),
    ({"anyOf": []}, "at #/anyOf"),
    ({"anyOf": {"type": "string"}}, "at #/anyOf"),
    ({"properties": ["a"]}, "at #/properties"),
    ({"additionalProperties": "no"}, "at #/additionalProperties: got str"),
    ({"$ref": "http://example.org/a.json"}, r"at #/\$ref"),
    ({"$ref": "other.json#/a"}, r"at #/\$ref"),
    ({"$ref": 3}, r"at #/\$ref"),
    ({"$ref": "#"}, r"at #/\$ref: '#' refers to itself"),
    (
        {"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
        r"at #/items/\$ref: .* refers to itself",
    ),
    (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "refers to itself",
    ),
    ({"multipleOf": 0}, "at #/multipleOf"),
    ({"multipleOf": "3"}, "at #/multipleOf: got '3'"),
    ({"multipleOf": True}, "at #/multipleOf"),
    ({"multipleOf": 1000003}, "'multipleOf' with 1000003"),
    ({"multipleOf": 9999.99}, "'multipleOf' with 9999.99"),
    ({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}, "'multipleOf' with 9973, 9967"),
    ({"type": "number", "exclusiveMaximum": 0}, "at #/exclusiveMaximum: got 0 for numbers"),
    ({"minProperties": 3, "required": ["a"]}, "at #/minProperties: got 3 with 1 required"),
    ({"const": 2**64}, "at #/const: got a whole number of more than 64 bits"),
    ({"const": "\ud800"}, "at #/const: got half of a surrogate pair"),
    ({"properties": {"\ud800": {}}}, "at #/properties: got half"),
    ({"minimum": math.nan}, "at #/minimum: got the number nan"),
    ({"const": {1}}, "at #/const: got set"),
    ({"properties": {1: {}}}, "got the key 1"),
    (deep(DEEPEST + 1), f"more than {DEEPEST} deep"),
    (deep(100_000), f"more than {DEEPEST} deep"),
    ({"enum": ["x" * LONGEST]}, "characters; at most"),
    (False, "schema is false"),
    (None, "got NoneType"),
    ([], "got list"),
    ("{", "it is not JSON"),
    ("[" * 100_000, "it is not JSON"),
    ("[]", "got list"),
]


@pytest.mark.parametrize(("schema", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_enforced_is_refused_by_name_and_place(schema: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as error:
        Grammar.json_schema(schema)
    assert len(str(error.value)) < 450


AMBIGUOUS = [
    *("a**", "a+*", "a{2}{3}", "a{2,}+", "(ab)*{2}", "a*?+", "x{1,2}?*"),
    *("[[a]]", "[[:alpha:]]", "[a[b]", "[a--c]", "[a-z&&b]", "[a~~b]", "[]a]", "[^]a]", "[]"),
]


@pytest.mark.parametrize("pattern", AMBIGUOUS)
@pytest.mark.parametrize("word", ["pattern", "patternProperties"])
def test_a_pattern_of_two_meanings_is_refused(pattern: str, word: str) -> None:
    """Rust's regular expressions, which enforce it, read it otherwise than a validator would."""
    given = pattern if word == "pattern" else {pattern: {"type": "string"}}
    with pytest.raises(InvalidRequestError, match=f"at #/{word}: .*more than one way"):
        Grammar.json_schema({word: given})


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"^\[a\]$", r"[\[\]]", r"a*?b", r"a{2,3}?", r"[a\-\-c]", r"[&-]", r"[a-z-]", r"\*\*"),
        *(r"[^a-c]+", r"(a|b)*c?", r"^\d{4}-\d\d$", r"a\{2}{3}", "[*+?]{2}", r"[\w.-]+@[\w-]+"),
    ],
)
def test_an_answer_matches_the_pattern_as_python_reads_it(
    compiled: GrammarCompiler, tokenizer: Tokenizer, pattern: str
) -> None:
    grammar = Grammar.json_schema({"type": "string", "pattern": f"^(?:{pattern.strip('^$')})$"})
    for seed in range(5):
        answer = json.loads(tokenizer.decode(random_answer(compiled, tokenizer, grammar, seed)))
        assert re.fullmatch(pattern.strip("^$"), answer), answer


UNCOMPILED: list[tuple[Any, str]] = [
    ({"type": "string", "pattern": "(("}, "unclosed group"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    ({"type": "string", "pattern": "^abc$", "minLength": 10}, "Unsatisfiable"),
    ({"type": "string", "format": "idn-email"}, "Unknown format: idn-email"),
    ({"type": "strin"}, "Invalid type: strin"),
    ({"type": "integer", "minimum": "3"}, "minimum"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable"),
    ({"enum": []}, "Unsatisfiable"),
    ({"type": "object", "required": ["b"], "additionalProperties": False}, "'b'"),
    ({"allOf": [{"$ref": "#"}]}, "no value is valid"),
    ({"$ref": "#/$defs/missing"}, "missing"),
    ({"type": "object", "allOf": [{"$ref": "#"}]}, "circular"),
    ({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 3}]}, "oneOf"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ({"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": {}}}, "oneOf"),
    (
        {
            "allOf": [
                {"anyOf": [{"properties": {f"p{i}_{j}": {}}} for j in range(10)]} for i in range(8)
            ]
        },
        "too large",
    ),
]


@pytest.mark.parametrize(("schema", "message"), UNCOMPILED, ids=range(len(UNCOMPILED)))
def test_what_has_no_grammar_is_refused_in_one_line_and_the_next_works(
    compiled: GrammarCompiler, tokenizer: Tokenizer, schema: Any, message: str
) -> None:
    grammar = Grammar.json_schema(schema)
    for one in (grammar, grammar.or_calls(["read"])):
        with pytest.raises(InvalidRequestError, match=message) as error:
            compiled.check(one)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400
    answer = random_answer(compiled, tokenizer, Grammar.json_object(), 1)
    assert isinstance(json.loads(tokenizer.decode(answer)), dict)


HARD: dict[str, Any] = {
    "long enumeration": {"enum": [f"value {i}" for i in range(5000)]},
    "many properties": {"type": "object", "properties": {f"p{i}": {} for i in range(500)}},
    "a million items": {"type": "array", "minItems": 1_000_000, "items": {"const": 0}},
    "a million characters": {"type": "string", "minLength": 1_000_000},
    "nested repeats": {"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"},
    "exponential states": {"type": "string", "pattern": "(a|b)*a(a|b){300}c"},
    "endless recursion": {
        "type": "object",
        "properties": {"a": {"$ref": "#"}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "shared references": {
        "$defs": {
            **{
                f"d{i}": {"properties": {k: {"$ref": f"#/$defs/d{i + 1}"} for k in "ab"}}
                for i in range(60)
            },
            "d60": {"type": "null"},
        },
        "$ref": "#/$defs/d0",
    },
}


@pytest.mark.parametrize("name", HARD)
def test_a_hard_schema_is_followed_or_ends_with_an_error(
    compiled: GrammarCompiler, tokenizer: Tokenizer, name: str
) -> None:
    """None of them is a crash or a wait; what was written so far fits, whatever comes."""
    constraint = compiled.constraint(Grammar.json_schema(HARD[name]), [0], [end_of(tokenizer)])
    for step in range(300):
        try:
            ids = allowed_ids(constraint)
        except InvalidRequestError as error:
            assert "simplify the schema" in str(error)
            break
        if not ids:
            break
        token = ids[step * 7919 % len(ids)]
        if token == end_of(tokenizer):
            break
        constraint.append(token)
    else:
        assert step == 299


class TestUnions:
    """``oneOf`` is enforced where its options exclude each other, else refused."""

    def test_a_tagged_union_through_references(
        self, compiled: GrammarCompiler, tokenizer: Tokenizer
    ) -> None:
        grammar = Grammar.json_schema(SCHEMAS["tagged union"])
        kinds = set()
        for seed in range(40):
            *ids, _ = random_answer(compiled, tokenizer, grammar, seed)
            kinds.add(json.loads(tokenizer.decode(ids))["kind"])
        assert kinds == {"circle", "group"}

    @pytest.mark.parametrize(
        "options",
        [
            # A tag that is not required, tags that meet, a tag that is no constant.
            [{"properties": {"k": {"const": c}}, "type": "object"} for c in "ab"],
            [
                {"properties": {"k": {"enum": e}}, "type": "object", "required": ["k"]}
                for e in (["a", "b"], ["b", "c"])
            ],
            [
                {"properties": {"k": {"type": "string"}}, "type": "object", "required": ["k"]},
                {"properties": {"k": {"const": "b"}}, "type": "object", "required": ["k"]},
            ],
            # Not only objects.
            [{"properties": {"k": {"const": c}}, "required": ["k"]} for c in "ab"],
        ],
        ids=["not required", "shared", "open", "any type"],
    )
    def test_options_that_may_meet_are_refused(
        self, compiled: GrammarCompiler, options: list[Any]
    ) -> None:
        with pytest.raises(InvalidRequestError, match="oneOf"):
            compiled.check(Grammar.json_schema({"oneOf": options}))
