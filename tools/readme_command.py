"""Print a command of README.md, so that what CI runs and what the README says cannot drift apart.

The README marks each with a comment above its code block: `<!-- command: NAME -->`.

    python tools/readme_command.py NAME [--readme FILE]

Exit code 0: printed; 2: there is no such command, or more than one.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

_BLOCK = re.compile(
    r"^<!-- command: (?P<name>[\w-]+) -->\n+```(?:sh|bash)\n(?P<body>.*?)^```$", re.M | re.S
)


def find_command(text: str, name: str) -> str:
    """Return the shell text of the one block marked `name`.

    Raises:
        LookupError: no block, or several, have that mark.
    """
    found = [match["body"].strip() for match in _BLOCK.finditer(text) if match["name"] == name]
    if len(found) != 1:
        names = sorted({match["name"] for match in _BLOCK.finditer(text)})
        raise LookupError(
            f"expected one command marked {name!r}, found {len(found)};"
            f" marked are: {', '.join(names) or 'none'}"
        )
    return found[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the command; return the exit code."""
    parser = argparse.ArgumentParser(description="Print a command of the README.")
    parser.add_argument("name")
    here = Path(__file__).resolve().parent.parent
    parser.add_argument("--readme", type=Path, default=here / "README.md")
    options = parser.parse_args(arguments)
    try:
        print(find_command(options.readme.read_text(encoding="utf-8"), options.name))
    except (OSError, LookupError) as error:
        print(f"readme_command: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
