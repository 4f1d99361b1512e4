"""Rule for Markdown: a relative link leads to a file or folder that git tracks.

Links inside code are text. Addresses with a scheme and anchors within a file are not followed.
`check_workspace` runs this with its own rules.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote

_FENCE = re.compile(r"^ {0,3}(?P<marks>`{3,}|~{3,})")
_CODE_SPAN = re.compile(r"(?<!`)(?P<marks>`+)(?!`).+?(?<!`)(?P=marks)(?!`)", re.S)
_LINK = re.compile(r"\]\(\s*(?:<(?P<angle>[^>\n]*)>|(?P<bare>[^\s()]+))")
_DEFINITION = re.compile(r"^ {0,3}\[[^\]\n]+\]:\s*(?:<(?P<angle>[^>\n]*)>|(?P<bare>\S+))", re.M)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//|#")


def check_links(root: Path, tracked: Iterable[str]) -> Iterator[str]:
    """Yield each relative link of a tracked Markdown file that leads to nothing tracked."""
    files = set(tracked)
    there = files | {str(parent) for name in files for parent in Path(name).parents}
    for name in sorted(files):
        file = root / name
        if not name.endswith(".md") or not file.is_file():
            continue
        text = blank_code(file.read_text(encoding="utf-8", errors="replace"))
        for pattern in (_LINK, _DEFINITION):
            for match in pattern.finditer(text):
                target = match["angle"] or match["bare"] or ""
                if not _SCHEME.match(target) and _resolve(name, target) not in there:
                    number = text.count("\n", 0, match.start()) + 1
                    yield f"{name}:{number}: the link to {target} leads to no tracked file"


def _resolve(name: str, target: str) -> str:
    """The path below the root that a link means; one that begins with / means the root."""
    path = unquote(target.partition("#")[0].partition("?")[0])
    base = "" if path.startswith("/") else posixpath.dirname(name)
    return posixpath.normpath(posixpath.join(base, path.lstrip("/")))


def blank_code(text: str) -> str:
    """Return the text with fenced, indented and inline code emptied; line numbers stay."""
    kept: list[str] = []
    fence = ""
    may_indent = True  # an indented block begins behind a blank line
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if fence:
            closes = found and found["marks"].startswith(fence) and not line.strip(" `~\t")
            fence = "" if closes else fence
            kept.append("")
        elif found:
            fence = found["marks"]
            kept.append("")
        elif may_indent and line.startswith(("    ", "\t")):
            kept.append("")
            continue
        else:
            kept.append(line)
        may_indent = not kept[-1].strip()
    return _CODE_SPAN.sub(lambda span: re.sub(r"[^\n]", " ", span[0]), "\n".join(kept))
