"""``bytebound-lm-eval``: lm-eval's own command line, with the model ``bytebound`` registered.

    bytebound-lm-eval run --model bytebound --model_args pretrained=tiny --tasks hellaswag

Everything else is lm-eval's. Exit codes: 0 done, 1 failed, 2 wrong use.
"""

import importlib.util
import sys

from bytebound.errors import ByteboundError

from bytebound_evals.cli.errors import WRONG_USE, code_of, one_line
from bytebound_evals.errors import EvalError

__all__ = ["main"]


def main() -> int:
    """Run lm-eval with ``sys.argv`` and return the exit code."""
    if importlib.util.find_spec("lm_eval") is None:
        return _complain("lm-eval is not installed; pip install 'bytebound-evals[lm-eval]'")
    # Importing the module registers the model.
    from lm_eval.__main__ import cli_evaluate  # type: ignore[import-untyped]

    from bytebound_evals.lm_eval import model  # noqa: F401

    try:
        cli_evaluate()
    except (ByteboundError, EvalError) as error:
        return _complain(str(error), code_of(error))
    return 0


def _complain(message: str, code: int = WRONG_USE) -> int:
    print(f"bytebound-lm-eval: error: {one_line(message)}", file=sys.stderr, flush=True)
    return code
