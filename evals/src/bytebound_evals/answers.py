r"""The number that a reply gives as its answer, exact; knows no model.

Where it is looked for, the first place that holds a number wins: behind the last ``####``; in the
last ``\boxed{}``; behind the last "answer is", "answer:" or "answer =" on its line; the last number
of the text. A thought is no answer: what stands before the last ``</think>`` is cut away, and a
reply whose thought never ends has none. Numbers may be signed, have thousands groups (comma, thin
space, TeX), decimals, a currency or unit around them, or be a fraction; "42", "42.0", "$42.00" and
"42 apples" are the same answer. Where a place holds an equation, its right side counts.
"""

import re
from fractions import Fraction

THINK_START, THINK_END = "<think>", "</think>"

# A sign counts only where no number or word ends in front of it: "10-5" holds 10 and 5.
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w)\]])[-+])?(?:[$€£]\s?)?(?=\.?\d)"
    r"(?:(?P<grouped>\d{1,3}(?:,\d{3})+)(?!\d)|(?P<digits>\d+))?(?P<decimals>\.\d+)?"
    r"(?:\s?/\s?(?P<denominator>\d+(?!\d*\.\d)))?"
)
_MARKER = re.compile(r"####(?P<rest>(?:(?!####)[^\n])*)")
_BOXED = re.compile(r"\\boxed\s*\{")
_PHRASE = re.compile(r"answer(?:\s+is|\s*[:=])(?P<rest>[^\n]*)", re.IGNORECASE)
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_CALCULATION = re.compile(r"<<[^<>]*>>")
# The 2 of "48 cm^2" belongs to the unit.
_UNIT_POWER = re.compile(r"(?<=[A-Za-z])(?P<brace>\}?)\s?\^\s?(?:\d+|\{\d+\})")
_TEX_GROUP = re.compile(r"(?<=\d)(?:\{,\}|\\[,!; ]|[\u00a0\u2009\u202f'’])(?=\d{3}(?!\d))")
_LONGEST = 300  # characters: what is longer is no answer, and Python refuses to read it
_MINUS = str.maketrans("−–﹣－", "----")


def extract_answer(reply: str) -> Fraction | None:
    """The answer of a whole reply, or None where it gives none."""
    text = _plain(without_thought(reply))
    markers = [found["rest"] for found in _MARKER.finditer(text)]
    phrases = [found["rest"] for found in _PHRASE.finditer(text)]
    for places, pick in ((markers, 0), (_boxed(text), -1), (phrases, 0)):
        for place in places[-1:]:
            numbers = _numbers(place.rpartition("=")[2]) or _numbers(place)
            if numbers:
                return numbers[pick]
    numbers = _numbers(text)
    return numbers[-1] if numbers else None


def without_thought(reply: str) -> str:
    """The reply behind its thought; empty where a thought was opened and never closed."""
    before, end, after = reply.rpartition(THINK_END)
    if THINK_START in after:
        return ""
    return after if end else before + after


def show(answer: Fraction | None) -> str | None:
    """The answer as logs write it: a whole number, a decimal where one is exact, else ``p/q``."""
    if answer is None:
        return None
    reduced = answer.denominator
    for prime in (2, 5):
        while reduced % prime == 0:
            reduced //= prime
    if reduced != 1:
        return f"{answer.numerator}/{answer.denominator}"
    if answer.denominator == 1:
        return str(answer.numerator)
    return _exact_decimal(answer, places=answer.denominator.bit_length())


def _exact_decimal(answer: Fraction, places: int) -> str:
    scaled = abs(answer) * 10**places
    digits = str(scaled.numerator // scaled.denominator).zfill(places + 1)
    sign = "-" if answer < 0 else ""
    return f"{sign}{digits[:-places]}.{digits[-places:]}".rstrip("0").rstrip(".")


def _plain(text: str) -> str:
    text = _UNIT_POWER.sub(r"\g<brace>", _CALCULATION.sub("", text)).translate(_MINUS)
    text = _FRACTION.sub(r"\1/\2", text.replace("\\$", "$").replace("\\%", "%"))
    return _TEX_GROUP.sub(",", text)


def _boxed(text: str) -> list[str]:
    r"""What stands in each ``\boxed{}``, braces inside it balanced."""
    contents = []
    for found in _BOXED.finditer(text):
        depth, start = 1, found.end()
        for place in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                contents.append(text[start:place])
                break
    return contents


def _numbers(text: str) -> list[Fraction]:
    numbers = []
    for found in _NUMBER.finditer(text):
        if len(found[0]) > _LONGEST:
            continue
        whole = (found["grouped"] or found["digits"] or "").replace(",", "")
        value = Fraction(f"{whole or 0}{found['decimals'] or ''}")
        if found["denominator"] and int(found["denominator"]):
            value /= int(found["denominator"])
        numbers.append(-value if found["sign"] == "-" else value)
    return numbers
