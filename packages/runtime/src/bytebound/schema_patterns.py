"""Patterns that mean the same to the grammar library and to those who validate its answers.

The library reads a pattern as Rust's regular expressions. JSON Schema means ECMAScript's, and some
validators use their own language's. What these read in two ways is refused here; what the library
cannot do at all (look-around, back-references) is refused by it.
"""

import re

from bytebound.errors import InvalidRequestError

_QUANTIFIER = re.compile(r"[*+?]|\{\d+(,\d*)?\}")
_SET_OPERATIONS = ("&&", "--", "~~")


def check_pattern(pattern: str) -> None:
    """Refuse what two readers of the pattern would take for different things.

    Raises:
        InvalidRequestError: a set operation, a bracket or a class within a class, a class that is
            empty or begins with its end, or a quantifier of a quantifier.
    """
    place = 0
    while place < len(pattern):
        if pattern[place] == "\\":
            place += 2
        elif pattern[place] == "[":
            place = _end_of_class(pattern, place)
        elif found := _QUANTIFIER.match(pattern, place):
            place = found.end()
            lazy = pattern.startswith("?", place)  # the same texts match
            if (more := _QUANTIFIER.match(pattern, place + lazy)) is not None:
                raise _ambiguous(pattern[found.start() : more.end()], "repeats a repetition")
            place += lazy
        else:
            place += 1


def _end_of_class(pattern: str, start: int) -> int:
    """The place behind a class; the end of the pattern where it is not closed."""
    place = start + 1
    place += pattern.startswith("^", place)
    if pattern.startswith("]", place):
        raise _ambiguous(pattern[start : place + 1], "is an empty class, or one with a bracket")
    while place < len(pattern) and pattern[place] != "]":
        if pattern[place] == "[":
            raise _ambiguous(pattern[start : place + 1], "has a bracket in a class")
        if pattern.startswith(_SET_OPERATIONS, place):
            raise _ambiguous(pattern[start : place + 2], "may be an operation on sets")
        place += 2 if pattern[place] == "\\" else 1
    return place + 1


def _ambiguous(part: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{part[-60:]!r} {why}, which is read in more than one way; put a backslash before signs "
        "that are meant as they stand"
    )
