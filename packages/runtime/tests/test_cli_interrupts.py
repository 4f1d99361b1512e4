"""Ctrl-C at a known place of a command: what was generated is kept, and the exit code says so."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import bytebound.cli.opening
import pytest
from bytebound import Engine
from bytebound.text.tokenizer import Tokenizer

from .cli_runs import Folders, Run, folders, run, script_engine

__all__ = ["folders", "run"]  # fixtures

ANSWER = "hello there, the quick brown fox jumps over the lazy dog"


@pytest.fixture
def interrupted(run: Run, monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer) -> Engine:
    """An engine that answers ``ANSWER``; Ctrl-C comes in its fourth decode pass."""
    script_engine(monkeypatch, tokenizer, ANSWER)
    engine: Engine = bytebound.cli.opening.open_engine()  # type: ignore[call-arg]
    interrupt_at(monkeypatch, engine, "verify", 4)
    return engine


def interrupt_at(monkeypatch: pytest.MonkeyPatch, engine: Engine, method: str, call: int) -> None:
    real = getattr(engine.executor, method)
    calls: list[int] = []

    def pressed(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(engine.executor, method, pressed)


def test_text(run: Run, interrupted: Engine) -> None:
    outcome = run("generate", "-m", "any", "-p", "hi")
    assert outcome.code == 130
    assert outcome.out.endswith("\n") and ANSWER.startswith(outcome.out.rstrip("\n"))
    assert "end: interrupted" in outcome.stats and outcome.stats.startswith("[4 tokens")


def test_json(run: Run, interrupted: Engine, tokenizer: Tokenizer) -> None:
    outcome = run("generate", "-m", "any", "-p", "hi", "--json")
    record = json.loads(outcome.out)
    assert (outcome.code, outcome.err) == (130, "")
    assert record["finish_reason"] == "interrupted"
    assert record["token_ids"] == tokenizer.encode(ANSWER)[:4]
    assert record["stats"]["completion_tokens"] == 4


def test_in_the_prompt(run: Run, monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer) -> None:
    script_engine(monkeypatch, tokenizer, ANSWER)
    engine: Engine = bytebound.cli.opening.open_engine()  # type: ignore[call-arg]
    interrupt_at(monkeypatch, engine, "prefill", 1)
    outcome = run("generate", "-m", "any", "-p", "hi", "--json")
    record = json.loads(outcome.out)
    assert outcome.code == 130
    assert (record["token_ids"], record["finish_reason"]) == ([], "interrupted")


def test_in_a_chat(run: Run, interrupted: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer ends there, and the next message is answered in full."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hi\nhi\n")))
    outcome = run("chat", "-m", "any", "--json", "--no-thinking")
    first, second = (json.loads(line) for line in outcome.out.splitlines())
    assert outcome.code == 0
    assert first["finish_reason"] == "interrupted" and ANSWER.startswith(first["content"])
    assert (second["finish_reason"], second["content"]) == ("stop", ANSWER)


def test_while_loading(run: Run, monkeypatch: pytest.MonkeyPatch, folders: Folders) -> None:
    def pressed(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bytebound.engine.load_engine_parts", pressed)
    outcome = run("generate", "-m", Path(folders.text), "-p", "hi")
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "")
