"""From logits to accepted tokens on the device: the rules of ``bytebound.sampling`` in kernels.

Whatever differs from request to request lies in device memory at fixed addresses, so one recording
serves all requests. Penalties see each row as plain decoding would show it: with the drafts in
front of it counted as if they had been accepted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import bytebound_kernels as bk
import torch
from bytebound_kernels import Purpose

from bytebound.cuda.state import MAX_ROWS
from bytebound.results import TokenLogprob
from bytebound.sampling import Sampler

LIST_SIZE = 512  # ids in a request's list of biases, of banned ids, of end ids
MAX_LOGPROBS = 20
WORDS = bk.CYCLE_HEADER + MAX_ROWS


@dataclass(frozen=True, slots=True)
class Choice:
    """What kind of choice a pass ends with."""

    num_drafts: int
    sampled: bool = False
    """A draw, else the highest logit."""
    drawn_drafts: bool = False
    """Drafts come with the distributions that they were drawn from."""
    with_logprobs: bool = False


class DeviceSampler:
    """One request's sampling state on the device, and the choice at the end of a pass."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.vocab_size = vocab_size
        self.num_logprobs = min(MAX_LOGPROBS, vocab_size)
        self.settings = empty(4, dtype=torch.float64)  # temperature, top_k, top_p, min_p
        self.penalties = empty(4, dtype=torch.float64)  # repetition, presence, frequency, minimum
        self.no_penalties = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64, device=device)
        self.seed = empty(1, dtype=torch.int64)
        self.seen = empty(vocab_size, dtype=torch.uint8)
        self.counts = empty(vocab_size, dtype=torch.int32)
        self.lists = empty(3, LIST_SIZE, dtype=torch.int32)  # biased, banned, end ids; -1 behind
        self.bias_values = empty(LIST_SIZE, dtype=torch.float32)
        self.choices = empty(MAX_ROWS, dtype=torch.int32)
        self.adjusted = empty(MAX_ROWS, vocab_size, dtype=torch.float32)
        self.weights = empty(MAX_ROWS, vocab_size, dtype=torch.float64)
        self.totals = empty(MAX_ROWS, dtype=torch.float64)
        self.draft_weights = empty(MAX_ROWS - 1, vocab_size, dtype=torch.float64)
        self.draft_totals = empty(MAX_ROWS - 1, dtype=torch.float64)
        columns = 1 + self.num_logprobs
        self.logprob_values = empty(MAX_ROWS, columns, dtype=torch.float64)
        self.logprob_ids = empty(MAX_ROWS, columns, dtype=torch.int32)
        # Each is in its own form between calls, so none is shared.
        self._argmax = empty(bk.argmax_workspace_bytes(MAX_ROWS), dtype=torch.uint8)
        self._sample = empty(bk.sample_workspace_bytes(MAX_ROWS, vocab_size), dtype=torch.uint8)
        self._accept = empty(bk.speculative_sample_workspace_bytes(vocab_size), dtype=torch.uint8)
        self._logprobs = [
            empty(bk.logprobs_workspace_bytes(rows, vocab_size, columns - 1), dtype=torch.uint8)
            for rows in range(1, MAX_ROWS + 1)
        ]

    def takes(self, sampler: Sampler) -> bool:
        """Whether this request fits: no grammar, short lists, few logprobs, ids left to choose."""
        masked = len(sampler.banned_ids) + len(sampler.end_ids)
        lists = (sampler.bias, sampler.banned_ids, sampler.end_ids)
        return (
            sampler.constraint is None
            and all(len(one) <= LIST_SIZE for one in lists)
            and (sampler.params.logprobs or 0) <= self.num_logprobs
            and masked < self.vocab_size
        )

    def load(self, sampler: Sampler, prompt: Sequence[int]) -> None:
        """Take in a request that fits."""
        params = sampler.params
        _fill(self.settings, [params.temperature, params.top_k, params.top_p, params.min_p])
        penalties = (params.presence_penalty, params.frequency_penalty)
        _fill(self.penalties, [params.repetition_penalty, *penalties, params.min_tokens])
        seed = sampler.seed % 2**64
        _fill(self.seed, [seed - 2**64 if seed >= 2**63 else seed])
        ids = (list(sampler.bias), sampler.banned_ids, sampler.end_ids)
        _fill(self.lists, [[*one, *[-1] * (LIST_SIZE - len(one))] for one in ids])
        values = list(sampler.bias.values())
        _fill(self.bias_values, values + [0.0] * (LIST_SIZE - len(values)))
        self.seen.zero_()
        self.counts.zero_()
        if sampler.counts is not None:
            self.counts.copy_(sampler.counts)
        if params.repetition_penalty != 1:
            known = torch.tensor(sorted(set(prompt)), dtype=torch.int32).to(self.seen.device)
            self.seen.index_fill_(0, known.long(), 1)

    def pick_draft(self, logits: torch.Tensor, ids: torch.Tensor | None, out: torch.Tensor) -> None:
        """Guess the highest of ``logits`` [1, N], of ``ids`` [N] or, without, of all ids."""
        bk.argmax(logits, out=out, workspace=self._argmax, id_map=ids)

    def draw_draft(
        self, logits: torch.Tensor, words: torch.Tensor, depth: int, out: torch.Tensor
    ) -> None:
        """Draw guess ``depth`` (from 0) from ``logits`` [1, vocab]; keep what it was drawn from."""
        adjusted = self.adjusted[:1]
        bk.logit_adjust(
            logits,
            self.no_penalties,
            out=adjusted,
            bias_ids=self.lists[0],
            bias_values=self.bias_values,
            banned_ids=self.lists[1],
            allow_minus_infinity=True,
        )
        bk.sample(
            adjusted,
            self.settings,
            seed=self.seed,
            position=words[bk.CYCLE_POSITION :][:1],
            position_offset=depth,
            purpose=Purpose.DRAFT,
            out=out,
            workspace=self._sample,
            weights=self.draft_weights[depth : depth + 1],
            totals=self.draft_totals[depth : depth + 1],
        )

    def choose(
        self, logits: torch.Tensor, drafts: torch.Tensor, words: torch.Tensor, choice: Choice
    ) -> None:
        """Decide on ``logits`` [R, vocab] which of ``drafts`` [R - 1] stand and what follows them.

        ``words`` [WORDS] takes the result (see ``bytebound_kernels.speculative_accept``), and the
        history the accepted ids.
        """
        rows = logits.shape[0]
        cycle = words[: bk.CYCLE_HEADER + rows]
        guesses = drafts if rows > 1 else None
        adjusted = bk.logit_adjust(
            logits,
            self.penalties,
            out=self.adjusted[:rows],
            seen=self.seen,
            counts=self.counts,
            generated=words[bk.CYCLE_TOTAL_EMITTED :][:1],
            drafts=guesses,
            bias_ids=self.lists[0],
            bias_values=self.bias_values,
            banned_ids=self.lists[1],
            end_ids=self.lists[2],
        )
        choices = self.choices[:rows]
        if choice.sampled:
            bk.sample(
                adjusted,
                self.settings,
                seed=self.seed,
                position=words[bk.CYCLE_POSITION :][:1],
                out=choices,
                workspace=self._sample,
                weights=self.weights[:rows],
                totals=self.totals[:rows],
            )
        else:
            bk.argmax(adjusted, out=choices, workspace=self._argmax)
        if choice.sampled and guesses is not None:
            drawn = choice.drawn_drafts
            bk.speculative_sample(
                self.weights[:rows],
                self.totals[:rows],
                guesses,
                seed=self.seed,
                cycle=cycle,
                workspace=self._accept,
                draft_weights=self.draft_weights[: rows - 1] if drawn else None,
                draft_totals=self.draft_totals[: rows - 1] if drawn else None,
            )
        else:
            bk.speculative_accept(choices, guesses, cycle=cycle)
        emitted = cycle[bk.CYCLE_HEADER :]
        number = words[bk.CYCLE_NUM_EMITTED :][:1]
        bk.history_append(emitted, number, seen=self.seen, counts=self.counts)
        if choice.with_logprobs:
            bk.logprobs(
                logits,
                emitted,
                out_values=self.logprob_values[:rows],
                out_ids=self.logprob_ids[:rows],
                workspace=self._logprobs[rows - 1],
            )


def token_logprob(values: list[float], ids: list[int], count: int) -> TokenLogprob:
    """One token's record, as ``Sampler.token_logprob`` makes it.

    ``values`` and ``ids`` hold the token itself, then the likeliest ones.
    """
    top = list(zip(ids[1 : 1 + count], values[1 : 1 + count], strict=True))
    if ids[0] not in ids[1 : 1 + count]:
        top.append((ids[0], values[0]))
    return TokenLogprob(ids[0], values[0], tuple(top))


def _fill(target: torch.Tensor, values: Sequence[object]) -> None:
    target.copy_(torch.tensor(values, dtype=target.dtype))
