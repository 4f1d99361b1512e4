"""Answers under a grammar on a GPU: drafts change no token, and the next request is its own."""

import json
from typing import Any

import jsonschema
import pytest
from bytebound import Engine, Grammar, SamplingParams

pytestmark = pytest.mark.gpu

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["x", "é", 1, None]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("thinking", [True, False])
def test_drafts_change_no_token(thinking: bool) -> None:
    question = [{"role": "user", "content": "What is 2 + 3?"}]
    greedy = SamplingParams(max_tokens=400, grammar=Grammar.json_schema(SCHEMA))
    free = SamplingParams(max_tokens=40)
    answers, others = set(), set()
    for draft in ("none", "mtp", "ngram"):
        engine = Engine.from_pretrained("tiny", backend="cuda", draft=draft)
        prompt = engine.tokenizer.apply_chat_template(question, enable_thinking=thinking)
        others.add(tuple(engine.generate(prompt, free).token_ids))
        result = engine.generate(prompt, greedy)
        assert result.finish_reason == "stop"
        jsonschema.validate(json.loads(result.text.rpartition("</think>")[2]), SCHEMA)
        assert draft != "mtp" or result.stats.accepted > 0
        answers.add(tuple(result.token_ids))
        others.add(tuple(engine.generate(prompt, free).token_ids))
    assert len(answers) == len(others) == 1


def test_sampled_answers_are_valid_and_repeat() -> None:
    engine = Engine.from_pretrained("tiny", backend="cuda", draft="mtp")
    prompt = engine.tokenizer.encode("The person is: ")
    grammar = Grammar.json_schema(SCHEMA)
    for seed in range(8):
        params = SamplingParams(max_tokens=400, temperature=1.0, seed=seed, grammar=grammar)
        result = engine.generate(prompt, params)
        jsonschema.validate(json.loads(result.text), SCHEMA)
        assert engine.generate(prompt, params).token_ids == result.token_ids
