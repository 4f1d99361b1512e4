from pathlib import Path

import datasets
import pytest
from bytebound_evals.data import arithmetic_problems
from bytebound_evals.errors import SettingError, SourceError
from bytebound_evals.problems import gold, load_problems

from .local_datasets import write_gsm8k


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets-cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def test_gsm8k_is_read_from_a_local_copy_with_examples_of_its_train_split(tmp_path: Path) -> None:
    copy = write_gsm8k(tmp_path / "gsm8k")
    found = load_problems(f"gsm8k:{copy}", shots=2, limit=2)
    assert [one.question.split()[2] for one in found.problems] == ["3", "4"]
    assert [one.question.split()[2] for one in found.examples] == ["1000", "1001"]
    assert (found.name, found.examples_from) == ("gsm8k", "the first of the train split")
    assert list(map(gold, found.problems)) == [5, 6]


def test_the_same_through_the_general_form(tmp_path: Path) -> None:
    copy = write_gsm8k(tmp_path / "copy")
    found = load_problems(f"datasets:{copy}@main/test")
    assert found.problems == load_problems(f"gsm8k:{copy}").problems
    assert found.name == "problems"


def test_elsewhere_the_first_problems_are_the_examples_and_not_asked() -> None:
    found = load_problems("arithmetic", shots=3, limit=4)
    everything = tuple(arithmetic_problems())
    assert (found.examples, found.problems) == (everything[:3], everything[3:7])
    assert load_problems("arithmetic").problems == everything


def write(tmp_path: Path, *lines: str) -> str:
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(line + "\n" for line in lines))
    return str(file)


GOOD = '{"question": "One?", "answer": "#### 1", "more": 1}'


def test_a_local_file_may_have_more_columns(tmp_path: Path) -> None:
    assert load_problems(write(tmp_path, GOOD)).problems[0].answer == "#### 1"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"question": "One?"}'], "no field 'answer'; it has question"),
        ([GOOD, '{"question": "Two?", "answer": "2"}'], "answer of problem 2 is '2', expected one"),
        ([GOOD, '{"question": "Two?", "answer": "#### two"}'], "expected one that ends in '####"),
        ([GOOD, '{"question": " ", "answer": "#### 2"}'], "row 2: the question or the answer is"),
        ([GOOD, '{"question": 2, "answer": "#### 2"}'], "question is int, expected a string"),
        ([], "there is no problem in it"),
    ],
)
def test_a_damaged_set_is_an_error(lines: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=message):
        load_problems(write(tmp_path, *lines))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shots": 1}, "1 examples leave no problem to ask"),
        ({"shots": -1}, "shots -1"),
        ({"limit": 0}, "limit 0"),
    ],
)
def test_numbers_that_cannot_be_are_an_error(
    arguments: dict[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=message):
        load_problems(write(tmp_path, GOOD), **arguments)


def test_more_examples_than_gsm8k_has_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="3 examples"):
        load_problems(f"gsm8k:{write_gsm8k(tmp_path / 'gsm8k')}", shots=3)


@pytest.mark.parametrize("spec", ["gsm", "gsm8k:", "nothing.jsonl"])
def test_an_unknown_set_is_an_error_that_names_the_known_ones(spec: str) -> None:
    with pytest.raises(SourceError, match="expected gsm8k, or gsm8k:FOLDER"):
        load_problems(spec)
