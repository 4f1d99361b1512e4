"""The evaluation data that this package ships: held-out text and arithmetic problems.

Reads package data only; knows no model and no tokenizer. A damaged line is an error, never skipped,
so a score is always taken over the whole set.
"""

import json
from dataclasses import dataclass
from importlib import resources

from bytebound_evals.errors import DataError

HELDOUT_FILE = "heldout.txt"
PROBLEMS_FILE = "problems.jsonl"
PROBLEM_FIELDS = ("question", "answer")


@dataclass(frozen=True, slots=True)
class Problem:
    """One arithmetic word problem and its answer in GSM8K's form."""

    question: str
    answer: str


def heldout_text() -> str:
    """Return the text that no shipped model was trained on.

    Raises:
        DataError: the file is missing, empty or not UTF-8.
    """
    text = _read(HELDOUT_FILE)
    if not text.strip():
        raise DataError(f"{HELDOUT_FILE}: the file is empty; reinstall bytebound-evals")
    return text


def arithmetic_problems() -> list[Problem]:
    """Return the arithmetic problems that no shipped model was trained on, in file order.

    Raises:
        DataError: the file is missing, or a line of it is damaged.
    """
    return parse_problems(_read(PROBLEMS_FILE), source=PROBLEMS_FILE)


def parse_problems(text: str, *, source: str) -> list[Problem]:
    """Parse one JSON object a line; `source` names the text in errors.

    Raises:
        DataError: a line is not an object with exactly the fields `question` and `answer`, both
            non-empty strings; a question occurs twice; or there is no line at all.
    """
    # Not splitlines(): JSON allows U+2028 and its like inside a string.
    lines = text.removesuffix("\n").split("\n") if text else []
    problems: list[Problem] = []
    first_line_of: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        where = f"{source}, line {number}"
        problem = _parse_problem(line, where)
        earlier = first_line_of.setdefault(problem.question, number)
        if earlier != number:
            raise DataError(f"{where}: the same question is on line {earlier}")
        problems.append(problem)
    if not problems:
        raise DataError(f"{source}: no problem in the file; reinstall bytebound-evals")
    return problems


def _parse_problem(line: str, where: str) -> Problem:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected an object, got {type(record).__name__}")
    missing = [field for field in PROBLEM_FIELDS if field not in record]
    unknown = sorted(record.keys() - set(PROBLEM_FIELDS))
    if missing or unknown:
        raise DataError(
            f"{where}: expected the fields question and answer;"
            f" missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"
        )
    for field in PROBLEM_FIELDS:
        value = record[field]
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{where}: {field} must be a non-empty string, got {value!r}")
    return Problem(question=record["question"], answer=record["answer"])


def _read(name: str) -> str:
    file = resources.files("bytebound_evals") / "data" / name
    try:
        return file.read_bytes().decode("utf-8")
    except FileNotFoundError as error:
        raise DataError(f"{name}: not in this installation of bytebound-evals") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: not UTF-8: {error}; reinstall bytebound-evals") from error
