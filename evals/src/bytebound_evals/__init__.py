"""Measure the quality and speed of bytebound models. Composes the other three packages."""

from bytebound_evals.data import Problem, arithmetic_problems, heldout_text
from bytebound_evals.errors import (
    DataError,
    EvalError,
    IncomparableError,
    ResultError,
    RivalError,
)
from bytebound_evals.results import Metric, Result, read_result, write_result

__version__ = "0.1.0"

__all__ = [
    "DataError",
    "EvalError",
    "IncomparableError",
    "Metric",
    "Problem",
    "Result",
    "ResultError",
    "RivalError",
    "__version__",
    "arithmetic_problems",
    "heldout_text",
    "read_result",
    "write_result",
]
