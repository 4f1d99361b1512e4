"""``bytebound chat`` from a pipe: commands, history, thinking, mistakes that cost one message."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bytebound.text.tokenizer import Tokenizer

from .cli_runs import Folders, Outcome, Run, folders, run, script_engine

__all__ = ["folders", "run"]  # fixtures

Chat = Callable[..., Outcome]


@pytest.fixture
def chat(run: Run, monkeypatch: pytest.MonkeyPatch) -> Chat:
    """Run ``bytebound chat`` with the given bytes or lines on stdin."""

    def chat_once(stdin: str | bytes, *args: object, model: object = "any") -> Outcome:
        data = stdin if isinstance(stdin, bytes) else stdin.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        return run("chat", "-m", model, *args)

    return chat_once


def test_one_answer_per_line(
    chat: Chat, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_engine(monkeypatch, tokenizer, "hello there")
    outcome = chat("hi\n\nagain", "--no-thinking")
    assert outcome.code == 0
    assert outcome.out == "hello there\nhello there\n"
    assert outcome.err.count("tokens/s") == 2


def test_history_grows_and_reset_forgets_it(
    chat: Chat, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_engine(monkeypatch, tokenizer, "hello")
    outcome = chat("one\ntwo\n/reset\none\n", "--json", "--no-thinking")
    answers = [json.loads(line) for line in outcome.out.splitlines()]
    first, second, after = (one["stats"]["prompt_tokens"] for one in answers)
    assert first < second
    assert after == first
    assert all(one["content"] == "hello" for one in answers)
    conversation = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "two"},
    ]
    expected = tokenizer.apply_chat_template(conversation, enable_thinking=False)
    assert second == len(expected)


def test_commands(chat: Chat, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    script_engine(monkeypatch, tokenizer, "hello")
    outcome = chat("/help\n/system\n/system be brief\n/system\n/unknown\n/exit\nnever asked\n")
    assert (outcome.code, outcome.out) == (0, "")
    for text in ("/reset", "message: none", "message: be brief", "unknown command /unknown"):
        assert text in outcome.err

    # Neither a path nor an indented word is a command.
    assert chat("/usr/bin is what?\n /exit\n", "--no-thinking").out == "hello\nhello\n"


def test_the_system_message_is_part_of_the_prompt(
    chat: Chat, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_engine(monkeypatch, tokenizer, "hello")
    given = chat("hi\n", "--json", "--system", "be brief").out
    typed = chat("/system be brief\nhi\n", "--json").out
    without = chat("hi\n", "--json").out
    counts = [json.loads(text)["stats"]["prompt_tokens"] for text in (given, typed, without)]
    assert counts[0] == counts[1] > counts[2]


def test_thinking_stays_off_stdout_and_out_of_the_history(
    chat: Chat, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_engine(monkeypatch, tokenizer, "let me see\n</think>\n\nhello")
    outcome = chat("hi\n", "--thinking")
    assert outcome.out == "hello\n"
    assert "let me see" in outcome.err

    first, second = map(json.loads, chat("hi\nhi\n", "--thinking", "--json").out.splitlines())
    assert (first["thinking"], first["content"]) == ("let me see", "hello")
    history = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "hi"},
    ]
    assert second["stats"]["prompt_tokens"] == len(tokenizer.apply_chat_template(history))


def test_a_message_too_long_costs_only_itself(
    chat: Chat, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_engine(monkeypatch, tokenizer, "hello", max_len=60)
    outcome = chat("fox " * 100 + "\nhi\n", "--no-thinking")
    assert (outcome.code, outcome.out) == (0, "hello\n")
    error, _ = outcome.err.splitlines()
    assert error.startswith("bytebound: error: ")
    assert "60" in error
    assert "/reset" in error


def test_an_answer_that_was_cut_says_so(
    chat: Chat, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_engine(monkeypatch, tokenizer, "hello " * 100, max_len=60)
    assert "the context of 60 tokens is full; /reset" in chat("hi\n").err
    assert "cut at --max-tokens" in chat("hi\n", "--max-tokens", 3).err


def test_stdin_that_is_no_text(
    chat: Chat, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_engine(monkeypatch, tokenizer, "hello")
    outcome = chat(b"hi\n\xff\n", "--no-thinking")
    assert (outcome.code, outcome.out) == (2, "hello\n")
    assert "line 2 of stdin is not UTF-8" in outcome.err


def test_a_folder_without_template_is_refused(chat: Chat, folders: Folders, tmp_path: Path) -> None:
    folder = tmp_path / "no_template"
    folder.mkdir()
    for path in folders.text.iterdir():
        if path.name != "chat_template.jinja":
            (folder / path.name).symlink_to(path)
    outcome = chat("hi\n", model=folder)
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.err.splitlines()
    assert "no chat template" in line


def test_a_random_model_answers(chat: Chat, folders: Folders) -> None:
    outcome = chat("hi\nhi\n", "--json", "--max-tokens", 4, model=folders.text)
    assert outcome.code == 0
    assert [len(json.loads(line)["token_ids"]) for line in outcome.out.splitlines()] == [4, 4]
