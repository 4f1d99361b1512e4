"""Measure the quality and speed of bytebound models. Composes the other three packages."""

from bytebound_evals.data import Problem, arithmetic_problems, heldout_text
from bytebound_evals.errors import DataError, EvalError

__version__ = "0.1.0"

__all__ = [
    "DataError",
    "EvalError",
    "Problem",
    "__version__",
    "arithmetic_problems",
    "heldout_text",
]
