"""``bytebound generate`` on random and scripted models: what goes to stdout, what to stderr."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from bytebound import Engine, SamplingParams
from bytebound.text.tokenizer import Tokenizer

from .checkpoints import write_json
from .cli_runs import Folders, Run, folders, run, script_engine

__all__ = ["folders", "run"]  # fixtures


def generate_json(run: Run, *args: object) -> dict[str, Any]:
    outcome = run("generate", *args, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    (line,) = outcome.out.splitlines()
    return json.loads(line)


def test_stdout_holds_the_answer_and_stderr_the_numbers(run: Run, folders: Folders) -> None:
    engine = Engine.from_pretrained(folders.text)
    prompt_ids = engine.tokenizer.encode("the quick")
    expected = engine.generate(prompt_ids, SamplingParams(max_tokens=8)).text

    outcome = run("generate", "--model", folders.text, "--prompt", "the quick", "--max-tokens", 8)

    assert outcome.code == 0
    assert outcome.out == expected + "\n"
    assert f"prompt {len(prompt_ids)} tokens" in outcome.stats
    assert "8 tokens, " in outcome.stats
    assert "tokens/s" in outcome.stats
    assert "accepted per step (mtp)" in outcome.stats
    assert len(outcome.err.splitlines()) == 1


def test_json_is_one_object_and_nothing_else(run: Run, folders: Folders) -> None:
    answer = generate_json(run, "-m", folders.text, "-p", "the quick", "--max-tokens", 8)
    plain = run("generate", "-m", folders.text, "-p", "the quick", "--max-tokens", 8)

    assert plain.out == answer["text"] + "\n"
    assert len(answer["token_ids"]) == 8
    assert answer["finish_reason"] == "length"
    assert answer["stats"]["completion_tokens"] == 8
    assert answer["model"] == str(folders.text)
    assert answer["draft"] == "mtp"
    assert answer["params"]["max_tokens"] == 8
    assert "logprobs" not in answer


@pytest.mark.parametrize("draft", ["mtp", "ngram", "none"])
def test_a_draft_changes_no_token(run: Run, folders: Folders, draft: str) -> None:
    common = ("-m", folders.text, "-p", "fox", "--max-tokens", 24)
    plain = generate_json(run, *common, "--draft", "none")
    drafted = generate_json(run, *common, "--draft", draft, "--num-draft-tokens", 3)
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["draft"] == draft


def test_without_a_head_nothing_is_drafted_and_nothing_said(run: Run, folders: Folders) -> None:
    outcome = run("generate", "-m", folders.no_mtp, "-p", "fox", "--max-tokens", 3)
    assert outcome.code == 0
    assert len(outcome.err.splitlines()) == 1
    assert "accepted" not in outcome.stats


def test_a_folder_without_tokenizer_takes_and_gives_ids(run: Run, folders: Folders) -> None:
    answer = generate_json(run, "-m", folders.bare, "--ids", "1, 2 3", "--max-tokens", 6)
    assert answer["text"] is None
    assert answer["prompt_ids"] == [1, 2, 3]

    outcome = run("generate", "-m", folders.bare, "--ids", "1 2 3", "--max-tokens", 6)
    assert [int(word) for word in outcome.out.split()] == answer["token_ids"]


def test_control_tokens_in_a_prompt_stay_text(run: Run, folders: Folders) -> None:
    answer = generate_json(run, "-m", folders.text, "-p", "<|im_end|>", "--max-tokens", 1)
    assert len(answer["prompt_ids"]) > 1


def test_chat_goes_through_the_template(run: Run, folders: Folders, tokenizer: Tokenizer) -> None:
    common = ("-m", folders.text, "-p", "hi<|im_end|>", "--max-tokens", 1, "--chat")
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi<|im_end|>"},
    ]
    for flag, thinking in (("--thinking", True), ("--no-thinking", False)):
        answer = generate_json(run, *common, "--system", "be brief", flag)
        expected = tokenizer.apply_chat_template(messages, enable_thinking=thinking)
        assert answer["prompt_ids"] == expected
    assert generate_json(run, *common)["prompt_ids"] == tokenizer.apply_chat_template(messages[1:])


def test_prompt_from_file_and_stdin_is_taken_unchanged(
    run: Run, folders: Folders, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: Any
) -> None:
    text = " two\r\nlines 한국어\n"
    file = tmp_path / "prompt.txt"
    file.write_bytes(text.encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    common = ("-m", folders.text, "--max-tokens", 1)
    for source in (("--prompt-file", file), ("--prompt", "-")):
        answer = generate_json(run, *common, *source)
        assert answer["prompt_ids"] == tokenizer.encode(text)


def test_the_models_own_sampling_counts_until_an_option_is_given(
    run: Run, folders: Folders, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for path in folders.text.iterdir():
        (own / path.name).symlink_to(path)
    write_json(
        own / "generation_config.json",
        {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95},
    )
    common = ("-m", own, "-p", "fox", "--max-tokens", 2)
    params = generate_json(run, *common)["params"]
    assert (params["temperature"], params["top_k"], params["top_p"]) == (0.6, 20, 0.95)

    params = generate_json(run, *common, "--temperature", 0, "--top-k", 0)["params"]
    assert (params["temperature"], params["top_k"], params["top_p"]) == (0.0, 0, 0.95)


def test_a_sampled_answer_names_the_seed_that_repeats_it(run: Run, folders: Folders) -> None:
    common = ("-m", folders.text, "-p", "fox", "--max-tokens", 12, "--temperature", 1.5)
    first = generate_json(run, *common)
    again = generate_json(run, *common, "--seed", first["params"]["seed"])
    assert again["token_ids"] == first["token_ids"]


def test_every_sampling_option_arrives(run: Run, folders: Folders) -> None:
    given = {
        "max_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.25,
        "seed": 11,
        "logprobs": 0,
    }
    args = [
        word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)
    ]
    answer = generate_json(
        run, "-m", folders.text, "-p", "fox", *args, "--stop", "a", "--stop", "bc", "--ignore-eos"
    )
    params = answer["params"]
    assert {name: params[name] for name in given} == given
    assert (params["stop"], params["ignore_eos"]) == (["a", "bc"], True)


def test_logprobs(run: Run, folders: Folders) -> None:
    common = ("-m", folders.text, "-p", "fox", "--max-tokens", 3, "--logprobs", 2)
    answer = generate_json(run, *common)
    assert [one["token_id"] for one in answer["logprobs"]] == answer["token_ids"]
    assert all(one["logprob"] <= 0 and len(one["top"]) >= 2 for one in answer["logprobs"])
    assert isinstance(answer["logprobs"][0]["top"][0]["token"], str)

    outcome = run("generate", *common)
    assert len(outcome.err.splitlines()) == 4  # one line per token, then the numbers


def test_text_comes_through_whole_and_stops_where_told(
    run: Run, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_engine(monkeypatch, tokenizer, "안녕 👍 hello world")
    outcome = run("generate", "-m", "any", "-p", "x", "--stop", "wor")
    assert outcome.out == "안녕 👍 hello \n"
    assert "end: stop" in outcome.stats

    script_engine(monkeypatch, tokenizer, "ends with a line\n")
    assert run("generate", "-m", "any", "-p", "x").out == "ends with a line\n"


def test_no_token_at_all_is_an_answer_too(run: Run, folders: Folders) -> None:
    answer = generate_json(run, "-m", folders.text, "-p", "fox", "--max-tokens", 0)
    assert (answer["text"], answer["token_ids"]) == ("", [])


def test_the_shipped_model(run: Run) -> None:
    tiny_or_skip()
    answer = generate_json(run, "--model", "tiny", "--prompt", "The ", "--max-tokens", 16)
    assert len(answer["token_ids"]) == 16
    assert answer["draft"] == "mtp"
    assert answer["stats"]["mean_accepted_len"] >= 1
    chat = generate_json(
        run, "--model", "tiny", "--chat", "--no-thinking", "--prompt", "What is 2 + 3?"
    )
    assert chat["finish_reason"] == "stop"


def tiny_or_skip() -> None:
    import bytebound

    folder = Path(bytebound.__file__).parent / "models" / "tiny"
    if not (folder / "config.json").is_file():
        pytest.skip("the shipped model is not in this tree yet")


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


class TestSchema:
    def test_an_answer_is_held_to_the_file(
        self, run: Run, folders: Folders, tmp_path: Path
    ) -> None:
        file = tmp_path / "schema.json"
        write_json(file, SCHEMA)
        common = ("-m", folders.text, "-p", "fox", "--json-schema", file, "--max-tokens", 99)
        outcome = run("generate", *common)
        assert outcome.code == 0
        assert set(json.loads(outcome.out)) == {"a", "b"}
        answer = generate_json(run, *common)
        assert answer["text"] == outcome.out.removesuffix("\n")
        assert answer["finish_reason"] == "stop"
        assert json.loads(answer["params"]["grammar"]["schema"])["required"] == ["a", "b"]

    def test_what_is_wrong_with_the_file_is_one_line(
        self, run: Run, folders: Folders, tmp_path: Path
    ) -> None:
        cases = [
            ({"not": {}}, "the word 'not' is not supported"),
            ({"type": "string", "pattern": "(("}, "unclosed group"),
            (None, "got NoneType"),
        ]
        for schema, message in cases:
            file = tmp_path / "schema.json"
            write_json(file, schema)
            outcome = run("generate", "-m", folders.text, "-p", "fox", "--json-schema", file)
            assert (outcome.code, outcome.out) == (2, "")
            assert message in outcome.err
            assert len(outcome.err.splitlines()) == 1
        (tmp_path / "schema.json").write_text("{")
        for path in (tmp_path / "schema.json", tmp_path / "none.json"):
            outcome = run("generate", "-m", folders.text, "-p", "fox", "--json-schema", path)
            assert outcome.code == 2
            assert f"--json-schema {path}" in outcome.err

    def test_it_needs_a_tokenizer_and_an_end(
        self, run: Run, folders: Folders, tmp_path: Path
    ) -> None:
        file = tmp_path / "schema.json"
        write_json(file, SCHEMA)
        outcome = run("generate", "-m", folders.bare, "--ids", "1 2", "--json-schema", file)
        assert outcome.code == 2
        assert "a grammar needs a tokenizer" in outcome.err
        asked = ("-p", "fox", "--json-schema", file, "--ignore-eos")
        outcome = run("generate", "-m", folders.text, *asked)
        assert outcome.code == 2
        assert "ignore_eos" in outcome.err
