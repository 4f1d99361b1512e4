"""Read a package's CHANGELOG.md: which versions it has, when they were released, what they say."""

import re
from dataclasses import dataclass

_HEADING = re.compile(r"^## (?P<version>\S+) - (?P<date>\d{4}-\d{2}-\d{2}|unreleased)\s*$", re.M)


@dataclass(frozen=True, slots=True)
class Section:
    """One version's section. `date` is ISO, or None while the version is unreleased."""

    version: str
    date: str | None
    body: str


def sections(text: str) -> list[Section]:
    """Return the sections in file order; a heading reads `## 0.1.0 - 2026-12-01 | unreleased`."""
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    return [
        Section(
            version=heading["version"],
            date=None if heading["date"] == "unreleased" else heading["date"],
            body=text[heading.end() : end].strip(),
        )
        for heading, end in zip(headings, ends, strict=True)
    ]


def find_section(text: str, version: str) -> Section | None:
    """Return the section of that version, or None."""
    return next((section for section in sections(text) if section.version == version), None)
