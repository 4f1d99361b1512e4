"""The decode loop: from a prompt to tokens, a pass of the model at a time.

``Decoder`` is the contract that the engine drives. ``HostDecoder`` is the loop for any executor and
any draft, with every decision made here on the host: guess, verify, accept, commit.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from bytebound.drafts.base import Draft, Proposal
from bytebound.executor import Executor
from bytebound.prompt_reader import PromptReader
from bytebound.results import TokenLogprob
from bytebound.sampling import Sampler
from bytebound.speculation import accept


@dataclass(frozen=True, slots=True)
class Step:
    """What one pass offers. The caller takes ``tokens`` in order and may stop at any of them."""

    guesses: tuple[int, ...]
    """Ids that the draft proposed."""
    tokens: Iterable[int]
    """One id or more; as far as a guess stood, the id is the guess of that place."""
    logprob: Callable[[int, int], TokenLogprob]
    """Of (place, id), for the ids taken; asked for only if the request wants logprobs."""
    device_s: float = 0.0
    """Seconds that the pass took on the device, where it may have run before it was waited for."""


class Decoder(Protocol):
    """Runs one request at a time on one executor."""

    reader: PromptReader

    @property
    def cached_tokens(self) -> int:
        """Ids of the last prompt that an earlier request had left processed."""

    def begin(self, prompt: Sequence[int], sampler: Sampler, limit: int) -> Step:
        """Start a request: process the prompt and offer the first token.

        ``limit`` (0 or more) is how many tokens the caller will take in all.
        """

    def advance(self, taken: Sequence[int]) -> Step:
        """Offer the next tokens, after ``taken`` were taken of the last offer: all, or the first.

        Raises:
            NonFiniteLogitsError: the model produced NaN or infinity.
        """


class HostDecoder:
    """The loop over an executor's logits, the same for every executor and every draft."""

    def __init__(
        self,
        executor: Executor,
        draft: Draft | None,
        num_draft_tokens: int,
        reader: PromptReader | None = None,
    ) -> None:
        self.executor = executor
        self.draft = draft
        self.num_draft_tokens = num_draft_tokens
        self.reader = reader or PromptReader(executor, draft)
        self._sampler: Sampler | None = None
        self._position = 0  # of the next token
        self._remaining = 0  # tokens that may still be taken
        self._verified = False  # whether the last offer came from ``verify``

    @property
    def cached_tokens(self) -> int:
        """See Decoder."""
        return self.reader.cached_tokens

    def begin(self, prompt: Sequence[int], sampler: Sampler, limit: int) -> Step:
        """See Decoder."""
        self._sampler, self._position, self._remaining = sampler, len(prompt), limit
        self._verified = False
        row = self.reader.read(prompt)
        return self._offer(Proposal(()), row[None], sampler)

    def advance(self, taken: Sequence[int]) -> Step:
        """See Decoder."""
        sampler = self._sampler
        if sampler is None:
            raise RuntimeError("advance() before begin()")
        if self._verified:
            self.executor.commit(len(taken))
        self._position += len(taken)
        self._remaining -= len(taken)
        proposal = self._propose(taken, sampler)
        rows = self.executor.verify([taken[-1], *proposal.ids])
        self._verified = True
        return self._offer(proposal, rows, sampler)

    def _offer(self, proposal: Proposal, rows: torch.Tensor, sampler: Sampler) -> Step:
        return Step(
            proposal.ids,
            accept(proposal, rows, sampler, self._position),
            lambda place, token: sampler.token_logprob(rows[place], token),
        )

    def _propose(self, taken: Sequence[int], sampler: Sampler) -> Proposal:
        """Show the draft the tokens taken and ask it for guesses."""
        if self.draft is None:
            return Proposal(())
        hidden = self.executor.last_hidden
        self.draft.observe(taken, None if hidden is None else hidden[: len(taken)])
        # The target adds one token of its own: guesses beyond remaining - 1 could never be used.
        count = min(self.num_draft_tokens, self._remaining - 1)
        if count <= 0:
            return Proposal(())
        proposal = self.draft.propose(count, sampler)
        proposal.check(self.draft.name, count, self.executor.vocab_size)
        if sampler.constraint is not None and proposal.probs is None:
            # Not of drawn guesses: to leave some out by what they are would bend the distribution.
            return Proposal(proposal.ids[: sampler.constraint.admitted(proposal.ids)])
        return proposal
