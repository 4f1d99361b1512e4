"""Sets of word problems with a number for an answer: GSM8K, a file of its form, the shipped ones.

A set knows its problems and the worked examples that go in front of each (few-shot), and no model.
The answer of a problem is the number behind its ``####``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from bytebound_quant.text_sources import CalibrationSource

from bytebound_evals.answers import extract_answer
from bytebound_evals.data import Problem, arithmetic_problems
from bytebound_evals.errors import SettingError, SourceError
from bytebound_evals.texts import column, find_rows, local_copy

ARITHMETIC = "arithmetic"
GSM8K = "gsm8k"
QUESTION, ANSWER = "question", "answer"
GSM8K_PATH, GSM8K_CONFIG = "openai/gsm8k", "main"
PROBLEMS_HELP = (
    "gsm8k, or gsm8k:FOLDER for a local copy; arithmetic (shipped with this package); a .jsonl "
    "file with question and answer; or datasets:PATH@[CONFIG/]SPLIT"
)


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """Problems to ask, and worked examples to show before each."""

    label: str
    problems: tuple[Problem, ...]
    examples: tuple[Problem, ...]
    examples_from: str
    """Where the examples come from, for reports."""

    @property
    def name(self) -> str:
        """A short name of the set, for metrics: ``gsm8k``, ``arithmetic``, else ``problems``."""
        stem = self.label.partition(":")[0]
        return stem if stem in (ARITHMETIC, GSM8K) else "problems"


def load_problems(spec: str, *, shots: int = 0, limit: int | None = None) -> ProblemSet:
    """Read a set (``PROBLEMS_HELP``) with ``shots`` examples; ask at most ``limit`` problems.

    The examples of GSM8K are the first of its train split. Elsewhere they are the first problems of
    the set itself, which are then not asked.

    Raises:
        SettingError: ``shots`` or ``limit`` is out of range.
        SourceError: the set cannot be read, lacks a column, or an answer holds no number.
    """
    if shots < 0 or (limit is not None and limit < 1):
        raise SettingError(f"shots {shots}, limit {limit}: expected at least 0 and at least 1")
    name, colon, copy = spec.partition(":")
    if spec == ARITHMETIC:
        problems, examples, place = arithmetic_problems(), None, ""
    elif name == GSM8K and (copy or not colon):
        path = local_copy(copy) if colon else GSM8K_PATH
        problems = _read(CalibrationSource("datasets", path, GSM8K_CONFIG, "test"))
        train = CalibrationSource("datasets", path, GSM8K_CONFIG, "train")
        examples, place = (_read(train) if shots else []), "the first of the train split"
    else:
        problems, examples, place = _read(find_rows(spec, PROBLEMS_HELP)), None, ""
    if examples is None:
        problems, examples = problems[shots:], problems[:shots]
        place = "the first of the set, which are not asked"
    if not problems or len(examples) < shots:
        raise SettingError(
            f"{spec}: {shots} examples leave no problem to ask, or are more than there are; "
            "ask for fewer"
        )
    chosen = ProblemSet(
        spec, tuple(problems[:limit]), tuple(examples[:shots]), place if shots else "none"
    )
    for number, problem in enumerate((*chosen.examples, *chosen.problems)):
        if "####" not in problem.answer or extract_answer(problem.answer) is None:
            raise SourceError(
                f"{spec}: the answer of problem {number + 1} is {problem.answer[-60:]!r}, expected "
                "one that ends in '#### NUMBER'"
            )
    return chosen


def gold(problem: Problem) -> Fraction:
    """The right answer of a problem."""
    answer = extract_answer(problem.answer)
    if answer is None:
        raise SourceError(f"no number in the answer {problem.answer[-60:]!r}")
    return answer


def _read(source: CalibrationSource) -> list[Problem]:
    columns: Iterable[tuple[str, str]] = zip(
        column(source, QUESTION), column(source, ANSWER), strict=True
    )
    problems = []
    for number, (question, answer) in enumerate(columns, start=1):
        if not question.strip() or not answer.strip():
            raise SourceError(f"{source.label}, row {number}: the question or the answer is empty")
        problems.append(Problem(question, answer))
    if not problems:
        raise SourceError(f"{source.label}: there is no problem in it")
    return problems
