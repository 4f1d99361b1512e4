"""Read a package's CHANGELOG.md: which versions it has, when they were released, what they say."""

import datetime
import re
from dataclasses import dataclass

_HEADING = re.compile(r"^## (?P<version>\S+) - (?P<date>\d{4}-\d{2}-\d{2}|unreleased)\s*$", re.M)
_ANY_HEADING = re.compile(r"^## .*$", re.M)


@dataclass(frozen=True, slots=True)
class Section:
    """One version's section. `date` is ISO, or None while the version is unreleased."""

    version: str
    date: str | None
    body: str

    @property
    def date_exists(self) -> bool:
        """Whether the date, if there is one, is in the calendar."""
        try:
            return self.date is None or bool(datetime.date.fromisoformat(self.date))
        except ValueError:
            return False


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


def odd_headings(text: str) -> list[str]:
    """Return each heading of a section that is of another form, or whose date does not exist."""
    dated_wrong = {section.date for section in sections(text) if not section.date_exists}
    odd = []
    for heading in _ANY_HEADING.findall(text):
        match = _HEADING.match(heading)
        if match is None or match["date"] in dated_wrong:
            odd.append(heading.strip())
    return odd
