"""Requests under a grammar: two schemas, scripts that answer, and drafts that know no grammar."""

import random
from collections.abc import Sequence
from typing import Any

import torch
from bytebound import Engine, Grammar, Proposal, SamplingParams
from bytebound.sampling import Sampler
from bytebound.scripted import ScriptedDraft, ScriptedExecutor
from bytebound.text.tokenizer import Tokenizer

from .grammar_walks import PADDING, end_of

POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "minimum": 0, "maximum": 99},
        "on": {"type": "boolean"},
    },
    "required": ["x", "on"],
    "additionalProperties": False,
}
SHORT = {"enum": ["the quick", "brown", "é👍", 12, [True, None]]}


class CarelessDraft:
    """Proposes any ids at all: picked, or drawn from all ids alike."""

    name = "careless"

    def __init__(self, vocab_size: int, *, drawn: bool) -> None:
        self.vocab_size, self.drawn = vocab_size, drawn
        self.choose = random.Random(3)

    def begin(self, first_id: int) -> None:
        pass

    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        pass

    def propose(self, count: int, sampler: Sampler) -> Proposal:
        ids = tuple(self.choose.randrange(self.vocab_size) for _ in range(count))
        if not self.drawn or not ids:
            return Proposal(ids)
        return Proposal(ids, torch.full((count, self.vocab_size), 1 / self.vocab_size).double())


class SilentDraft(CarelessDraft):
    """Proposes nothing, so that every token is the target's own."""

    def propose(self, count: int, sampler: Sampler) -> Proposal:
        return Proposal(())


def under(schema: Any, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 300, **fields}, grammar=Grammar.json_schema(schema))


def scripted(
    tokenizer: Tokenizer, text: str, *, per_step: int = 1, tail: Sequence[int] = ()
) -> Engine:
    """Answers ``text``, control tokens and all, then ``tail``, then end tokens for ever."""
    ids = [*tokenizer.encode(text, parse_control=True), *tail]
    steps = [ids[:1], *(ids[i : i + per_step] for i in range(1, len(ids), per_step))]
    end = end_of(tokenizer)
    executor = ScriptedExecutor(steps, tokenizer.vocab_size + PADDING, end_id=end)
    draft = ScriptedDraft(steps, wrong=1) if per_step > 1 else None
    return Engine(executor, draft=draft, num_draft_tokens=8, tokenizer=tokenizer, end_ids=[end])
