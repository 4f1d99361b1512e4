"""Runs the command line in this process."""

from dataclasses import dataclass

import pytest
from bytebound_evals.cli import main


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str


class Cli:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object) -> Outcome:
        self._capsys.readouterr()
        code = main([str(word) for word in words])
        captured = self._capsys.readouterr()
        return Outcome(code, captured.out, captured.err)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


def refused(outcome: Outcome, *words: str) -> None:
    """Wrong use: one line on stderr, nothing on stdout, exit code 2."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    (line,) = outcome.err.splitlines()
    assert line.startswith("bytebound-evals: error: ")
    for word in words:
        assert word in line
