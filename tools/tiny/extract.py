"""Readers: one file of a package -> plain-text documents.

Contract: `READERS[name](path)` yields `(suffix, text)` pairs; a file that holds several documents
(a Bible, six novels) yields several. No network, no state. `clean` is applied to every text by the
caller.
"""

from __future__ import annotations

import gzip
import re
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

Documents = Iterator[tuple[str, str]]

_BLOCK = {
    "p",
    "div",
    "section",
    "article",
    "main",
    "table",
    "tr",
    "dl",
    "dd",
    "dt",
    "ul",
    "ol",
    "li",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "pre",
    "blockquote",
    "br",
    "hr",
    "figure",
    "body",
    "details",
}
_VOID = {
    "br",
    "hr",
    "img",
    "input",
    "meta",
    "link",
    "col",
    "wbr",
    "area",
    "base",
    "embed",
    "source",
}
_DROP_TAGS = {
    "script",
    "style",
    "nav",
    "header",
    "footer",
    "noscript",
    "title",
    "button",
    "form",
    "svg",
    "head",
}
_KEEP_TAGS = {
    "html",
    "body",
    "main",
    "pre",
}  # mdBook writes the state of its sidebar as a class of <html>
_DROP_CLASS = re.compile(
    r"\b(sphinxsidebar|footer|related|navheader|navfooter|toc|toctree-wrapper|headerlink|menu|nosearch|sidebar|"
    r"fancy_toc|mobile-nav|nav-chapters|bs-sidenav|breadcrumbs|langs|buttons|admonition-nav)\b"
)
_DROP_ID = {
    "quickview",
    "footer",
    "path",
    "leftnav",
    "sidebar",
    "menu-bar",
    "docs-navigation",
    "page-header",
    "sidebarbutton",
    "preamble-nav",
    "nv-tree",
}


class _TextOf(HTMLParser):
    """Keeps the words of a page; drops navigation; leaves `<pre>` as it stands."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.open: list[tuple[str, bool]] = []  # (tag, is dropped)
        self.dropped = 0
        self.pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BLOCK and not self.dropped:
            self.parts.append("\n")
            if tag == "li":
                self.parts.append("- ")
            elif tag[0] == "h" and tag[1:].isdigit():
                self.parts.append("\n")
        if tag in _VOID:
            return
        named = dict(attrs)
        furniture = (
            bool(_DROP_CLASS.search(named.get("class") or "")) or named.get("id") in _DROP_ID
        )
        drop = tag in _DROP_TAGS or (furniture and tag not in _KEEP_TAGS)
        self.open.append((tag, drop))
        self.dropped += drop
        self.pre += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        # Old HTML leaves <li> and <p> open: close up to the matching tag, or ignore a stray end.
        if all(name != tag for name, _ in self.open):
            return
        while self.open:
            name, drop = self.open.pop()
            self.dropped -= drop
            self.pre -= name == "pre"
            if name == tag:
                break
        if tag in _BLOCK and not self.dropped:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self.dropped:
            self.parts.append(data if self.pre else re.sub(r"\s+", " ", data))


def _read(path: Path) -> str:
    raw = path.read_bytes()
    if path.suffix == ".gz":
        raw = gzip.decompress(raw)
    return raw.decode("utf-8")


def read_html(path: Path) -> Documents:
    parser = _TextOf()
    parser.feed(path.read_bytes().decode("utf-8", errors="ignore"))
    lines = [line.rstrip() for line in "".join(parser.parts).replace("\u00b6", "").split("\n")]
    # A space that followed a block tag is layout, not indentation of code (which is two or more
    # wide).
    yield "", "\n".join(line[1:] if re.match(r" \S", line) else line for line in lines)


def read_text(path: Path) -> Documents:
    yield "", _read(path)


def read_code(path: Path) -> Documents:
    text = _read(path)
    if re.search(r"\bL?GPL\b|General Public License", text[:4000]):
        return
    lines = text.split("\n")
    digits = sum(map(str.isdigit, text))
    if len(text) > 150_000 or max(map(len, lines)) > 400 or digits > 0.15 * len(text):
        return  # generated tables and minified files teach nothing
    yield "", text


def read_pod(path: Path) -> Documents:
    """Perl's pod with its inline codes (`C<...>`, `B<...>`, `L<...>`) unwrapped."""
    text = path.read_bytes().decode("utf-8", errors="ignore")
    for _ in range(3):  # codes nest
        text = re.sub(r"\b[BCIFLSX]<(?:<+ )?([^<>]*?)(?: >+)?>", r"\1", text)
    text = text.replace("E<gt>", ">").replace("E<lt>", "<")
    text = re.sub(r"^=(over|back|cut|pod|encoding|begin|end|for).*$", "", text, flags=re.M)
    text = re.sub(r"^=head(\d) ", lambda m: "#" * int(m[1]) + " ", text, flags=re.M)
    yield "", re.sub(r"^=item ", "- ", text, flags=re.M)


def read_bible(path: Path) -> Documents:
    """One document per five chapters. Debian's `bible` command (bible-kjv) unpacks the file."""
    del path
    run = subprocess.run(
        ["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True
    )
    books: dict[str, list[str]] = {}
    for line in run.stdout.splitlines():
        match = re.match(r"([1-3]?[A-Za-z]+)(\d+):(\d+) (.*)", line)
        if match:
            part = f"{match[1]}-{(int(match[2]) - 1) // 5:02d}"
            heading = [f"\n{match[1]} chapter {match[2]}\n"] if match[3] == "1" else []
            books.setdefault(part, []).extend([*heading, f"{match[3]} {match[4]}"])
    for part, verses in books.items():
        yield part, "\n".join(verses)


def read_rdata(path: Path) -> Documents:
    """Chapters of the novels in an R lazy-load database: zlib streams of lines (CHARSXP)."""
    raw = path.read_bytes()
    number = 0
    at = 0
    while at + 4 < len(raw):
        block = zlib.decompressobj()
        data = block.decompress(raw[at + 4 :])
        at = len(raw) - len(block.unused_data)
        lines, pos = [], data.find(b"\x00\x04\x00\x09")
        while pos >= 0 and pos + 8 <= len(data):
            (size,) = struct.unpack(">I", data[pos + 4 : pos + 8])
            lines.append(data[pos + 8 : pos + 8 + size].decode("ascii", errors="ignore"))
            pos += 8 + size
            if data[pos : pos + 4] != b"\x00\x04\x00\x09":
                break
        number += 1
        chapters = re.split(r"\n(?=(?:CHAPTER|Chapter|VOLUME) )", "\n".join(lines))
        for index, chapter in enumerate(chapters):
            yield f"{number}-{index:03d}", chapter


def read_jargon(path: Path) -> Documents:
    text = _read(path)
    for index in range(0, len(text), 20_000):
        yield f"{index:08d}", text[index : index + 20_000]


READERS: dict[str, Callable[[Path], Documents]] = {
    "html": read_html,
    "text": read_text,
    "code": read_code,
    "pod": read_pod,
    "bible": read_bible,
    "rdata": read_rdata,
    "jargon": read_jargon,
}


def clean(text: str) -> str:
    """Text without control characters, with unix line ends and single blank lines."""
    text = (
        text.replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ").replace("\ufeff", "")
    )
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", text)
    text = re.sub(r"[ \t]+$", "", text, flags=re.M)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
