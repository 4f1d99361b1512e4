"""Random schemas of every word that is taken, and random answers: each is valid, or refused."""

import json
import random
from typing import Any

import jsonschema
import pytest
from bytebound import Grammar, InvalidRequestError
from bytebound.text.tokenizer import Tokenizer

from .grammar_walks import compiler, random_answer

TYPES: list[Any] = [
    *("object", "array", "string", "integer", "number", "boolean", "null"),
    *(["string", "integer"], ["object", "null"], ["array", "number"]),
]
LEAVES: list[Any] = [
    {"type": "null"},
    {"type": "boolean"},
    {"type": "integer", "minimum": 0, "maximum": 5},
    {"const": "k"},
]
VALUES: list[Any] = ["a", "é", "", 1, 2.5, -3, 1e3, 0, None, True, False, [], [1, "x"], {"a": 1}]
# Anchored, so that a random string comes to fit soon.
PATTERNS = ["^a+b?$", "^x", "^[a-c]{2,4}$", r"^\d", r"^\w*$", "^(foo|bar)", "[^a]$", r"^\.", "^$"]
FORMATS = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"]
NUMBERS: list[Any] = [1, -5, 10, 2.5, -0.5, 99, 1e6, 0.001]
LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def random_schema(choose: random.Random, definitions: list[str], depth: int = 0) -> Any:
    def inner(more: int = 1) -> Any:
        return random_schema(choose, definitions, depth + more)

    def now_and_then(chance: float) -> bool:
        return choose.random() < chance

    if depth > 3:
        return choose.choice(LEAVES)
    if definitions and now_and_then(0.1):
        return {"$ref": f"#/$defs/{choose.choice(definitions)}"}
    if now_and_then(0.15):
        word = choose.choice(["anyOf", "oneOf", "allOf"])
        return {word: [inner() for _ in range(choose.randint(1, 3))]}
    if now_and_then(0.07):
        return {"enum": choose.sample(VALUES, choose.randint(1, 4))}
    if now_and_then(0.03):
        return choose.choice([True, {}, {"title": "x"}])
    kind = choose.choice(TYPES)
    kinds = kind if isinstance(kind, list) else [kind]
    schema: dict[str, Any] = {"type": kind} if now_and_then(0.9) else {}
    if "object" in kinds:
        names = choose.sample(["a", "b", "c", "dd", "é x"], choose.randint(0, 4))
        schema["properties"] = {name: inner() for name in names}
        schema["required"] = choose.sample([*names, "z"], choose.randint(0, len(names)))
        schema["additionalProperties"] = choose.choice([False, False, True, inner(2)])
        if now_and_then(0.15):
            schema["patternProperties"] = {"^p_": inner(2)}
        for word in ("minProperties", "maxProperties"):
            if now_and_then(0.12):
                schema[word] = choose.randint(0, 4)
    if "array" in kinds:
        schema["items"] = inner()
        schema["maxItems"] = choose.randint(0, 4)
        if now_and_then(0.3):
            schema["prefixItems"] = [inner() for _ in range(choose.randint(1, 3))]
        if now_and_then(0.4):
            schema["minItems"] = choose.randint(0, 3)
    if "string" in kinds:
        word, given = choose.choice([("pattern", PATTERNS), ("format", FORMATS), ("title", [""])])
        schema[word] = choose.choice(given)
        if now_and_then(0.4):
            schema["maxLength"] = choose.randint(0, 8)
        if now_and_then(0.3):
            schema["minLength"] = choose.randint(0, 4)
    if "integer" in kinds or "number" in kinds:
        schema |= {word: choose.choice(NUMBERS) for word in LIMITS if now_and_then(0.3)}
        if now_and_then(0.2):
            schema["multipleOf"] = choose.choice([1, 2, 3, 5, 7])
    words = list(schema)
    choose.shuffle(words)  # the order of words must not matter
    return {word: schema[word] for word in words}


@pytest.mark.parametrize("part", range(4))
def test_answers_are_valid(tokenizer: Tokenizer, part: int) -> None:
    compiled = compiler(tokenizer)
    answers = refused = 0
    for seed in range(200 * part, 200 * part + 200):
        choose = random.Random(seed)
        definitions = choose.choice([[], [], ["d0", "d1"]])
        schema = random_schema(choose, definitions)
        if not isinstance(schema, dict):
            continue
        schema["$defs"] = {name: random_schema(choose, definitions, 1) for name in definitions}
        try:
            grammar = Grammar.json_schema(schema)
            compiled.check(grammar)
        except InvalidRequestError:
            refused += 1
            continue
        check = jsonschema.Draft202012Validator(schema)
        for walk in range(4):
            *ids, _ = random_answer(compiled, tokenizer, grammar, walk)
            text = tokenizer.decode(ids, skip_special_tokens=False)
            assert check.is_valid(json.loads(text)), (seed, text, schema)
            answers += 1
    assert answers > 400
    assert refused < 90
