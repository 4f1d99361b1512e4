"""Which draft a run uses, as a word of the command line, and the draft of forced acceptance."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bytebound.cli.errors import UsageError

if TYPE_CHECKING:
    import torch
    from bytebound import Proposal
    from bytebound.sampling import Sampler

FORMS = "none, ngram:K, mtp:K or forced:K@RATE, e.g. mtp:4 or forced:4@0.7"
DEFAULT_DRAFT_TOKENS = 4
_SPEC = re.compile(
    r"(?P<kind>none|(?:ngram|mtp)(?::(?P<count>\d+))?|forced:(?P<forced>\d+)@(?P<rate>[\d.]+))"
)


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """Who guesses, how many ids a step, and for a forced draft how often an id is right."""

    kind: str
    """"none", "ngram", "mtp" or "forced"."""
    count: int = DEFAULT_DRAFT_TOKENS
    rate: float | None = None

    @classmethod
    def parse(cls, word: str) -> "DraftSpec":
        """Read one word of the command line.

        Raises:
            UsageError: it is of none of the forms, or a number is out of range.
        """
        found = _SPEC.fullmatch(word)
        if found is None:
            raise UsageError(f"--draft {word!r}: expected {FORMS}")
        kind = found["kind"].split(":")[0]
        count = int(found["count"] or found["forced"] or DEFAULT_DRAFT_TOKENS)
        if not 1 <= count <= 8:
            raise UsageError(f"--draft {word!r}: {count} guesses a step, expected 1 to 8")
        if kind != "forced":
            return cls(kind, count)
        try:
            rate = float(found["rate"])
        except ValueError:
            rate = -1.0
        if not 0 <= rate <= 1:
            raise UsageError(f"--draft {word!r}: expected a rate from 0 to 1")
        return cls(kind, count, rate)

    @property
    def label(self) -> str:
        """The name in metrics: plain, ngram4, mtp4, forced4@0.7."""
        if self.kind == "none":
            return "plain"
        return f"{self.kind}{self.count}" + ("" if self.rate is None else f"@{self.rate:g}")

    @property
    def word(self) -> str:
        """What ``parse`` reads as this."""
        rate = "" if self.rate is None else f"@{self.rate:g}"
        return "none" if self.kind == "none" else f"{self.kind}:{self.count}{rate}"

    def case(self) -> dict[str, object]:
        """The fields of a metric's case."""
        if self.kind == "none":
            return {"draft": "none"}
        forced = {} if self.rate is None else {"forced_rate": self.rate}
        return {"draft": self.kind, "draft_tokens": self.count, **forced}


class ForcedDraft:
    """Replays a known greedy reply, each id wrong with a stated probability.

    The reply is what the same engine said to the same prompt without drafts, so an id is right
    exactly when it is left alone. Errors depend on the seed alone: every run has the same pattern.
    Costs next to nothing, unlike a draft head: what is timed is the target's verify.
    """

    name = "forced"

    def __init__(self, rate: float, *, vocab_size: int, seed: int = 0) -> None:
        self.rate = rate
        self.vocab_size = vocab_size
        self.seed = seed
        self._reply: Sequence[int] = ()
        self._first = 0
        self._seen = 0
        self._random = random.Random(seed)

    def expect(self, prompt_tokens: int, reply: Sequence[int]) -> None:
        """Say what the next request's prompt is long and what will be replied to it."""
        self._first = prompt_tokens
        self._reply = reply

    def begin(self, first_id: int) -> None:
        """Start a new sequence, and the pattern of errors anew."""
        self._seen = 1
        self._random = random.Random(self.seed)

    def observe(self, next_ids: Sequence[int], hidden: "torch.Tensor | None") -> None:
        """Count committed ids; which ones they are is known."""
        self._seen += len(next_ids)

    def propose(self, count: int, sampler: "Sampler") -> "Proposal":
        """The next ids of the reply, some of them wrong."""
        from bytebound import Proposal

        start = self._seen - self._first
        ids = self._reply[start : start + count] if start >= 0 else ()
        return Proposal(tuple(map(self._maybe_wrong, ids)))

    def _maybe_wrong(self, token: int) -> int:
        right = self._random.random() < self.rate
        return token if right else (token + 1) % self.vocab_size
