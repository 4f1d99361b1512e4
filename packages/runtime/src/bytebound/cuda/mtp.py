"""Drafts by the checkpoint's own MTP head, on the kernels. ``reference/mtp.py`` has the formula."""

from collections.abc import Sequence

import bytebound_kernels as bk
import torch

from bytebound.config import ModelConfig
from bytebound.cuda.buffers import Buffers, inverse_frequencies
from bytebound.cuda.matrices import Workspaces
from bytebound.cuda.prefill import Chunk, embed
from bytebound.cuda.state import MAX_ROWS, KvCache
from bytebound.cuda.step import Step
from bytebound.cuda.weights import ModelWeights
from bytebound.drafts.base import Proposal
from bytebound.errors import InvalidSettingError
from bytebound.sampling import Purpose, Sampler


class CudaMtpDraft:
    """Runs the MTP head ``count`` times from the last committed row.

    Its KV cache holds one position per committed row, computed from the target's hidden state; a
    proposal writes guesses beyond that length and the next ``observe`` overwrites them.
    """

    name = "mtp"

    def __init__(
        self,
        weights: ModelWeights,
        config: ModelConfig,
        workspaces: Workspaces,
        *,
        max_len: int,
        kv_dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        if weights.mtp is None:
            raise InvalidSettingError(
                "draft='mtp': this checkpoint has no MTP head; use draft='ngram' or draft='none'"
            )
        self.weights = weights
        self.mtp = weights.mtp
        self.config = config
        device = weights.device
        self.kv = KvCache.empty(config, max_len, kv_dtype, device)
        self.step = Step(
            config,
            Buffers.empty(config, weights.dtype, device),
            workspaces,
            inverse_frequencies(config, device),
            torch.zeros(1, dtype=torch.int32, device=device),
        )
        self.length = 0
        self.last_out: torch.Tensor | None = None

    def begin(self, first_id: int) -> None:
        """Start a new sequence. Its first id needs no row: row p embeds the id at p+1."""
        self.length = 0
        self.last_out = None

    @torch.inference_mode()
    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        """Fill the cache with committed rows [n, D]; the last one starts the next proposal."""
        if hidden is None:
            raise InvalidSettingError("draft='mtp' needs a backend with hidden states")
        ids = torch.tensor(list(next_ids), dtype=torch.int32, device=hidden.device)
        run = self._step if len(next_ids) <= MAX_ROWS else self._chunk
        out = run(ids, hidden, self.length)
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
                out = self._step(last, out, self.length + depth - 1)
            raw = self._logits(out)
            if sampler.greedy:
                ids.append(int(torch.argmax(raw)))
            else:
                probs.append(sampler.draft_probs(raw))
                ids.append(sampler.draw(probs[-1], self.length + 1 + depth, Purpose.DRAFT))
        return Proposal(tuple(ids), torch.stack(probs) if probs else None)

    def _logits(self, out: torch.Tensor) -> torch.Tensor:
        """Output head over one row [1, D]: fp32 [vocab], good until the next call."""
        logits = self.step.buffers.logits[:1]
        self.weights.lm_head.matvec(out, logits, self.step.workspaces)
        return logits[0]

    def _step(self, next_ids: torch.Tensor, hidden: torch.Tensor, start: int) -> torch.Tensor:
        """Up to ``MAX_ROWS`` rows from position ``start``; out [n, D], good until the next call."""
        buffers, rows = self.step.buffers, len(next_ids)
        self.step.position.fill_(start)
        x = buffers.residual[:rows]
        joined = self._joined(next_ids, hidden)
        self.mtp.fc.matvec(joined, x, self.step.workspaces)
        self.step.layer(x, self.mtp.layer, self.kv)
        out = buffers.hidden[:rows]
        self.step.norm(x, self.mtp.norm, out)
        return out

    def _chunk(self, next_ids: torch.Tensor, hidden: torch.Tensor, start: int) -> torch.Tensor:
        """Any number of rows from position ``start``; out [n, D]."""
        step, dtype = self.step, self.weights.dtype
        chunk = Chunk(self.config, step.workspaces, step.inv_freq, dtype, start)
        x = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        self.mtp.fc.matmul(self._joined(next_ids, hidden), x, step.workspaces, residual=x)
        chunk.layer(x, self.mtp.layer, self.kv)
        return chunk.norm(x, self.mtp.norm)

    def _joined(self, next_ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """``[norm_e(embedding), norm_h(hidden)]``, [n, 2 * D]."""
        width, eps = self.config.hidden_size, self.config.rms_norm_eps
        joined = hidden.new_empty(hidden.shape[0], 2 * width)
        embedded = embed(next_ids, self.weights, hidden.dtype)
        bk.rms_norm(embedded, self.mtp.pre_fc_norm_embedding, eps=eps, out=joined[:, :width])
        bk.rms_norm(hidden, self.mtp.pre_fc_norm_hidden, eps=eps, out=joined[:, width:])
        return joined
