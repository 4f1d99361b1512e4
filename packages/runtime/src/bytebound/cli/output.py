"""Writing: the answer and JSON to stdout, remarks about the run to stderr.

stdout never holds anything but the answer, so that it can be piped; the line of numbers after an
answer and everything else goes to stderr, wherever the two lead.
"""

import json
import math
import os
import sys
from typing import IO, Any

from bytebound.cli import is_utf8
from bytebound.cli.errors import OutputError, ReaderGoneError, one_line
from bytebound.results import GenerationStats

_DIM = "\033[2m"
_PLAIN = "\033[0m"


def emit(text: str) -> None:
    """Write to stdout at once; raises ReaderGoneError or OutputError."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError as error:
        # typer would take the original for its own affair.
        raise ReaderGoneError from error
    except OSError as error:
        raise OutputError(f"the output cannot be written: {error.strerror or error}") from error


def emit_json(value: Any) -> None:
    """Write one value as one line of JSON; numbers that JSON does not have become null."""
    text = json.dumps(_finite(value), ensure_ascii=not is_utf8(sys.stdout.encoding))
    emit(text + "\n")


def remark(text: str) -> None:
    """Write one line about the run to stderr, dimmed on a terminal."""
    print(dimmed(one_line(text), sys.stderr), file=sys.stderr, flush=True)


def dimmed(text: str, stream: IO[str]) -> str:
    """``text`` in a faint colour if ``stream`` is a terminal that shows colours."""
    return f"{_DIM}{text}{_PLAIN}" if text and shows_colours(stream) else text


def shows_colours(stream: IO[str]) -> bool:
    """Whether escape sequences are welcome; ``NO_COLOR`` and a dumb terminal say no."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not plain


def stats_line(
    stats: GenerationStats, finish_reason: str, draft: str, *, random_weights: bool = False
) -> str:
    """The line of numbers after an answer."""
    parts = ["random weights, tokens are noise"] if random_weights else []
    parts += [
        f"{stats.completion_tokens} tokens, {stats.tok_per_s:.1f} tokens/s",
        f"prompt {stats.prompt_tokens} tokens, {stats.prefill_s:.2f} s",
    ]
    if draft != "none" and stats.steps:
        parts.append(f"{stats.mean_accepted_len:.2f} accepted per step ({draft})")
    if stats.percent_of_limit is not None:
        parts.append(f"{stats.percent_of_limit:.1f} % of the limit")
    return f"[{' | '.join(parts)} | end: {finish_reason}]"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
