"""Reads prompts into an executor, and goes on where an earlier prompt shares the beginning.

A wide pass may give a row other bits in other company, so what a prompt leaves behind depends on
how it is cut into passes. The cuts are therefore a function of the ids alone, and of no id behind
them: prompts with the same beginning are cut alike there, whatever was read before. A state kept at
a cut (``Snapshot``) is then, to the bit, the one that reading from the start would give.

The prompt that was read last is resident: its KV lies in the executor. One that is about to be
overwritten can be parked (``parked.py``), and comes back when a prompt goes on from it.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from bytebound.drafts.base import Draft, ParkableDraft, RewindingDraft
from bytebound.executor import Executor
from bytebound.failures import is_out_of_memory
from bytebound.parked import ParkedConversations
from bytebound.snapshots import ReadPrompt, parking_pays, positions_to_keep, snapshot_budget


@dataclass(slots=True)
class Beginnings:
    """How many prompts began with what."""

    resident: int = 0
    """The prompt before."""
    parked: int = 0
    """A conversation that came back."""
    nothing: int = 0


class PromptReader:
    """One executor, the draft that watches it, and what is kept of earlier prompts.

    ``turn_starts`` are the ids that begin a turn of a conversation: the next request will often
    share all before one of them. Snapshots never take more than ``snapshot_bytes``; 0 keeps none,
    None is the default of ``snapshot_budget``. With a draft that cannot go back
    (``RewindingDraft``) none are kept. Conversations are parked in ``conversation_bytes`` of the
    host's memory, with a draft that allows it (``ParkableDraft``) and where states are kept.
    """

    def __init__(
        self,
        executor: Executor,
        draft: Draft | None = None,
        *,
        turn_starts: Collection[int] = (),
        snapshot_bytes: int | None = None,
        conversation_bytes: int = 0,
    ) -> None:
        self.executor = executor
        self.draft = draft
        self.turn_starts = frozenset(turn_starts)
        self.cached_tokens = 0
        """Ids of the last prompt that were not processed again."""
        self.before_pass: Callable[[], None] | None = None
        """Called before each pass: what it raises ends the prompt there. The same prompt goes on
        from there."""
        self.beginnings = Beginnings()
        self.parked: ParkedConversations | None = None
        self._resident = ReadPrompt()
        self._epoch = executor.epoch
        size = max(1, executor.snapshot_bytes)
        budget = snapshot_budget(None, size) if snapshot_bytes is None else snapshot_bytes
        self._most_snapshots = budget // size
        if draft is not None and not isinstance(draft, RewindingDraft):
            self._most_snapshots = 0
        parks = conversation_bytes > 0 and self._most_snapshots > 0
        if parks and (draft is None or isinstance(draft, ParkableDraft)):
            self.parked = ParkedConversations(executor, draft, conversation_bytes)

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
        stops = [*self._cuts(prompt), len(prompt)]
        position, row = self._start(prompt, stops)
        self.cached_tokens = position
        resident = self._resident
        ahead = [stop for stop in stops if stop > position]
        kept = self._worth_keeping(prompt, stops, {*resident.snapshots, *ahead})
        resident.keep(kept)
        for stop in ahead:
            self._ask_to_go_on(position)
            row = self._pass(prompt, position, stop)
            position = resident.length = stop
            if position in kept:
                self._keep_state(position)
        if self._most_snapshots and not bool(row.isfinite().all()):
            resident.snapshots.clear()  # whatever the reason, it is not to outlive the request
            if self.parked is not None:
                self.parked.clear()
        return row

    def forget(self) -> None:
        """Drop all that is kept, here and on the host: nobody will go on from it."""
        self._take_over()
        if self.parked is not None:
            self.parked.clear()

    def _ask_to_go_on(self, position: int) -> None:
        """Call ``before_pass``; where it ends the prompt, what was read so far is not lost."""
        if self.before_pass is None:
            return
        try:
            self.before_pass()
        except BaseException:
            kept = self._resident.snapshots
            if position > 0 and position not in kept and self._most_snapshots > 0:
                if len(kept) == self._most_snapshots:
                    kept.pop(min(kept))
                self._keep_state(position)
            raise

    def _keep_state(self, position: int) -> None:
        with _if_memory_allows():  # a state less costs time, not the request
            self._resident.snapshots[position] = self.executor.snapshot()

    def _start(self, prompt: list[int], stops: list[int]) -> tuple[int, torch.Tensor]:
        """Go back to the deepest state that serves: its position, and the logits there."""
        executor, parked = self.executor, self.parked
        if executor.epoch != self._epoch:  # somebody else has used it
            self._take_over()
        snapshot = self._resident.deepest(prompt, stops)
        place = 0 if snapshot is None else snapshot.position
        if parked is not None:
            self._park_what_is_lost(parked, prompt, stops, place)
            held = parked.deepest(prompt, stops)
            if held > place:
                with _if_memory_allows():
                    return held, self._bring_back(parked, prompt, stops, held)
        if snapshot is None:
            self._take_over()
            self._resident.go_on(prompt, stops, 0)
            if self.draft is not None:
                self.draft.begin(prompt[0])
            self.beginnings.nothing += 1
            return 0, torch.empty(0)
        row = executor.restore(snapshot)
        self._rewind(prompt[:place])
        self._resident.go_on(prompt, stops, place)
        self.beginnings.resident += 1
        return place, row

    def _take_over(self) -> None:
        """Empty the executor: nothing is resident."""
        self.executor.reset()
        self._epoch, self._resident = self.executor.epoch, ReadPrompt()

    def _park_what_is_lost(
        self, parked: ParkedConversations, prompt: list[int], stops: list[int], place: int
    ) -> None:
        """Park the resident conversation, if ``prompt`` overwrites much of it behind ``place``."""
        resident = self._resident
        grows = prompt[: len(resident.ids)] == resident.ids
        lost = max(resident.snapshots, default=0) - place
        if grows or not parking_pays(lost, self.executor.prefill_floor):
            return
        own = resident.ids, resident.stops
        keep = self._worth_keeping(*own, {*resident.snapshots, *parked.states(*own)})
        cut, end = ([0, *resident.stops])[-2:]
        if cut in keep and not parking_pays(end - cut, self.executor.prefill_floor):
            keep.discard(end)  # of use to the same prompt alone, which reads it as fast
        with _if_memory_allows():
            parked.park(*own, resident.snapshots, keep, spare=(prompt, stops))

    def _bring_back(
        self, parked: ParkedConversations, prompt: list[int], stops: list[int], held: int
    ) -> torch.Tensor:
        """Go on from the parked state at ``held``; the logits there."""
        resident = self._resident
        shared = min(resident.shared(prompt, stops), held)
        resident.go_on(prompt, stops, shared)
        ahead = {stop for stop in stops if stop >= held}
        resident.keep(self._worth_keeping(prompt, stops, {*resident.snapshots, *ahead}))
        if len(resident.snapshots) == self._most_snapshots:
            resident.keep(())  # the one that comes needs a place
        parked.touch(prompt, stops)
        snapshot = parked.bring_back(prompt, stops, shared, held)
        row = self.executor.restore(snapshot)
        self._rewind(prompt[:held])
        resident.snapshots[held], resident.length = snapshot, held
        self.beginnings.parked += 1
        return row

    def _rewind(self, ids: list[int]) -> None:
        """Bring the draft behind ``ids``, whose entries are in its caches."""
        if isinstance(self.draft, ParkableDraft):
            self.draft.resume(ids)
        elif isinstance(self.draft, RewindingDraft):
            self.draft.rewind(len(ids))

    def _worth_keeping(
        self, ids: Sequence[int], stops: Sequence[int], positions: Collection[int]
    ) -> set[int]:
        """Which of these positions of a prompt keep their states: see ``positions_to_keep``."""
        opening = next((cut for cut in stops[:-1] if ids[cut] in self.turn_starts), None)
        return positions_to_keep(positions, len(ids), self._most_snapshots, opening=opening)

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
    starts = [place for place, token in enumerate(ids) if token in turn_starts]
    found, last, length = list[int](), 0, len(ids)
    while True:
        first = bisect_left(starts, last + max(1, floor))
        cut = min(last + chunk, starts[first] if first < len(starts) else length)
        if cut >= length:
            return found
        found.append(cut)
        last = cut


@contextmanager
def _if_memory_allows() -> Iterator[None]:
    """Leave the block where memory runs out: what only saves time takes no request with it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
