"""A document as a list of blocks, written as Markdown and as one HTML file with its pictures."""

import base64
import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Heading:
    """``level`` 1 is the title."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text; what looks like markup in it stays text."""

    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Pairs of a label and its text: the conditions above a table."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table; all columns but the first are numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG file and what it shows."""

    file: Path
    text: str


Block = Heading | Paragraph | Facts | Grid | Picture

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
th, td { border-bottom: 1px solid #ccc; padding: .25rem .7rem; text-align: right }
th:first-child, td:first-child { text-align: left }
td { font-variant-numeric: tabular-nums }
img { max-width: 100% }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; font-size: 13px }
dt { font-weight: 600 }
dd { margin: 0; overflow-wrap: anywhere }
@media (prefers-color-scheme: dark) {
  body { background: #161616; color: #ddd } th, td { border-color: #444 }
  img { background: #fff }
}
"""


def to_markdown(blocks: Sequence[Block], folder: Path) -> str:
    """Markdown that lies in ``folder`` and names pictures relative to it."""
    return "\n\n".join(_markdown(block, folder) for block in blocks) + "\n"


def to_html(blocks: Sequence[Block]) -> str:
    """One HTML page that needs no other file.

    Raises:
        OSError: a picture cannot be read.
    """
    title = next((b.text for b in blocks if isinstance(b, Heading)), "Report")
    body = "\n".join(_html(block) for block in blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _markdown(block: Block, folder: Path) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_inline(text)}"
        case Paragraph(text):
            return _inline(text)
        case Facts(pairs):
            return "\n".join(f"- **{_inline(label)}**: {_inline(text)}" for label, text in pairs)
        case Picture(file, text):
            return f"![{_inline(text)}]({file.relative_to(folder).as_posix()})"
        case Grid(columns, rows):
            lines = [columns, ["---", *["---:"] * (len(columns) - 1)]]
            cells = [[_inline(word).replace("|", "\\|") for word in row] for row in rows]
            return "\n".join(f"| {' | '.join(line)} |" for line in [*lines, *cells])


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{html.escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{html.escape(text)}</p>"
        case Facts(pairs):
            inner = "".join(
                f"<dt>{html.escape(label)}</dt><dd>{html.escape(text)}</dd>"
                for label, text in pairs
            )
            return f"<dl>{inner}</dl>"
        case Picture(file, text):
            data = base64.b64encode(file.read_bytes()).decode()
            return f'<img alt="{html.escape(text)}" src="data:image/png;base64,{data}">'
        case Grid(columns, rows):
            return "".join(["<table>", *_rows(columns, rows), "</table>"])


def _rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "<tr>" + "".join(f"<th>{html.escape(word)}</th>" for word in columns) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{html.escape(word)}</td>" for word in row) + "</tr>"


def _inline(text: str) -> str:
    """Text of a file in Markdown: on one line, and no tag of HTML."""
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").split())
