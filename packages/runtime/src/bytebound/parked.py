"""Conversations that had to leave the executor, in the host's memory, under a budget of bytes.

They are a tree whose edges are passes. Prompts that begin alike are cut alike there (see
``prompt_reader``), so the passes that two conversations share are held once. A node has the keys
and values of its pass, and the state behind it where one was kept. The conversation that was used
longest ago goes first: the states on its way, then its end with all that leads there alone.
"""

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from bytebound.drafts.base import ParkableDraft
from bytebound.executor import Executor, Snapshot
from bytebound.host_pages import HostPages, Pages

NODE_BYTES = 512  # of one node's Python objects, about; its ids take 4 bytes each besides
_LARGEST_PAGE, _SMALLEST_PAGE = 1 << 20, 1 << 12


@dataclass(eq=False, slots=True)
class _State:
    """A snapshot at a node's end."""

    pages: Pages
    like: tuple[torch.Tensor, ...]
    """On the meta device: shape and dtype of what the pages hold; the hidden state last."""
    device: torch.device | None
    """Where all that was; None for nothing."""
    with_hidden: bool


@dataclass(eq=False, slots=True)
class _Node:
    """One pass: positions from its parent's ``stop`` to its own."""

    stop: int
    ids: bytes
    caches: Pages
    parent: "_Node | None"
    state: _State | None = None
    children: dict[bytes, "_Node"] = field(default_factory=dict)
    used: int = 0

    @property
    def pages(self) -> int:
        """Pages of it all."""
        return len(self.caches) + (0 if self.state is None else len(self.state.pages))


class ParkedConversations:
    """What left ``executor``, and the ``draft`` beside it, and may come back.

    All of it takes at most ``budget`` bytes, ids and the tree included.
    """

    def __init__(self, executor: Executor, draft: ParkableDraft | None, budget: int) -> None:
        self.budget = budget
        self.evictions = 0
        """States that had to go for others."""
        self._executor = executor
        self._draft = draft
        self._root = _Node(0, b"", (), None)
        self._clock = 0
        self._nodes_bytes = 0
        # A page is an eighth of the smallest pass that pays, within bounds: little is lost in it.
        position = sum(one[:, :1].nbytes for one in self._caches)
        eighth = position * executor.prefill_floor // 8
        page = (1 << eighth.bit_length()) >> 1
        self._store = HostPages(
            budget,
            min(max(page, _SMALLEST_PAGE), _LARGEST_PAGE),
            pinned=any(one.is_cuda for one in self._caches),
        )

    @property
    def num_bytes(self) -> int:
        """Bytes in use."""
        return self._store.used * self._store.page_bytes + self._nodes_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes taken of the host: those in use, and those kept for the next conversation."""
        return self._store.reserved_bytes + self._nodes_bytes

    @property
    def count(self) -> int:
        """Conversations held: ends of branches."""
        return sum(not node.children for node in self._nodes())

    def deepest(self, ids: Sequence[int], stops: Sequence[int]) -> int:
        """Position of the last state on the way of a prompt with these passes; 0: there is none."""
        path = self._path(ids, stops)
        return max((node.stop for node in path if node.state is not None), default=0)

    def states(self, ids: Sequence[int], stops: Sequence[int]) -> list[int]:
        """Positions of all states on the way of a prompt with these passes."""
        return [node.stop for node in self._path(ids, stops) if node.state is not None]

    def touch(self, ids: Sequence[int], stops: Sequence[int]) -> None:
        """Note that this conversation was used now."""
        self._clock += 1
        for node in self._path(ids, stops):
            node.used = self._clock

    def park(
        self,
        ids: Sequence[int],
        stops: Sequence[int],
        snapshots: Mapping[int, Snapshot],
        keep: Collection[int],
        *,
        spare: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> None:
        """Copy a conversation out of the executor: its passes as far as the last of ``snapshots``.

        Of its states, those that it has here already included, the ones at positions in ``keep``
        are held, the deepest first; what is here is not copied again. Others go to make room, but
        never ``spare``, the ids and stops of a conversation. What the budget does not allow is left
        out.

        Raises:
            RuntimeError: the host has no more memory. What was parked until then is.
        """
        self.touch(ids, stops)
        spared = set(self._path(*spare)) if spare else set[_Node]()
        self._thin_out(self._path(ids, stops), keep, spared)
        try:
            for stop in reversed(stops):
                if stop in keep and stop in snapshots:
                    own = self._path(ids, stops)
                    way = stops[: stops.index(stop) + 1]
                    self._add(ids, way, snapshots[stop], spared.union(own))
        finally:
            for one in ((ids, stops), spare or ((), ())):
                self._prune((self._path(*one) or [self._root])[-1])

    def bring_back(
        self, ids: Sequence[int], stops: Sequence[int], start: int, end: int
    ) -> Snapshot:
        """Write the passes from ``start`` to ``end`` into the executor's and the draft's caches.

        Both are stops, the passes before ``start`` are in place, and there is a state at ``end``:
        it is returned, on the executor's device, for the executor to go back to.

        Raises:
            RuntimeError: the device has no more memory. The caches behind ``start`` are void then.
        """
        path = [node for node in self._path(ids, stops) if node.stop <= end]
        before = 0
        for node in path:
            if node.stop > start:
                self._store.read(node.caches, self._slices(before, node.stop))
            before = node.stop
        state = path[-1].state
        if before != end or state is None:
            raise ValueError(f"nothing is parked at position {end}")
        tensors = [torch.empty_like(one, device=state.device) for one in state.like]
        self._store.read(state.pages, tensors)
        hidden = tensors.pop() if state.with_hidden else None
        return Snapshot(end, hidden, tuple(tensors))

    def clear(self) -> None:
        """Forget everything."""
        for node in list(self._nodes()):
            self._free(node)
        self._root.children.clear()

    @property
    def _caches(self) -> tuple[torch.Tensor, ...]:
        return self._executor.caches

    def _slices(self, start: int, stop: int) -> list[torch.Tensor]:
        """What the positions of one pass hold in every cache."""
        own = [one[:, start:stop] for one in self._caches]
        if self._draft is not None:
            # Its row p needs the id at p + 1, so the last row of a pass comes with the next one.
            own += [one[:, max(start - 1, 0) : stop - 1] for one in self._draft.caches]
        return own

    def _path(self, ids: Sequence[int], stops: Sequence[int]) -> list[_Node]:
        """The nodes of these passes, as far as they are here."""
        found, node = list[_Node](), self._root
        for stop in stops:
            child = node.children.get(_key(ids, node.stop, stop))
            if child is None:
                break
            found.append(child)
            node = child
        return found

    def _add(
        self, ids: Sequence[int], way: Sequence[int], snapshot: Snapshot, spared: set[_Node]
    ) -> None:
        """Hold the passes of ``way``, and the state at its end, if there is room for it."""
        path = self._path(ids, way)
        if len(path) == len(way) and path[-1].state is not None:
            return
        new = list(zip([0, *way], way, strict=False))[len(path) :]
        hidden = snapshot.last_hidden
        tensors = [*snapshot.state, *(() if hidden is None else (hidden,))]
        sizes = [sum(one.nbytes for one in self._slices(*place)) for place in new]
        pages = sum(map(self._store.needed, [*sizes, sum(one.nbytes for one in tensors)]))
        small = sum(_node_bytes(stop - start) for start, stop in new)
        if not self._make_room(pages, small, spared):
            return
        node = path[-1] if path else self._root
        for start, stop in new:
            caches = self._store.write(self._slices(start, stop))
            key = _key(ids, start, stop)
            node.children[key] = _Node(stop, key, caches, node, used=self._clock)
            node = node.children[key]
            self._nodes_bytes += _node_bytes(stop - start)
        node.state = _State(
            self._store.write(tensors),
            tuple(torch.empty_like(one, device="meta") for one in tensors),
            tensors[0].device if tensors else None,
            hidden is not None,
        )

    def _make_room(self, pages: int, small: int, spared: set[_Node]) -> bool:
        """Let the conversations go that were used longest ago, but only if that is enough."""

        def lacking(going: Iterable[_Node] = ()) -> bool:
            out = list(going)
            free = self._store.available + sum(node.pages for node in out)
            held = self.num_bytes - sum(
                node.pages * self._store.page_bytes + _node_bytes(len(node.ids) // _ID_BYTES)
                for node in out
            )
            more = pages * self._store.page_bytes + small
            return free < pages or held + more > self.budget

        if lacking(node for node in self._nodes() if node not in spared):
            return False
        while lacking():
            states = [node for node in self._nodes() if node.state and node not in spared]
            oldest = min(states, key=lambda node: (node.used, not node.children))
            self.evictions += 1
            self._drop_state(oldest)
            self._prune(oldest, spared)
        return True

    def _thin_out(self, path: Sequence[_Node], keep: Collection[int], spared: set[_Node]) -> None:
        """Drop the states of a conversation that it does not keep, unless it shares them."""
        own = {*path}
        for node in path:
            shared = node in spared or not own.issuperset(node.children.values())
            if node.stop not in keep and not shared:
                self._drop_state(node)

    def _prune(self, node: _Node, spared: Collection[_Node] = ()) -> None:
        """Drop a branch's end that leads to no state."""
        while node.parent is not None and not node.children and node.state is None:
            if node in spared:
                return
            parent = node.parent
            parent.children.pop(node.ids, None)
            self._free(node)
            node = parent

    def _drop_state(self, node: _Node) -> None:
        state, node.state = node.state, None
        if state is not None:
            self._store.release(state.pages)

    def _free(self, node: _Node) -> None:
        """Give back what a node holds; it is in the tree no more."""
        self._drop_state(node)
        self._store.release(node.caches)
        self._nodes_bytes -= _node_bytes(len(node.ids) // _ID_BYTES)

    def _nodes(self) -> Iterator[_Node]:
        waiting = [*self._root.children.values()]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())


_ID_BYTES = array("i").itemsize


def _key(ids: Sequence[int], start: int, stop: int) -> bytes:
    return array("i", ids[start:stop]).tobytes()


def _node_bytes(num_ids: int) -> int:
    return NODE_BYTES + num_ids * _ID_BYTES
