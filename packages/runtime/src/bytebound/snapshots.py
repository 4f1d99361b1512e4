"""Which states of a prompt are kept, and from which of them another prompt can go on."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from bytebound.errors import InvalidSettingError
from bytebound.executor import Snapshot
from bytebound.memory import MemoryPlan

MOST_BYTES = 1 << 30  # by default: six states of a 27B model
MOST_SNAPSHOTS = 16  # by default: more would hardly lie closer to where prompts part
MOST_PARKED_BYTES = 4 << 30  # unless told: 60,000 positions of a 27B model
PARKED_CONTEXTS = 4
PARKING_PAYS = 2  # wide passes' fixed cost: what is shorter is read again as fast as it is copied


def snapshot_budget(asked: int | None, size: int) -> int:
    """Bytes to keep snapshots in, of which one takes ``size``; ``asked`` None is the default.

    Raises:
        InvalidSettingError: not even one fits, and 0 was not asked for.
    """
    if asked is None:
        return min(MOST_SNAPSHOTS, MOST_BYTES // max(1, size)) * size
    if 0 < asked < size:
        raise InvalidSettingError(
            f"snapshot_bytes={asked}: one state of this model takes {size} bytes; expected that or "
            "more, or 0 to keep none"
        )
    return asked


def with_conversations(
    plan: MemoryPlan, asked: int | None, available: int | None = None
) -> MemoryPlan:
    """The plan with a budget for parked conversations in the host's memory.

    ``asked`` None is ``PARKED_CONTEXTS`` conversations as long as the context, at most
    ``MOST_PARKED_BYTES`` and half of what the host has ``available``.
    """
    if asked is None:
        context = plan.kv + plan.mtp_kv + plan.snapshots
        asked = min(PARKED_CONTEXTS * context, MOST_PARKED_BYTES)
        asked = asked if available is None else min(asked, available // 2)
    return replace(plan, conversations=asked)


def parking_pays(lost: int, floor: int) -> bool:
    """Whether a conversation is parked of which ``lost`` ids would have to be read again.

    ``floor`` is what a wide pass costs, in ids (``Executor.prefill_floor``).
    """
    return lost >= PARKING_PAYS * floor


@dataclass(slots=True)
class ReadPrompt:
    """A prompt whose KV an executor holds, and the states kept on the way through it."""

    ids: list[int] = field(default_factory=list)
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    """By position p: the state after ``ids[:p]``."""
    stops: list[int] = field(default_factory=list)
    """Where its passes end; the last one is ``len(ids)``."""
    length: int = 0
    """Ids whose KV is in place."""

    def deepest(self, prompt: Sequence[int], stops: Collection[int]) -> Snapshot | None:
        """The state furthest into ``prompt`` that is one of its own: at one of its ``stops``."""
        for position in sorted(self.snapshots, reverse=True):
            if position in stops and self.ids[:position] == prompt[:position]:
                return self.snapshots[position]
        return None

    def shared(self, prompt: Sequence[int], stops: Sequence[int]) -> int:
        """How much of ``prompt``, whose passes end at ``stops``, is in place by the same passes."""
        found = 0
        for own, other in zip(self.stops, stops, strict=False):
            if own != other or own > self.length or self.ids[found:own] != prompt[found:own]:
                break
            found = own
        return found

    def go_on(self, prompt: Sequence[int], stops: Sequence[int], position: int) -> None:
        """Be ``prompt``, which shares its first ``position`` ids.

        Snapshots behind them go: the KV under them is about to be written again.
        """
        self.keep([kept for kept in self.snapshots if kept <= position])
        self.ids, self.stops, self.length = list(prompt), list(stops), position

    def keep(self, positions: Collection[int]) -> None:
        """Drop the snapshots at all other positions."""
        self.snapshots = {p: kept for p, kept in self.snapshots.items() if p in positions}


def positions_to_keep(
    cuts: Iterable[int], end: int, count: int, *, opening: int | None = None
) -> set[int]:
    """At most ``count`` positions of a prompt of ``end`` ids worth a snapshot.

    First the last cut, from which the next turn goes on; then the end, for the same prompt again;
    then ``opening``, if it is a cut: behind the instructions that other conversations share. Of the
    other cuts those are dropped whose loss costs least. Without the one between q and r, a prompt
    that parts from this one just before r reads from q on, ``end - q`` ids or so in place of ``end
    - r``. So they lie the sparser, the further they are from the end.
    """
    places = sorted({*cuts, end})
    first = [*places[-2:], opening] if opening in places[:-2] else places[-2:]
    kept = {*first[:count]}
    if count < 2:
        return kept
    while len(places) > count:
        costs = {
            p: (end - q) / (end - r)
            for q, p, r in zip([0, *places], places, places[1:-1], strict=False)
            if p not in kept
        }
        places.remove(min(costs, key=lambda p: costs[p]))
    return {*places}
