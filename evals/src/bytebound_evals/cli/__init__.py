"""The command line ``bytebound-evals``: measures quality and speed, reports, and gates both.

torch is imported inside the commands, so that ``--help`` answers at once. Exit codes: 0 done, 1 a
gate or a run failed, 2 wrong use, 130 interrupted by Ctrl-C, 141 the reader of the output went
away. A mistake of the user is one line on stderr and never a traceback; a traceback is a bug of
this package.
"""

import logging
import os
import signal
import sys
import warnings
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line, ``sys.argv`` by default, and return its exit code."""
    _replace_closed_streams()
    _quiet_libraries()
    try:
        from bytebound_evals.cli.app import run

        return run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _replace_closed_streams() -> None:
    """Python leaves None where the caller closed a stream (``>&-``); such output is not wanted."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _quiet_libraries() -> None:
    """Keep the libraries' own remarks off stderr; variables that the user has set win."""
    for name, value in (
        ("DATASETS_VERBOSITY", "error"),
        ("HF_HUB_VERBOSITY", "error"),
        ("TRANSFORMERS_VERBOSITY", "error"),
        ("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("MPLBACKEND", "agg"),  # plots go to files
    ):
        os.environ.setdefault(name, value)
    if not sys.stderr.isatty():  # no bars of downloads in a file
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    for library in ("torch", "transformers", "huggingface_hub", "datasets", "matplotlib"):
        logging.getLogger(library).setLevel(logging.ERROR)
