import json
from pathlib import Path
from typing import Any

import pytest
from bytebound_evals.data import Problem
from bytebound_evals.errors import RunLogError, SettingError
from bytebound_evals.gsm8k import (
    COMPLETION_STOPS,
    INSTRUCTION,
    AskSettings,
    measure_accuracy,
    prompt_ids,
)
from bytebound_evals.problems import ProblemSet, load_problems

from .quality_engines import ReplyEngine, tiny

SUMS = tuple(Problem(f"What is {n} plus {n}?", f"#### {2 * n}") for n in range(1, 101))
SET = ProblemSet("made-up", SUMS, (), "none")


def number_in(prompt: str) -> int:
    return int(prompt.rpartition("What is ")[2].split()[0])


def double(prompt: str) -> str:
    return f"It is \\boxed{{{2 * number_in(prompt)}}}."


def run(engine: ReplyEngine, settings: AskSettings = AskSettings(), **arguments: Any) -> Any:  # noqa: B008
    return measure_accuracy(engine, SET, settings, **arguments)  # type: ignore[arg-type]


def test_right_answers_are_counted() -> None:
    found = run(ReplyEngine(lambda prompt: double(prompt) if number_in(prompt) > 25 else "7"))
    assert (found.right, found.accuracy, found.valid) == (75, 0.75, True)
    assert found.interval == pytest.approx((0.6570, 0.8246), abs=1e-4)
    assert found.replies[0].answer == "7" and found.replies[0].gold == "2"


@pytest.mark.parametrize(("cut", "valid"), [(2, True), (3, False)])
def test_above_two_percent_of_cut_replies_a_run_has_no_accuracy(cut: int, valid: bool) -> None:
    def reply(prompt: str) -> tuple[str, str]:
        # A cut reply may even hold the number: it did not end, so it did not answer.
        return double(prompt), "length" if number_in(prompt) <= cut else "stop"

    found = run(ReplyEngine(reply))
    assert found.cut_share == cut / 100
    assert found.right == 100 - cut
    assert found.valid is valid
    assert found.accuracy == (0.98 if valid else None)
    assert found.as_dict()["accuracy"] == found.accuracy


def test_a_thought_that_does_not_end_is_no_answer() -> None:
    thinking = AskSettings(thinking=True)
    assert run(ReplyEngine(lambda prompt: f"so {double(prompt)}"), thinking).right == 0
    ended = ReplyEngine(lambda prompt: f"not 1000\n</think>\n\n{double(prompt)}")
    assert run(ended, thinking).right == 100


def test_prompts_are_greedy_and_go_through_the_template() -> None:
    engine = ReplyEngine(double)
    run(engine, AskSettings(max_tokens=33))
    run(engine, AskSettings(thinking=True, instruction="Think hard."))
    plain, thinking = engine.prompts[0], engine.prompts[100]
    asked = f"<|im_start|>user\nWhat is 1 plus 1?\n{INSTRUCTION}<|im_end|>\n<|im_start|>assistant\n"
    assert plain == asked + "<think>\n\n</think>\n\n"
    assert thinking.endswith("1 plus 1?\nThink hard.<|im_end|>\n<|im_start|>assistant\n<think>\n")
    assert (engine.params[0].max_tokens, engine.params[0].temperature) == (33, 0.0)
    assert engine.params[0].stop == ()


def test_examples_are_turns_of_the_conversation_or_part_of_the_text() -> None:
    examples = (Problem("Two?", "It is two.\n#### 2"),)
    engine = ReplyEngine(double)
    tokenizer = engine.tokenizer

    def prompt(settings: AskSettings) -> str:
        ids = prompt_ids(engine, examples, SUMS[0], settings)  # type: ignore[arg-type]
        return tokenizer.decode(ids, skip_special_tokens=False)

    assert prompt(AskSettings(mode="completion")) == (
        "Question: Two?\nAnswer: It is two.\n#### 2\n\nQuestion: What is 1 plus 1?\nAnswer:"
    )
    assert prompt(AskSettings(instruction="")).startswith(
        "<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\nIt is two.\n#### 2<|im_end|>\n"
        "<|im_start|>user\nWhat is 1 plus 1?<|im_end|>\n"
    )


def test_a_completion_ends_before_the_next_question() -> None:
    engine = ReplyEngine(double)
    run(engine, AskSettings(mode="completion"))
    assert engine.params[0].stop == COMPLETION_STOPS


def test_control_tokens_in_a_question_stay_text() -> None:
    problem = Problem("What is <|im_end|> plus 1?", "#### 1")
    engine = ReplyEngine(double)
    ids = prompt_ids(engine, (), problem, AskSettings(instruction=""))  # type: ignore[arg-type]
    plain = prompt_ids(engine, (), SUMS[0], AskSettings(instruction=""))  # type: ignore[arg-type]
    end = engine.tokenizer.eos_ids & set(plain)
    assert sum(ids.count(one) for one in end) == sum(plain.count(one) for one in end)


class KilledError(Exception):
    pass


def test_a_run_that_was_killed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"

    def until_40(prompt: str) -> str:
        if number_in(prompt) == 41:
            raise KilledError
        return double(prompt)

    with pytest.raises(KilledError):
        run(ReplyEngine(until_40), log=log, model={"weights": "w"})
    engine = ReplyEngine(double)
    found = run(engine, log=log, model={"weights": "w"})
    assert (len(engine.prompts), found.right) == (60, 100)
    again = ReplyEngine(double)
    assert run(again, log=log, model={"weights": "w"}) == found
    assert again.prompts == []
    items = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    assert [int(item["item"]) for item in items] == list(range(100))
    assert items[4]["question"] == "What is 5 plus 5?"
    assert (items[4]["reply"], items[4]["answer"], items[4]["right"]) == (
        "It is \\boxed{10}.",
        "10",
        True,
    )


@pytest.mark.parametrize(
    ("settings", "model", "named"),
    [
        (AskSettings(max_tokens=5), {"weights": "w"}, "max_tokens 1024, now 5"),
        (AskSettings(thinking=True), {"weights": "w"}, "thinking False, now True"),
        (AskSettings(instruction=""), {"weights": "w"}, "instruction"),
        (AskSettings(), {"weights": "v"}, "model"),
    ],
)
def test_a_log_of_other_settings_is_not_continued(
    settings: AskSettings, model: dict[str, Any], named: str, tmp_path: Path
) -> None:
    log = tmp_path / "run.jsonl"
    run(ReplyEngine(double), log=log, model={"weights": "w"})
    with pytest.raises(RunLogError, match=named):
        run(ReplyEngine(double), settings, log=log, model=model)


def test_a_log_of_other_problems_is_not_continued(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    run(ReplyEngine(double), log=log)
    other = ProblemSet("made-up", SUMS[1:], (), "none")
    with pytest.raises(RunLogError, match="problems"):
        measure_accuracy(ReplyEngine(double), other, AskSettings(), log=log)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "base"}, "mode is 'base', expected one of chat, completion"),
        ({"mode": "completion", "thinking": True}, "thinking needs the mode chat"),
        ({"max_tokens": 0}, "max tokens is 0"),
    ],
)
def test_settings_that_cannot_be_are_an_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        AskSettings(**arguments)


def test_tiny_answers_shipped_problems() -> None:
    problems = load_problems("arithmetic", limit=8)
    found = measure_accuracy(tiny(), problems, AskSettings(instruction="", max_tokens=160))
    assert found.valid and found.right >= 7
    thought = measure_accuracy(
        tiny(), load_problems("arithmetic", limit=3), AskSettings(instruction="", thinking=True)
    )
    assert thought.right >= 2 and "</think>" in thought.replies[0].text
