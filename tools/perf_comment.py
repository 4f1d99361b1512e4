"""Make a comment of a perf run's summary, which code of a pull request wrote: as text, never more.

Tables, headings and emphasis stay. Tags of HTML, links, pictures, addresses and mentions become the
characters that spell them. What is too long for a comment is cut at a line.

    python tools/perf_comment.py SUMMARY.md [--run URL]

Prints the comment. Exit code 2: the file cannot be read.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

MARKER = "<!-- bytebound-perf-gate -->"
"""The first line; the workflow finds an earlier comment by it."""
MAX_CHARS = 60_000
"""A comment may have 65,536; escaping makes some more."""
_INVISIBLE = "\u200b"
_ESCAPES = (
    ("<", "&lt;"),
    (">", "&gt;"),
    ("[", "\\["),
    ("]", "\\]"),
    ("@", f"@{_INVISIBLE}"),
    ("#", f"#{_INVISIBLE}"),
    ("://", f":{_INVISIBLE}//"),
    ("www.", f"www{_INVISIBLE}."),
)


def comment(summary: str, run: str | None) -> str:
    """Return the comment's text; ``run`` is the address of the run's own page."""
    lines = [_line(line) for line in summary.splitlines() if line.strip() != MARKER]
    kept, size = list[str](), 0
    for line in lines:
        size += len(line) + 1
        if size > MAX_CHARS:
            kept.append("\n... cut; the run's page has all of it.")
            break
        kept.append(line)
    footer = [] if run is None else ["", f"[The run]({run})"]
    return "\n".join([MARKER, *kept, *footer]) + "\n"


def _line(text: str) -> str:
    marks = len(text) - len(text.lstrip("#"))  # a heading is one at the beginning only
    head, rest = (text[:marks], text[marks:]) if 0 < marks <= 6 else ("", text)
    for sign, spelt in _ESCAPES:
        rest = rest.replace(sign, spelt)
    return head + "".join(sign for sign in rest if sign.isprintable() or sign == _INVISIBLE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comment; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("summary", type=Path)
    parser.add_argument("--run", metavar="URL")
    options = parser.parse_args(arguments)
    try:
        text = options.summary.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        print(f"perf_comment: {options.summary}: {error.strerror or error}", file=sys.stderr)
        return 2
    sys.stdout.write(comment(text, options.run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
