"""Schemas of every kind, and random answers that a grammar allows."""

import random
from collections.abc import Sequence
from typing import Any

from bytebound import Grammar
from bytebound.constraint import Constraint
from bytebound.grammar_compiler import GrammarCompiler
from bytebound.text.tokenizer import Tokenizer

PADDING = 21  # ids of the model that the tokenizer does not have
CLOSERS = ('"', "}", "]")

NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer", "minimum": 0, "maximum": 9},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
    "required": ["value", "next"],
    "additionalProperties": False,
}
SHAPES = {
    "$defs": {
        "circle": {
            "type": "object",
            "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}},
            "required": ["kind", "r"],
            "additionalProperties": False,
        },
        "group": {
            "type": "object",
            "properties": {
                "kind": {"const": "group"},
                "parts": {
                    "type": "array",
                    "items": {"oneOf": [{"$ref": "#/$defs/circle"}, {"$ref": "#/$defs/group"}]},
                    "maxItems": 2,
                },
            },
            "required": ["kind", "parts"],
            "additionalProperties": False,
        },
    },
    "oneOf": [{"$ref": "#/$defs/circle"}, {"$ref": "#/$defs/group"}],
    "discriminator": {"propertyName": "kind"},
}

SCHEMAS: dict[str, Any] = {
    "anything": {},
    "object": {"type": "object"},
    "nested": {
        "type": "object",
        "properties": {
            "user": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "minLength": 1, "maxLength": 8},
                    "address": {
                        "type": "object",
                        "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
                        "required": ["zip"],
                        "additionalProperties": False,
                    },
                },
                "required": ["name", "address"],
                "additionalProperties": False,
            }
        },
        "required": ["user"],
        "additionalProperties": False,
    },
    "optional": {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}, "c": {"const": 1}},
        "additionalProperties": False,
    },
    "array": {
        "type": "array",
        "items": {"type": "integer"},
        "minItems": 2,
        "maxItems": 4,
        "uniqueItems": False,
    },
    "tuple": {"type": "array", "prefixItems": [{"type": "null"}, {"const": "x"}], "items": False},
    "enum": {"enum": ["plain", "é 안녕 👍", 'quote " and \\ and \n', 3, -2.5, None, True, [1, {}]]},
    "const": {"const": {"a": [1, "\u2028", {"b": None}]}},
    "integer": {"type": "integer", "minimum": -12, "exclusiveMaximum": 340},
    "number": {"type": "number", "exclusiveMinimum": 0, "maximum": 1.5},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100000},
    "string": {"type": "string"},
    "lengths": {"type": "string", "minLength": 3, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^(foo|b[aá]r)+\\d{2,3}$"},
    "date": {"type": "string", "format": "date"},
    "uuid": {"type": "string", "format": "uuid"},
    "types": {"type": ["string", "null", "integer"], "maxLength": 3, "maximum": 5},
    "any of": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "array", "maxItems": 1}]},
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"enum": ["x", "y"]}, "a": {"minimum": 3}}, "required": ["b"]},
        ],
        "additionalProperties": True,
    },
    "one of types": {"oneOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "null"}]},
    "reference": {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    "tagged union": SHAPES,
    "map": {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3},
    "map of one": {"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 1},
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^n_": {"type": "integer"}, "^s_": {"type": "string"}},
        "additionalProperties": False,
    },
    "draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://example.org/a.json",
        "definitions": {"a": {"type": "array", "items": {"type": "null"}, "maxItems": 2}},
        "type": "object",
        "properties": {"not": {"$ref": "#/definitions/a"}, "uniqueItems": {"const": 0}},
        "required": ["not", "uniqueItems"],
        "additionalProperties": False,
    },
}


def end_of(tokenizer: Tokenizer) -> int:
    (end,) = tokenizer.encode("<|im_end|>", parse_control=True)
    return end


def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.vocab_size + PADDING, [end_of(tokenizer)])


def allowed_ids(constraint: Constraint, guesses: Sequence[int] = ()) -> list[int]:
    bits = constraint.allowed(guesses)
    assert bits is not None
    whole = int.from_bytes(bytes(bits.tolist()), "little")
    return [i for i in range(whole.bit_length()) if whole >> i & 1]


def random_answer(
    compiled: GrammarCompiler,
    tokenizer: Tokenizer,
    grammar: Grammar,
    seed: int,
    prompt: Sequence[int] = (0,),
) -> list[int]:
    """Ids up to the end token, each drawn from what is allowed; closing marks are likelier."""
    end = end_of(tokenizer)
    constraint = compiled.constraint(grammar, prompt, [end])
    choose = random.Random(seed)
    ids: list[int] = []
    for _ in range(2000):
        ids_now = allowed_ids(constraint)
        assert ids_now
        assert ids_now[-1] < tokenizer.vocab_size
        if end in ids_now and choose.random() < 0.5:
            constraint.append(end)
            return [*ids, end]
        texts = {tokenizer.decode([i]): i for i in ids_now}
        token = choose.choice(ids_now)
        if choose.random() < 0.4:  # a quote first: inside a string the others close nothing
            token = next((texts[mark] for mark in CLOSERS if mark in texts), token)
        constraint.append(token)
        ids.append(token)
        if token == end:
            return ids
    raise AssertionError(f"no end: {tokenizer.decode(ids)[:200]}")
