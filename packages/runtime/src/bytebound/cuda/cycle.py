"""One turn of the decode loop on the device: guesses, a pass over them, acceptance, hand-over.

    words  [ position | next id | accepted | emitted | total | emitted ids ... ]
                          |                     |                  |
    MTP head:  observe the emitted ids <--------+------------------+  (positions of that pass)
               k guesses, each from the one before
    verify:    next id and guesses, R = k + 1 rows; replays the emitted rows of the pass before.
               Without guesses, ever: one row, which the state takes in at once
    choose:    logits and guesses to words; history, logprobs
    hand over: words to position, replay count and first id of the next pass

Nothing here allocates, waits or asks the device for a value, so that one recording serves every
turn of every request. The host gives the guesses itself where there is no head.
"""

from dataclasses import dataclass

import bytebound_kernels as bk
import torch

from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.mtp import MtpHead
from bytebound.cuda.sampling import WORDS, Choice, DeviceSampler
from bytebound.cuda.state import MAX_ROWS


@dataclass(frozen=True, slots=True)
class Form:
    """What a turn does; each form in use has a recording of its own."""

    choice: Choice
    by_head: bool = False
    """Guesses come from the MTP head, else they lie in ``ids[1:]`` already."""
    pending_rows: int = MAX_ROWS
    """Rows that the turn before may have left pending. 0: none ever, as there are no guesses."""

    @classmethod
    def of(cls, choice: Choice, num_draft_tokens: int, *, by_head: bool = False) -> "Form":
        """A turn of an engine whose turns have at most ``num_draft_tokens`` guesses."""
        return cls(choice, by_head, 1 + num_draft_tokens if num_draft_tokens else 0)


class Cycle:
    """The loop's own words on the device, and what one turn does with them."""

    def __init__(self, executor: CudaExecutor, head: MtpHead | None) -> None:
        device = executor.device
        self.executor = executor
        self.head = head
        self.sampler = DeviceSampler(executor.vocab_size, device)
        self.words = torch.zeros(WORDS, dtype=torch.int32, device=device)
        self._observed_from = torch.zeros(1, dtype=torch.int32, device=device)
        self._depths = torch.arange(MAX_ROWS, dtype=torch.int32, device=device)
        self._draft_positions = torch.zeros_like(self._depths)
        self._last = executor.step.buffers.hidden.new_zeros(1, executor.config.hidden_size)

    @property
    def ids(self) -> torch.Tensor:
        """Inputs of the pass, int32 [MAX_ROWS]: the last token, then the guesses."""
        return self.executor.step.buffers.ids

    def begin(self, row: torch.Tensor, hidden: torch.Tensor, position: int) -> None:
        """Set up for the first token, at ``position`` (1 or more).

        It will be chosen from ``row`` [vocab]; ``hidden`` [1, D] is what the row was made from.
        """
        buffers = self.executor.step.buffers
        buffers.logits[0].copy_(row)
        buffers.hidden[:1].copy_(hidden)
        self.words.zero_()
        self.words[bk.CYCLE_POSITION].fill_(position)

    def first(self, choice: Choice) -> None:
        """Choose the first token. The prompt is in the state, so no row waits to be replayed."""
        self._choose(choice)
        self._hand_over()
        self.executor.state.num_accepted.zero_()
        # The head has seen the prompt but its last row, whose successor is known only now.
        self._observed_from.copy_(self.executor.state.position).sub_(1)

    def turn(self, form: Form) -> None:
        """One turn; ``words`` and ``ids`` then say what was emitted and guessed."""
        if form.by_head and self.head is not None:
            self._guess(self.head, form.choice)
        executor = self.executor
        if form.pending_rows == 0:
            last = self.words[bk.CYCLE_NEXT_TOKEN :][:1]
            executor.step.advance(executor.weights, executor.state, last)
            self._choose(form.choice)
            return
        self._observed_from.copy_(executor.state.position)
        rows = 1 + form.choice.num_drafts
        executor.step.verify(executor.weights, executor.state, rows, form.pending_rows)
        self._choose(form.choice)
        self._hand_over()
        executor.state.num_accepted.copy_(self.words[bk.CYCLE_NUM_EMITTED :][:1])

    def _guess(self, head: MtpHead, choice: Choice) -> None:
        """Show the head what the pass before emitted, and let it guess from the last of it."""
        hidden = self.executor.step.buffers.hidden
        torch.add(self._depths, self.executor.state.position, out=self._draft_positions)
        # All rows, whatever was emitted: those behind are garbage that the guesses overwrite.
        emitted = self.words[bk.CYCLE_HEADER :]
        out = head.run(emitted, hidden, self._observed_from)
        last = self.words[bk.CYCLE_NUM_ACCEPTED :][:1]
        out = bk.embedding_gather(last, out, out=self._last)
        for depth in range(choice.num_drafts):
            guess = self.ids[1 + depth : 2 + depth]
            if depth > 0:
                before = self.ids[depth : 1 + depth]
                out = head.run(before, out, self._draft_positions[depth - 1 : depth])
            if choice.sampled:
                self.sampler.draw_draft(head.logits(out), self.words, depth, guess)
            else:
                logits = head.own_logits(out)
                self.sampler.pick_draft(logits, head.mtp.draft_ids, guess)

    def _choose(self, choice: Choice) -> None:
        rows = 1 + choice.num_drafts
        logits = self.executor.step.buffers.logits[:rows]
        self.sampler.choose(logits, self.ids[1:rows], self.words, choice)

    def _hand_over(self) -> None:
        state, words = self.executor.state, self.words
        torch.sub(words[bk.CYCLE_POSITION :][:1], 1, out=state.position)
        self.ids[:1].copy_(words[bk.CYCLE_NEXT_TOKEN :][:1])
