"""Calls under a grammar are the same whatever is guessed, greedy and sampled."""

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from bytebound import Engine, Grammar, SamplingParams, ToolForm

from .call_walks import closed, only_calls, read_reply, strict
from .checkpoints import random_checkpoint
from .grammar_runs import POINT, CarelessDraft
from .grammar_walks import PADDING

DAY = {"enum": ["monday", "é👍", 7, None]}
SHORT = {"type": "string", "maxLength": 6}
TOOLS = [
    strict(
        ["day", "note", "list"],
        day=DAY,
        note={"anyOf": [SHORT, {"type": "null"}]},
        list={"type": "array", "items": SHORT, "maxItems": 2},
        count={"type": "integer", "minimum": 0, "maximum": 99},
    ),
    ToolForm("g", closed([], a={"type": "string", "pattern": "^(x|yz)+$", "maxLength": 5}), True),
]
FORMS = {
    "demanded": Grammar.tool_calls(TOOLS),
    "one": Grammar.tool_calls(TOOLS, several=False),
    "free": Grammar.tool_calls([ToolForm("h", closed([], a={}, b={}))]),
    "text": Grammar.text_or_calls(TOOLS),
    "json": Grammar.json_schema(POINT).or_calls_of(TOOLS),
}
MODEL = {
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "max_position_embeddings": 512,
}


def load(folder: str | Path, draft: Any = "none", count: int = 4, **more: Any) -> Engine:
    return Engine.from_pretrained(folder, device="cpu", draft=draft, num_draft_tokens=count, **more)


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path, tokenizer: Any
) -> Path:
    shape = {**MODEL, "vocab_size": tokenizer.vocab_size + PADDING}
    folder = random_checkpoint(tmp_path_factory.mktemp("model"), seed=8, **shape).folder
    shutil.copytree(tokenizer_folder, folder, dirs_exist_ok=True)
    return folder


@pytest.mark.parametrize("name", FORMS)
def test_greedy_output_with_drafts_is_plain_output(folder: Path, name: str) -> None:
    plain = load(folder)
    prompt = plain.tokenizer.encode("the quick brown fox")
    params = SamplingParams(max_tokens=100, grammar=FORMS[name])
    expected = plain.generate(prompt, params)
    vocab_size = plain.executor.vocab_size
    drafts: list[Any] = ["mtp", "ngram"]
    drafts += [CarelessDraft(vocab_size, drawn=drawn) for drawn in (False, True)]
    for draft in drafts:
        result = load(folder, draft).generate(prompt, params)
        assert result.token_ids == expected.token_ids, draft
        assert result.finish_reason == expected.finish_reason
        assert draft != "mtp" or result.stats.drafted > 0


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_trained_model_that_knows_no_calls_makes_one(thinking: bool, temperature: float) -> None:
    question = [{"role": "user", "content": "What is 2 + 3?"}]
    params = SamplingParams(max_tokens=400, grammar=FORMS["one"], temperature=temperature, seed=3)
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    answers = set()
    for draft in ("none", "mtp", "ngram"):
        engine = load("tiny", draft, max_len=1024)
        prompt = engine.tokenizer.apply_chat_template(question, enable_thinking=thinking)
        result = engine.generate(prompt, params)
        assert result.finish_reason == "stop"
        thought, _, rest = result.text.rpartition("</think>")
        assert bool(thought) == thinking
        ids = engine.tokenizer.encode(rest, parse_control=True)
        (call,) = only_calls(read_reply(engine.tokenizer, ids, TOOLS))
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])
        assert draft != "mtp" or result.stats.accepted > 0
        answers.add(tuple(result.token_ids))
    assert temperature > 0 or len(answers) == 1
