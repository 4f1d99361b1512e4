import json
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest
from bytebound_evals import DataError, Problem, arithmetic_problems, data, heldout_text

GOOD = '{"question": "Ann has 2 pears and buys 3. How many?", "answer": "2 + 3 = 5\\n#### 5"}'


def parse(*lines: str) -> list[Problem]:
    return data.parse_problems("\n".join(lines) + "\n", source="made-up.jsonl")


def test_reads_lines_in_order() -> None:
    second = json.dumps({"answer": "#### 1", "question": "One?"})
    assert parse(GOOD, second) == [
        Problem("Ann has 2 pears and buys 3. How many?", "2 + 3 = 5\n#### 5"),
        Problem("One?", "#### 1"),
    ]


def test_the_last_newline_may_be_absent() -> None:
    assert len(data.parse_problems(GOOD, source="made-up.jsonl")) == 1


def test_a_line_separator_inside_a_string_does_not_split_the_line() -> None:
    line = json.dumps({"question": "a\u2028b\x85?", "answer": "#### 1"}, ensure_ascii=False)
    assert parse(line)[0].question == "a\u2028b\x85?"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param("", "not JSON", id="blank"),
        pytest.param(GOOD[:-9], "not JSON", id="cut"),
        pytest.param(GOOD + GOOD, "not JSON", id="two-on-one-line"),
        pytest.param('["q", "a"]', "expected an object, got list", id="list"),
        pytest.param("null", "expected an object, got NoneType", id="null"),
        pytest.param('{"question": "q"}', "missing: answer; unknown: none", id="missing"),
        pytest.param(
            '{"question": "q", "answer": "a", "id": 1}', "missing: none; unknown: id", id="unknown"
        ),
        pytest.param(
            '{"question": "q", "answer": 5}', "answer must be a non-empty string, got 5", id="type"
        ),
        pytest.param('{"question": "  ", "answer": "a"}', "question must be", id="empty"),
        pytest.param(GOOD, "the same question is on line 1", id="twice"),
    ],
)
def test_a_damaged_line_names_file_line_and_fault(line: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        parse(GOOD, line, GOOD.replace("Ann", "Bo"))
    assert str(caught.value).startswith("made-up.jsonl, line 2: ")
    assert message in str(caught.value)


def test_an_empty_file_is_an_error() -> None:
    with pytest.raises(DataError, match=r"made-up.jsonl: no problem in the file"):
        data.parse_problems("", source="made-up.jsonl")


def test_the_shipped_text_is_long_and_of_several_kinds() -> None:
    text = heldout_text()
    assert len(text) > 100_000
    assert "the LORD" in text
    assert "def " in text
    assert "\r" not in text


def test_each_shipped_problem_ends_in_one_whole_number() -> None:
    problems = arithmetic_problems()
    assert len(problems) >= 200
    for problem in problems:
        assert problem.question.strip() == problem.question
        assert re.search(r"\n#### -?\d+$", problem.answer), problem


@pytest.mark.parametrize(
    ("name", "content", "read", "message"),
    [
        ("heldout.txt", None, heldout_text, "not in this installation"),
        ("heldout.txt", b" \n", heldout_text, "the file is empty"),
        ("heldout.txt", b"\xff", heldout_text, "not UTF-8"),
        ("problems.jsonl", None, arithmetic_problems, "not in this installation"),
        ("problems.jsonl", b"", arithmetic_problems, "no problem in the file"),
        ("problems.jsonl", b"{}\n", arithmetic_problems, "line 1: expected the fields"),
        ("problems.jsonl", b'"\xff"', arithmetic_problems, "not UTF-8"),
    ],
)
def test_a_damaged_installation_names_the_file(
    name: str,
    content: bytes | None,
    read: Callable[[], object],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "data").mkdir()
    if content is not None:
        (tmp_path / "data" / name).write_bytes(content)
    monkeypatch.setattr(resources, "files", lambda package: tmp_path)
    with pytest.raises(DataError, match=f"^{re.escape(name)}.*{message}"):
        read()
