r"""Strings that stand in a text without quotes, as terminals of the grammar library's language.

JSON strings are the library's own affair; here a schema's words become regular expressions over the
text itself. ``\d`` and ``\w`` are ASCII, as JSON Schema has them.
"""

import json
from collections.abc import Iterator

from llguidance import regex_to_lark

from bytebound.errors import InvalidRequestError

ANY = "/(?s:.*)/"

_YEAR, _MONTH = "[0-9]{4}", "(0[1-9]|1[0-2])"
_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DATE = (
    f"({_YEAR}-{_MONTH}-(0[1-9]|1[0-9]|2[0-8])|{_YEAR}-(0[13-9]|1[0-2])-(29|30)|"
    f"{_YEAR}-(0[13578]|1[02])-31|{_LEAP}-02-29)"
)
_HOUR_MINUTE = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR_MINUTE}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+-]{_HOUR_MINUTE})"
_DAYS = r"([0-9]+D|[0-9]+M([0-9]+D)?|[0-9]+Y([0-9]+M([0-9]+D)?)?)"
_SECONDS = r"T([0-9]+S|[0-9]+M([0-9]+S)?|[0-9]+H([0-9]+M([0-9]+S)?)?)"
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL})*"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}"
_WORD = "[0-9A-Fa-f]{1,4}"


def _ipv6() -> Iterator[str]:
    """Eight groups, of which one run of zeros may be two colons, or six and an IPv4 address."""
    yield f"({_WORD}:){{7}}{_WORD}"
    yield f"({_WORD}:){{6}}{_IPV4}"
    for before in range(8):
        head = f"({_WORD}(:{_WORD}){{{before - 1}}})?" if before else ""
        after = 7 - before
        yield f"{head}::({_WORD}(:{_WORD}){{0,{after - 1}}})?" if after else f"{head}::"
        if after >= 2:
            yield f"{head}::({_WORD}:){{0,{after - 2}}}{_IPV4}"


_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P({_DAYS}({_SECONDS})?|{_SECONDS}|[0-9]+W)",
    "email": rf"{_ATOM}(\.{_ATOM})*@{_HOST}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": "|".join(_ipv6()),
    "uuid": "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:([A-Za-z0-9._~!$&'()*+,;=:@/?#-]|%[0-9A-Fa-f]{2})+",
}
_LONGEST = {"email": 254, "hostname": 253}


def literal(text: str) -> str:
    """The terminal of one text."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def matching(pattern: str) -> str:
    """The terminal of all texts in which ``pattern``, a regular expression, is found.

    Raises:
        InvalidRequestError: parentheses that do not match. Anything else that is no pattern, or
            more than a regular language, is for the library to refuse.
    """
    found = []
    for part in _alternatives(pattern):
        body = part.removeprefix("^")
        ends = _ends_with_anchor(body)
        tail = "" if ends else "(?s:.*)"
        head = "" if len(body) < len(part) else "(?s:.*)"
        found.append(f"{head}(?:{body[:-1] if ends else body}){tail}")
    return f"/{regex_to_lark('|'.join(found), 'dw')}/"


def of_format(name: str) -> str:
    """The terminal of a string format. Raises InvalidRequestError for one that is unknown."""
    if name not in _FORMATS:
        raise InvalidRequestError(
            f"Unknown format: {name[:60]}, expected one of {', '.join(_FORMATS)}"
        )
    terminal = f"/{regex_to_lark(_FORMATS[name], 'dw')}/"
    return f"({terminal} & {of_length(1, _LONGEST[name])})" if name in _LONGEST else terminal


def of_length(least: int, most: int | None) -> str:
    """The terminal of all texts of so many characters."""
    return f"/(?s:.{{{least},{'' if most is None else most}}})/"


def _alternatives(pattern: str) -> list[str]:
    """The parts between the bars that stand in no parentheses and in no class."""
    parts, start, depth, place = list[str](), 0, 0, 0
    while place < len(pattern):
        char = pattern[place]
        if char == "\\":
            place += 1
        elif char == "[":
            place = _class_end(pattern, place)
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth < 0:
                raise InvalidRequestError("the pattern closes a group that is not open")
        elif char == "|" and depth == 0:
            parts.append(pattern[start:place])
            start = place + 1
        place += 1
    if depth:
        raise InvalidRequestError("the pattern has an unclosed group")
    return [*parts, pattern[start:]]


def _class_end(pattern: str, start: int) -> int:
    """Where the class that begins at ``start`` ends; a bracket right behind its start is in it."""
    place = start + 1
    place += pattern.startswith("^", place)
    place += pattern.startswith("]", place)
    while place < len(pattern) and pattern[place] != "]":
        place += 2 if pattern[place] == "\\" else 1
    return place


def _ends_with_anchor(body: str) -> bool:
    escapes = len(body[:-1]) - len(body[:-1].rstrip("\\"))
    return body.endswith("$") and escapes % 2 == 0
