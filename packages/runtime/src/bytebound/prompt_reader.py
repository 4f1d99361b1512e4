"""Reads prompts into an executor, and goes on where an earlier prompt shares the beginning.

A wide pass may give a row other bits in other company, so what a prompt leaves behind depends on
how it is cut into passes. The cuts are therefore a function of the ids alone, and of no id behind
them: prompts with the same beginning are cut alike there, whatever was read before. A state kept at
a cut (``Snapshot``) is then, to the bit, the one that reading from the start would give.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress

import torch

from bytebound.drafts.base import Draft, RewindingDraft
from bytebound.executor import Executor
from bytebound.snapshots import ReadPrompt, positions_to_keep, snapshot_budget


class PromptReader:
    """One executor, the draft that watches it, and the states kept of the last prompt.

    ``turn_starts`` are the ids that begin a turn of a conversation: the next request will often
    share all before one of them. Snapshots never take more than ``snapshot_bytes``; 0 keeps none,
    None is the default of ``snapshot_budget``. With a draft that cannot go back
    (``RewindingDraft``) none are kept.
    """

    def __init__(
        self,
        executor: Executor,
        draft: Draft | None = None,
        *,
        turn_starts: Collection[int] = (),
        snapshot_bytes: int | None = None,
    ) -> None:
        self.executor = executor
        self.draft = draft
        self.turn_starts = frozenset(turn_starts)
        self.cached_tokens = 0
        """Ids of the last prompt that were not processed again."""
        self._resident = ReadPrompt()
        self._epoch = executor.epoch
        size = max(1, executor.snapshot_bytes)
        budget = snapshot_budget(None, size) if snapshot_bytes is None else snapshot_bytes
        self._most_snapshots = budget // size
        if draft is not None and not isinstance(draft, RewindingDraft):
            self._most_snapshots = 0

    @property
    def kept_bytes(self) -> int:
        """Memory that the snapshots take now."""
        return sum(one.num_bytes for one in self._resident.snapshots.values())

    def read(self, prompt: Sequence[int]) -> torch.Tensor:
        """Bring the executor behind ``prompt`` (1 id or more); logits [vocab] fp32 after it.

        The draft has then observed all rows but the last. After an error or an interrupt nothing
        needs mending: the next call starts from a state that was kept, or from nothing.
        """
        prompt = list(prompt)
        cuts, end = self._cuts(prompt), len(prompt)
        position, row = self._start(prompt, {*cuts, end})
        self.cached_tokens = position
        resident = self._resident
        ahead = [stop for stop in (*cuts, end) if stop > position]
        kept = positions_to_keep(
            {*resident.snapshots, *ahead},
            end,
            self._most_snapshots,
            opening=next((cut for cut in cuts if prompt[cut] in self.turn_starts), None),
        )
        resident.keep(kept)
        for stop in ahead:
            row = self._pass(prompt, position, stop)
            position = stop
            if position in kept:
                with suppress(torch.OutOfMemoryError):  # a state less costs time, not the request
                    resident.snapshots[position] = self.executor.snapshot()
        if resident.snapshots and not bool(row.isfinite().all()):
            resident.snapshots.clear()  # whatever the reason, it is not to outlive the request
        return row

    def _start(self, prompt: list[int], stops: Collection[int]) -> tuple[int, torch.Tensor]:
        """Go back to the deepest state that serves: its position, and the logits there."""
        executor, draft = self.executor, self.draft
        if executor.epoch != self._epoch:  # somebody else has used it
            self._resident = ReadPrompt()
        snapshot = self._resident.deepest(prompt, stops)
        if snapshot is None:
            executor.reset()
            self._epoch, self._resident = executor.epoch, ReadPrompt(prompt)
            if draft is not None:
                draft.begin(prompt[0])
            return 0, torch.empty(0)
        row = executor.restore(snapshot)
        if isinstance(draft, RewindingDraft):
            draft.rewind(snapshot.position)
        self._resident.go_on(prompt, snapshot.position)
        return snapshot.position, row

    def _pass(self, prompt: list[int], start: int, stop: int) -> torch.Tensor:
        """Process ``prompt[start:stop]``; the logits after it."""
        if self.draft is not None and start > 0:
            # The row before a cut goes to the draft by itself, always: its hidden state may come
            # from a snapshot, and the draft's bits must not tell.
            self.draft.observe(prompt[start : start + 1], self.executor.last_hidden)
        return self.executor.prefill(prompt[start:stop], self.draft)

    def _cuts(self, prompt: list[int]) -> list[int]:
        """Where passes end before the prompt does: see ``cuts``."""
        executor = self.executor
        return cuts(
            prompt,
            chunk=executor.prefill_chunk,
            floor=executor.prefill_floor,
            turn_starts=self.turn_starts,
        )


def cuts(ids: Sequence[int], *, chunk: int, floor: int, turn_starts: Collection[int]) -> list[int]:
    """Positions p, 0 < p < len(ids), where a pass ends with ``ids[p - 1]``.

    After ``chunk`` ids, and before a turn starts if that leaves the pass at least ``floor`` ids.
    Whether p is a cut depends on ``ids[: p + 1]`` alone.
    """
    found, last = list[int](), 0
    for position, token in enumerate(ids):
        size = position - last
        if size == chunk or (size >= floor and token in turn_starts):
            found.append(position)
            last = position
    return found
