"""Engines for tests of quality: one shared real model, and stand-ins with no weights."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import bytebound
import torch
from bytebound.text.tokenizer import Tokenizer


@lru_cache(maxsize=1)
def tiny() -> bytebound.Engine:
    """The shipped model in float32 on the CPU; tests do not change it."""
    return bytebound.Engine.from_pretrained("tiny", device="cpu", dtype="float32", max_len=1024)


class TableEngine:
    """Gives logits by a function of the ids read so far; counts how often it was asked."""

    def __init__(self, row: Callable[[Sequence[int]], Sequence[float]]) -> None:
        self._row = row
        self.scored: list[tuple[int, ...]] = []

    def score(self, ids: Iterable[int]) -> torch.Tensor:
        given = tuple(ids)
        self.scored.append(given)
        return torch.tensor([self._row(given[: t + 1]) for t in range(len(given))])


@dataclass
class _Result:
    text: str
    finish_reason: str
    token_ids: list[int]


@dataclass
class _Event:
    text_delta: str
    finish_reason: str | None


class ReplyEngine:
    """Answers each prompt, as text, by a function; has the tokenizer of ``tiny``."""

    def __init__(self, reply: Callable[[str], str | tuple[str, str]], max_len: int = 8192) -> None:
        self._reply = reply
        self.max_len = max_len
        self.prompts: list[str] = []
        self.params: list[Any] = []

    @property
    def tokenizer(self) -> Tokenizer:
        return tiny().tokenizer

    def generate(self, ids: Sequence[int], params: Any) -> _Result:
        prompt = self.tokenizer.decode(ids, skip_special_tokens=False)
        self.prompts.append(prompt)
        self.params.append(params)
        given = self._reply(prompt)
        text, reason = (given, "stop") if isinstance(given, str) else given
        return _Result(text, reason, self.tokenizer.encode(text))

    def stream(self, ids: Sequence[int], params: Any) -> Iterator[_Event]:
        result = self.generate(ids, params)
        for place, piece in enumerate(result.text):
            yield _Event(piece, result.finish_reason if place == len(result.text) - 1 else None)
