"""Drafts by the checkpoint's own MTP head, on the kernels. ``reference/mtp.py`` has the formula.

``MtpHead`` is the head itself: it reads ids, hidden states and positions on the device, so that a
recording can hold it. ``CudaMtpDraft`` drives it from the host, as any draft is driven.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import bytebound_kernels as bk
import torch

from bytebound.config import ModelConfig
from bytebound.cuda.buffers import Buffers, inverse_frequencies
from bytebound.cuda.matrices import Workspaces
from bytebound.cuda.prefill import Chunk, embed
from bytebound.cuda.state import MAX_ROWS, KvCache
from bytebound.cuda.step import Step
from bytebound.cuda.weights import ModelWeights, MtpWeights
from bytebound.drafts.base import Proposal
from bytebound.errors import InvalidSettingError
from bytebound.sampling import Purpose, Sampler


@dataclass(frozen=True, slots=True)
class MtpHead:
    """The head with its cache and its activations."""

    weights: ModelWeights
    mtp: MtpWeights
    kv: KvCache
    step: Step  # its ``position`` serves calls from the host
    joined: torch.Tensor  # [MAX_ROWS, 2 * D]: embedding and hidden state, normed
    all_logits: torch.Tensor  # float32 [1, vocab]: minus infinity outside the draft vocabulary
    draft_ids: torch.Tensor | None  # int64 [N], of the draft vocabulary

    @classmethod
    def empty(
        cls,
        weights: ModelWeights,
        config: ModelConfig,
        workspaces: Workspaces,
        *,
        max_len: int,
        kv_dtype: torch.dtype,
    ) -> "MtpHead":
        """Allocate for a sequence of at most ``max_len`` positions.

        Raises:
            InvalidSettingError: the checkpoint has no such head.
        """
        if weights.mtp is None:
            raise InvalidSettingError(
                "draft='mtp': this checkpoint has no MTP head; use draft='ngram' or draft='none'"
            )
        device = weights.device
        position = torch.zeros(1, dtype=torch.int32, device=device)
        buffers = Buffers.empty(config, weights.dtype, device)
        frequencies = inverse_frequencies(config, device)
        return cls(
            weights,
            weights.mtp,
            KvCache.empty(config, max_len, kv_dtype, device),
            Step(config, buffers, workspaces, frequencies, position),
            buffers.hidden.new_zeros(MAX_ROWS, 2 * config.hidden_size),
            torch.full((1, config.vocab_size), -torch.inf, device=device),
            None if weights.mtp.draft_ids is None else weights.mtp.draft_ids.long(),
        )

    def run(self, ids: torch.Tensor, hidden: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Up to ``MAX_ROWS`` rows; out [n, D], good until the next call.

        Row i embeds ``ids[i]``, the id behind the position of ``hidden[i]``, which is ``position +
        i``. Nothing is allocated.
        """
        step, rows = replace(self.step, position=position), hidden.shape[0]
        buffers = step.buffers
        x = buffers.residual[:rows]
        embedded = bk.embedding_gather(ids, self.weights.embed_tokens, out=buffers.normed[:rows])
        joined = self._join(embedded, hidden, self.joined[:rows])
        self.mtp.fc.matvec(joined, x, step.workspaces)
        step.layer(x, self.mtp.layer, self.kv)
        out = buffers.hidden[:rows]
        step.norm(x, self.mtp.norm, out)
        return out

    def own_logits(self, out: torch.Tensor) -> torch.Tensor:
        """Output head over one row [1, D]: fp32 [1, N], good until the next call.

        N counts the ids of the draft vocabulary, ``mtp.draft_ids``, or without one all ids.
        """
        matrix = self.mtp.draft_head or self.weights.lm_head
        logits = self.step.buffers.logits[:1, : matrix.n]
        matrix.matvec(out, logits, self.step.workspaces)
        return logits

    def logits(self, out: torch.Tensor) -> torch.Tensor:
        """``own_logits`` over the whole vocabulary: fp32 [1, vocab], good until the next call."""
        logits, ids = self.own_logits(out), self.draft_ids
        return logits if ids is None else self.all_logits.index_copy_(1, ids, logits)

    def run_chunk(self, ids: torch.Tensor, hidden: torch.Tensor, start: int) -> torch.Tensor:
        """Any number of rows from position ``start``, as ``run``; out [n, D]."""
        step, dtype = self.step, self.weights.dtype
        chunk = Chunk(step.config, step.workspaces, step.inv_freq, dtype, start)
        x = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        joined = hidden.new_empty(hidden.shape[0], self.joined.shape[1])
        self._join(embed(ids, self.weights, dtype), hidden, joined)
        self.mtp.fc.matmul(joined, x, step.workspaces, residual=x)
        chunk.layer(x, self.mtp.layer, self.kv)
        return chunk.norm(x, self.mtp.norm)

    def _join(
        self, embedded: torch.Tensor, hidden: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        """``[norm_e(embedding), norm_h(hidden)]``, [n, 2 * D]."""
        width, eps = hidden.shape[1], self.step.config.rms_norm_eps
        bk.rms_norm(embedded, self.mtp.pre_fc_norm_embedding, eps=eps, out=out[:, :width])
        bk.rms_norm(hidden, self.mtp.pre_fc_norm_hidden, eps=eps, out=out[:, width:])
        return out


class CudaMtpDraft:
    """Runs the MTP head ``count`` times from the last committed row.

    Its KV cache holds one position per committed row, computed from the target's hidden state; a
    proposal writes guesses beyond that length and the next ``observe`` overwrites them.
    """

    name = "mtp"

    def __init__(self, head: MtpHead) -> None:
        self.head = head
        self.length = 0
        self.last_out: torch.Tensor | None = None

    def begin(self, first_id: int) -> None:
        """Start a new sequence. Its first id needs no row: row p embeds the id at p+1."""
        self.length = 0
        self.last_out = None

    def rewind(self, length: int) -> None:
        """See RewindingDraft. Row p needs the id at p+1, so one row less than ids stands."""
        self.length = length - 1
        self.last_out = None

    @property
    def caches(self) -> tuple[torch.Tensor, ...]:
        """See ParkableDraft."""
        return self.head.kv.tensors

    def resume(self, ids: Sequence[int]) -> None:
        """See ParkableDraft."""
        self.rewind(len(ids))

    @torch.inference_mode()
    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        """Fill the cache with committed rows [n, D]; the last one starts the next proposal."""
        if hidden is None:
            raise InvalidSettingError("draft='mtp' needs a backend with hidden states")
        ids = torch.tensor(list(next_ids), dtype=torch.int32, device=hidden.device)
        if len(next_ids) <= MAX_ROWS:
            out = self._run(ids, hidden, self.length)
        else:
            out = self.head.run_chunk(ids, hidden, self.length)
        self.length += len(next_ids)
        self.last_out = out[-1:].clone()

    @torch.inference_mode()
    def propose(self, count: int, sampler: Sampler) -> Proposal:
        """Guess ``count`` ids, each from the previous guess and the head's own output."""
        if self.last_out is None or count == 0:
            return Proposal(())
        out, ids, probs = self.last_out, list[int](), list[torch.Tensor]()
        for depth in range(count):
            if depth > 0:
                last = torch.tensor(ids[-1:], dtype=torch.int32, device=out.device)
                out = self._run(last, out, self.length + depth - 1)
            raw = self.head.logits(out)[0]
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

    def _run(self, ids: torch.Tensor, hidden: torch.Tensor, start: int) -> torch.Tensor:
        position = self.head.step.position
        return self.head.run(ids, hidden, position.fill_(start))
