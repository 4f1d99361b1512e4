"""The command line: ``bytebound generate | chat | serve | info | diff``.

Knows the engine's public surface and nothing below it. torch and transformers are imported inside
the commands, so that ``--help`` answers at once. Exit codes: 0 done, 1 a check or a run failed,
2 wrong use, 130 interrupted by Ctrl-C, 141 the reader of the output went away. A mistake of the
user is one line on stderr and never a traceback; a traceback is a bug of this package.
"""

import os
import signal
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line, ``sys.argv`` by default, and return its exit code."""
    _replace_closed_streams()
    _quiet_libraries()
    _never_fail_to_encode()
    try:
        from bytebound.cli.app import run

        return run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:  # not inside an answer: while loading, or waiting for input
        return 128 + signal.SIGINT


def _replace_closed_streams() -> None:
    """Python leaves None where the caller closed a stream (``>&-``); such output is not wanted."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _quiet_libraries() -> None:
    """Keep the libraries' own remarks off stderr: it belongs to the progress bar and the errors.

    Done here and not on import of the package: a program that uses the engine decides for itself.
    Variables that the user has set win.
    """
    import logging
    import warnings

    for name, value in (
        ("TRANSFORMERS_VERBOSITY", "error"),
        ("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1"),
        ("HF_HUB_DISABLE_PROGRESS_BARS", "1"),
        ("HF_HUB_OFFLINE", "1"),  # nothing is ever downloaded, so nothing asks the network either
        ("TOKENIZERS_PARALLELISM", "false"),
    ):
        os.environ.setdefault(name, value)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    for library in ("torch", "transformers", "huggingface_hub"):
        logging.getLogger(library).setLevel(logging.ERROR)


def _never_fail_to_encode() -> None:
    """Where the output cannot hold every character, show a question mark instead of failing."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None and not is_utf8(sys.stdout.encoding):
        reconfigure(errors="replace")


def is_utf8(encoding: str | None) -> bool:
    """Whether a stream of this encoding takes any character."""
    return (encoding or "").lower().replace("-", "").replace("_", "") == "utf8"
