"""Needle in a haystack: a sentence with a made-up number in a long text, and a question about it.

For every length and depth the prompt is the text cut to that length, with the sentence at that
share of it, then the question; the needle is found if the reply holds the number. Sentence and
number follow from trial, length and depth, so every run asks the same.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bytebound import Engine, SamplingParams

from bytebound_evals.answers import THINK_START, without_thought
from bytebound_evals.errors import SettingError, SourceError
from bytebound_evals.gsm8k import MODES

PLACES = (
    "Arlen", "Brasov", "Cadiz", "Dover", "Esbjerg", "Fargo", "Girona", "Hilo", "Izmir", "Jena",
    "Kotor", "Lugo", "Malmo", "Narvik", "Oulu", "Pecs", "Quito", "Rijeka", "Split", "Turku",
)  # fmt: skip
DEFAULT_DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
SHORTEST = 256
ANSWER_TOKENS = 48
_BREAK = re.compile(r"(?<=[.!?])\s+|\n+")


@dataclass(frozen=True, slots=True)
class NeedleSettings:
    """Which prompts are made; lengths in tokens, prompt and answer together."""

    lengths: tuple[int, ...]
    depths: tuple[float, ...] = DEFAULT_DEPTHS
    """Where the needle stands, as shares of the text: 0 its beginning, 1 its end."""
    trials: int = 1
    """Needles for each length and depth."""
    mode: str = "chat"
    """"chat" through the model's template, or "completion" of a plain text."""
    thinking: bool = False
    max_tokens: int = ANSWER_TOKENS

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise SettingError(f"mode is {self.mode!r}, expected one of {', '.join(MODES)}")
        if self.thinking and self.mode != "chat":
            raise SettingError("thinking needs the mode chat: a completion has no template")
        if not self.lengths or not self.depths or self.trials < 1 or self.max_tokens < 1:
            raise SettingError("a needle run needs a length, a depth, a trial and an answer token")
        shortest = SHORTEST + self.max_tokens
        for length in self.lengths:
            if length < shortest:
                raise SettingError(
                    f"length {length}: expected at least {shortest} tokens, to hold question, "
                    f"needle and answer"
                )
        for depth in self.depths:
            if not 0 <= depth <= 1:
                raise SettingError(f"depth {depth:g}: expected a share from 0 to 1")


@dataclass(frozen=True, slots=True)
class Needle:
    """One hidden fact."""

    place: str
    number: str

    @property
    def sentence(self) -> str:
        """What stands in the text."""
        return f"The secret number of {self.place} is {self.number}."

    @property
    def question(self) -> str:
        """What is asked behind it."""
        return f"What is the secret number of {self.place}? Answer with the number only."


@dataclass(frozen=True, slots=True)
class Find:
    """One prompt and what came back."""

    length: int
    depth: float
    trial: int
    prompt_tokens: int
    number: str
    reply: str
    found: bool


@dataclass(frozen=True, slots=True)
class NeedleTable:
    """All prompts of a run."""

    finds: tuple[Find, ...]

    @property
    def lengths(self) -> list[int]:
        """Columns, ascending."""
        return sorted({find.length for find in self.finds})

    @property
    def depths(self) -> list[float]:
        """Rows, ascending."""
        return sorted({find.depth for find in self.finds})

    def share(self, length: int | None = None, depth: float | None = None) -> float:
        """Share of needles found in one cell, row, column or everywhere."""
        chosen = [
            find.found
            for find in self.finds
            if length in (None, find.length) and depth in (None, find.depth)
        ]
        return sum(chosen) / len(chosen)

    def as_dict(self) -> dict[str, Any]:
        """What reports show, in JSON's types."""
        return {
            "found": self.share(),
            "prompts": len(self.finds),
            "cells": [
                {"length": length, "depth": depth, "found": self.share(length, depth)}
                for length in self.lengths
                for depth in self.depths
            ],
        }


def default_lengths(limit: int) -> tuple[int, ...]:
    """Powers of two from 1,024 below ``limit``, and ``limit`` itself."""
    lengths = [1 << power for power in range(10, 31) if 1 << power < limit]
    return (*lengths, limit)


def make_needle(length: int, depth: float, trial: int) -> Needle:
    """The needle of one prompt."""
    draw = random.Random(f"needle {length} {depth:.4f} {trial}")
    return Needle(draw.choice(PLACES), str(draw.randrange(1_000_000, 10_000_000)))


def measure_needles(
    engine: Engine,
    haystack: str,
    settings: NeedleSettings,
    on_find: Callable[[Find], object] | None = None,
) -> NeedleTable:
    """Ask for every needle, greedy.

    Raises:
        SettingError: a length is beyond the engine's context.
        SourceError: the haystack is empty or holds one of the needles' sentences already.
    """
    too_long = [length for length in settings.lengths if length > engine.max_len]
    if too_long:
        raise SettingError(
            f"length {too_long[0]} is beyond the context of {engine.max_len} tokens; load with a "
            "larger max_len where the model has one, or ask for shorter lengths"
        )
    builder = _PromptBuilder(engine, haystack, settings)
    params = SamplingParams(max_tokens=settings.max_tokens, temperature=0.0)
    finds = []
    for length in settings.lengths:
        for depth in settings.depths:
            for trial in range(settings.trials):
                needle = make_needle(length, depth, trial)
                ids = builder.build(needle, length, depth)
                reply = engine.generate(ids, params).text
                find = Find(
                    length, depth, trial, len(ids), needle.number, reply,
                    found=_holds(reply, needle.number, thinking=settings.thinking),
                )  # fmt: skip
                finds.append(find)
                if on_find is not None:
                    on_find(find)
    return NeedleTable(tuple(finds))


def hide(text: str, sentence: str, depth: float) -> str:
    """``text`` with ``sentence`` between two of its sentences, the nearest to ``depth``."""
    places = [0, *(found.end() for found in _BREAK.finditer(text)), len(text)]
    place = min(places, key=lambda one: abs(one - depth * len(text)))
    before, after = text[:place].rstrip(), text[place:].lstrip()
    return "\n".join(part for part in (before, sentence, after) if part)


def _holds(reply: str, number: str, *, thinking: bool) -> bool:
    """Whether the number stands in the reply, however its digits are grouped."""
    answer = without_thought((THINK_START if thinking else "") + reply)
    grouped = re.sub(r"(?<=\d)[,\s\u00a0\u202f](?=\d{3})", "", answer)
    return re.search(rf"(?<!\d){number}(?!\d)", grouped) is not None


class _PromptBuilder:
    """Makes prompts of a length; the haystack is tokenized once."""

    def __init__(self, engine: Engine, haystack: str, settings: NeedleSettings) -> None:
        self._engine = engine
        self._settings = settings
        if not haystack.strip():
            raise SourceError("the haystack is empty; give a text with words in it")
        if "The secret number of" in haystack:
            raise SourceError("the haystack holds sentences of needles already; give another text")
        self._ids = engine.tokenizer.encode(haystack)
        longest = max(settings.lengths)
        if len(self._ids) < longest:  # the text is repeated until it fills the longest prompt
            times = 1 + longest // len(self._ids)
            self._ids = engine.tokenizer.encode("\n\n".join([haystack.strip()] * (times + 1)))

    def build(self, needle: Needle, length: int, depth: float) -> list[int]:
        """The longest prompt that leaves room for the answer; a few tokens may stay free."""
        room = length - self._settings.max_tokens
        count = room - len(self._prompt("", needle, depth))
        while count > 0:
            ids = self._prompt(self._text(count), needle, depth)
            if len(ids) <= room:
                return ids
            count -= len(ids) - room
        raise SettingError(f"length {length} has no room for a text beside question and needle")

    def _text(self, count: int) -> str:
        # A cut may fall within a character; what is left of it is dropped.
        return self._engine.tokenizer.decode(self._ids[:count]).rstrip("\ufffd")

    def _prompt(self, text: str, needle: Needle, depth: float) -> list[int]:
        tokenizer = self._engine.tokenizer
        hidden = hide(text, needle.sentence, depth)
        if self._settings.mode == "completion":
            return tokenizer.encode(
                f"{hidden}\n\nQuestion: {needle.question}\nAnswer: The secret number of "
                f"{needle.place} is"
            )
        content = f"{hidden}\n\n{needle.question}"
        return tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], enable_thinking=self._settings.thinking
        )


def lengths_of(words: Sequence[str]) -> tuple[int, ...]:
    """Lengths as a user writes them: ``4096``, ``4k`` (4,096) or ``1m``.

    Raises:
        SettingError: a word is no length.
    """
    lengths = []
    for word in words:
        found = re.fullmatch(r"(\d+)([km]?)", word.strip().lower())
        if found is None:
            raise SettingError(f"length {word!r}: expected a number of tokens such as 4096 or 4k")
        lengths.append(int(found[1]) * {"": 1, "k": 1 << 10, "m": 1 << 20}[found[2]])
    return tuple(dict.fromkeys(lengths))
