"""Drafts by the checkpoint's own MTP head, on the reference functions."""

from collections.abc import Sequence

import torch

from bytebound.config import ModelConfig
from bytebound.drafts.base import Proposal
from bytebound.errors import InvalidSettingError
from bytebound.reference.model import logits
from bytebound.reference.mtp import mtp_forward
from bytebound.reference.state import KvCache
from bytebound.reference.threads import threads_for
from bytebound.sampling import Purpose, Sampler
from bytebound.weights import ModelWeights


class MtpDraft:
    """Runs the MTP head ``count`` times from the last committed row.

    Its KV cache holds one position per committed row, computed from the target's hidden state; a
    proposal writes guesses beyond that length and the next ``observe`` overwrites them.
    """

    name = "mtp"

    def __init__(self, weights: ModelWeights, config: ModelConfig, *, max_len: int) -> None:
        if weights.mtp is None:
            raise InvalidSettingError(
                "draft='mtp': this checkpoint has no MTP head; use draft='ngram' or draft='none'"
            )
        self.weights = weights
        self.mtp = weights.mtp
        self.config = config
        embed = weights.embed_tokens
        self.kv = KvCache.empty(config, max_len, embed.dtype, embed.device)
        self.length = 0
        self.last_out: torch.Tensor | None = None

    def begin(self, first_id: int) -> None:
        """Start a new sequence. Its first id needs no row: row p embeds the id at p+1."""
        self.length = 0
        self.last_out = None

    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        """Fill the cache with committed rows [n, D]; the last one starts the next proposal."""
        if hidden is None:
            raise InvalidSettingError("draft='mtp' needs a backend with hidden states")
        out = self._run(next_ids, hidden, self.length)
        self.length += len(next_ids)
        self.last_out = out[-1:]

    def rewind(self, length: int) -> None:
        """See RewindingDraft. Row p needs the id at p+1, so one row less than ids stands."""
        self.length = length - 1
        self.last_out = None

    @property
    def caches(self) -> tuple[torch.Tensor, ...]:
        """See ParkableDraft."""
        return self.kv.k, self.kv.v

    def resume(self, ids: Sequence[int]) -> None:
        """See ParkableDraft."""
        self.rewind(len(ids))

    @torch.inference_mode()
    def propose(self, count: int, sampler: Sampler) -> Proposal:
        """Guess ``count`` ids, each from the previous guess and the head's own output."""
        if self.last_out is None or count == 0:
            return Proposal(())
        out, ids, probs = self.last_out, list[int](), list[torch.Tensor]()
        for depth in range(count):
            if depth > 0:
                out = self._run(ids[-1:], out, self.length + depth - 1)
            raw = self._logits(out)
            if sampler.greedy:
                guess = sampler.draft_argmax(raw, ids)
                if guess is None:
                    break
                ids.append(guess)
            else:
                chances = sampler.draft_probs(raw, ids)
                if chances is None:
                    break
                probs.append(chances)
                ids.append(sampler.draw(chances, self.length + 1 + depth, Purpose.DRAFT))
        return Proposal(tuple(ids), torch.stack(probs) if probs else None)

    def _logits(self, out: torch.Tensor) -> torch.Tensor:
        with threads_for(self.weights.lm_head.numel(), rows=1):
            return logits(out, self.weights)[0]

    @torch.inference_mode()
    def _run(self, next_ids: Sequence[int], hidden: torch.Tensor, start: int) -> torch.Tensor:
        ids = torch.tensor(list(next_ids), dtype=torch.long, device=hidden.device)
        with threads_for(self.weights.embed_tokens.numel(), rows=len(next_ids)):
            return mtp_forward(ids, hidden, self.weights, self.mtp, self.config, self.kv, start)
