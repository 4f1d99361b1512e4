"""Conversations that make room for one another: back to the bit, under a budget, the oldest go.

The model is the small one of ``test_prompt_reader``, cut into passes of a few ids.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from bytebound.drafts.base import Proposal
from bytebound.parked import ParkedConversations
from bytebound.prompt_reader import PromptReader, cuts
from bytebound.scripted import ScriptedDraft, ScriptedExecutor
from hypothesis import given, settings
from hypothesis import strategies as st

from .test_prompt_reader import (
    CHUNK,
    DRAFTS,
    FLOOR,
    PLENTY,
    TURN,
    Model,
    Reader,
    assert_same,
    decode,
    model,
    related,
    some_ids,
)

__all__ = ["model"]  # a fixture

SHORT = list(range(20, 20 + 2 * FLOOR - 1))  # one id less than what is parked


def stops_of(prompt: list[int]) -> list[int]:
    return [*cuts(prompt, chunk=CHUNK, floor=FLOOR, turn_starts={TURN}), len(prompt)]


def kept_stops(prompt: list[int]) -> list[int]:
    """The stops that may be parked: the end only if it lies far behind the last cut."""
    cut, end = [0, *stops_of(prompt)][-2:]
    return stops_of(prompt)[: None if cut == 0 or end - cut >= 2 * FLOOR else -1]


def shared_stop(prompt: list[int], other: list[int], *, resident: bool = False) -> int:
    """The last stop of both, kept of the other, up to which they are the same."""
    both = {*stops_of(prompt)} & {*(stops_of if resident else kept_stops)(other)}
    return max((stop for stop in both if prompt[:stop] == other[:stop]), default=0)


def parked(reader: PromptReader) -> ParkedConversations:
    assert reader.parked is not None
    return reader.parked


def check_tree(tree: ParkedConversations) -> None:
    """Within the budget, no page lost, and no branch that leads to no state."""
    nodes = list(tree._nodes())
    assert tree.num_bytes <= tree.budget
    assert tree._store.used == sum(node.pages for node in nodes)
    assert all(node.children or node.state for node in nodes)
    pages = [id(page) for node in nodes for page in node.caches]
    pages += [id(page) for node in nodes if node.state for page in node.state.pages]
    assert len({*pages, *map(id, tree._store._free)}) == len(pages) + len(tree._store._free)


def rows_for(reader: Reader, prompt: list[int], cold: Reader | None = None) -> int:
    """Read a prompt; how many of its ids were processed. As a cold reader reads it, if given."""
    before = reader.executor.rows
    got = reader.read(prompt)
    rows = reader.executor.rows - before
    assert reader.cached_tokens == len(prompt) - rows
    check_tree(parked(reader))
    if cold is not None:
        assert torch.equal(got, cold.read(prompt))
        assert_same(reader, cold, len(prompt))
    return rows


def conversation(seed: int, count: int = 60) -> list[int]:
    choose = random.Random(seed)
    return [choose.randrange(10, 150), *some_ids(choose, count - 1)]


def watch_budget(reader: PromptReader) -> Callable[[], int]:
    """The most bytes in use at any moment from now on."""
    store = parked(reader)._store
    taken, most = store.write, 0

    def write(tensors: Sequence[torch.Tensor]) -> Any:
        nonlocal most
        pages = taken(tensors)
        most = max(most, parked(reader).num_bytes)
        return pages

    store.write = write  # type: ignore[method-assign]
    return lambda: most


class TestWarmIsCold:
    @pytest.mark.parametrize("draft", DRAFTS)
    @settings(max_examples=5, deadline=None)
    @given(
        seed=st.integers(0, 2**32),
        budget=st.sampled_from([30_000, 90_000, 250_000, PLENTY]),
        snapshots=st.sampled_from([1, 2, 5, 1000]),
    )
    def test_any_order_of_related_prompts(
        self, model: Model, draft: str, seed: int, budget: int, snapshots: int
    ) -> None:
        """E01: branches, edits, cuts back and repeats of any earlier prompt, answers between."""
        choose = random.Random(seed)
        warm = model.reader(draft, snapshots=snapshots, parked=budget)
        cold = model.reader(draft, snapshots=0)
        most = watch_budget(warm)
        earlier: list[list[int]] = []
        for _ in range(8):
            prompt = related(choose, earlier)
            earlier.append(prompt)
            rows_for(warm, prompt, cold)
            assert warm.kept_bytes <= snapshots * warm.executor.snapshot_bytes
            decode(warm, choose, choose.randint(0, 3))
        assert most() <= budget
        assert parked(warm)._store.reserved_bytes <= budget

    @pytest.mark.parametrize("draft", DRAFTS)
    def test_three_conversations_take_turns(self, model: Model, draft: str) -> None:
        """Each turn costs what is behind the last stop that it shares with its own last one."""
        warm, cold = model.reader(draft, parked=PLENTY), model.reader(draft, snapshots=0)
        choose = random.Random(4)
        talks = [conversation(seed, 50 + 5 * seed) for seed in range(3)]
        last, before = [list[int]() for _ in talks], -1
        for turn in range(6):
            for index in choose.sample(range(3), 3):
                prompt = talks[index]
                rows = rows_for(warm, prompt, cold)
                shared = shared_stop(prompt, last[index], resident=index == before)
                assert rows == len(prompt) - shared, (turn, index)
                last[index], before = prompt, index
                decode(warm, choose, 2)
                more = [TURN, *some_ids(choose, 8), TURN, 11]
                talks[index] = [*prompt, *some_ids(choose, 4), *more]
        assert warm.beginnings.parked > 10
        assert parked(warm).evictions == 0
        # The last one of each; the end of its prompt was for the same prompt again.
        assert parked(warm).deepest(last[0], stops_of(last[0])) > 80

    def test_an_edit_falls_back_to_the_parked_states(self, model: Model) -> None:
        """The states that stayed behind when one of them came back still serve."""
        warm, cold = model.reader("mtp", parked=PLENTY), model.reader("mtp", snapshots=0)
        talk, other = conversation(1, 150), conversation(2, 60)
        for prompt in (talk, other, [*talk, TURN, 11], [*talk[:100], 9, *talk[100:]]):
            rows = rows_for(warm, prompt, cold)
        assert warm.cached_tokens == shared_stop(talk, [*talk[:100], 9]) > 70
        assert rows == 151 - warm.cached_tokens
        assert warm.beginnings.parked == 2

    def test_the_same_prompt_again_costs_next_to_nothing(self, model: Model) -> None:
        warm, cold = model.reader("mtp", parked=PLENTY), model.reader("mtp", snapshots=0)
        for turn in range(3):
            for seed in range(3):
                talk = conversation(seed, 55 + 3 * seed)
                rows = rows_for(warm, talk, cold)
                assert rows == len(talk) - (shared_stop(talk, talk) if turn else 0)
                assert rows < 2 * FLOOR or turn == 0


class TestWhatIsParked:
    def test_a_short_request_is_not(self, model: Model) -> None:
        """The title of a conversation costs its own ids, and the conversation nothing."""
        warm, cold = model.reader("mtp", parked=PLENTY), model.reader("mtp", snapshots=0)
        talk = conversation(1, 90)
        rows_for(warm, talk, cold)
        rows_for(warm, SHORT, cold)
        held = parked(warm).num_bytes
        assert parked(warm).count == 1
        longer = [*talk, TURN, 11]
        assert rows_for(warm, longer, cold) == len(longer) - shared_stop(longer, talk)
        assert parked(warm).num_bytes == held
        assert rows_for(warm, SHORT, cold) == len(SHORT)

    def test_a_growing_conversation_is_not(self, model: Model) -> None:
        """What it overwrites of itself is less than it costs to keep."""
        reader, talk = model.reader(parked=PLENTY), conversation(1)
        for _ in range(6):
            rows_for(reader, talk)
            talk = [*talk, 20, TURN, 21, 22]
        assert parked(reader).num_bytes == 0

    def test_a_text_that_grows_without_turns_is_not(self, model: Model) -> None:
        """Its old end is of no use, however far it lies behind the last cut."""
        reader, text = model.reader(parked=PLENTY), [10 + i % 99 for i in range(CHUNK - 1)]
        for _ in range(3):
            rows_for(reader, text)
            text = [*text, *range(30, 30 + CHUNK)]
        assert parked(reader).num_bytes == 0
        rows_for(reader, [*text[:5], 9])  # but one that parts from it
        assert parked(reader).count == 1

    def test_what_is_forgotten_does_not_come_back(self, model: Model) -> None:
        reader, cold = model.reader("mtp", parked=PLENTY), model.reader("mtp", snapshots=0)
        for seed in (1, 2):
            rows_for(reader, conversation(seed))
        reader.forget()
        assert parked(reader).num_bytes == reader.kept_bytes == 0
        for seed in (1, 2):
            assert rows_for(reader, conversation(seed), cold) == 60

    def test_what_two_share_is_held_once(self, model: Model) -> None:
        reader, start = model.reader(parked=PLENTY), conversation(1, 96)
        talks = [[*start, *conversation(seed, 40)] for seed in (2, 3)]
        for talk in talks:
            rows_for(reader, talk)
            rows_for(reader, SHORT)
        held = sum(node.stop - node.parent.stop for node in parked(reader)._nodes())
        assert held == sum(kept_stops(talk)[-1] for talk in talks) - shared_stop(*talks)
        assert shared_stop(*talks) > 80
        assert parked(reader).count == 2

    def test_what_is_there_is_not_copied_again(self, model: Model) -> None:
        reader = model.reader("mtp", snapshots=3, parked=PLENTY)
        talk, written = conversation(1, 150), list[int]()
        store = parked(reader)._store
        write = store.write

        def counting(tensors: Sequence[torch.Tensor]) -> Any:
            written.append(sum(one.nbytes for one in tensors))
            return write(tensors)

        store.write = counting  # type: ignore[method-assign]
        reader.read(talk)
        for _ in range(3):
            reader.read(conversation(2, 30))
            first = sum(written)
            written.clear()
            talk = [*talk, TURN, *some_ids(random.Random(3), 12), TURN, 11]
            reader.read(talk)
            assert parked(reader).deepest(talk, stops_of(talk)) > 140
        assert first > 0
        reader.read(conversation(2, 30))
        states = 2 * reader.executor.snapshot_bytes
        position = sum(one[:, :1].nbytes for one in reader.executor.caches) * 1.5
        assert sum(written) <= states + 2 * CHUNK * position

    def test_a_conversation_keeps_no_more_states_than_when_it_was_resident(
        self, model: Model
    ) -> None:
        """Turn after turn: else those of old turns would fill the budget."""
        reader, talk = model.reader(snapshots=3, parked=PLENTY), conversation(1, 60)
        for turn in range(15):
            reader.read(talk)
            reader.read(conversation(2, 40))
            stops = stops_of(talk)
            # Besides, one where the end of an earlier prompt hangs on: that branch is old.
            assert len(parked(reader).states(talk, stops)) <= 3 + 1
            talk = [*talk, TURN, *some_ids(random.Random(turn), 9), TURN, 11]
        tight = model.reader(snapshots=3, parked=12 * reader.executor.snapshot_bytes)
        for _ in range(3):
            tight.read(talk)
            tight.read(conversation(2, 40))
        assert 1 <= len(parked(tight).states(talk, stops_of(talk))) <= 3


class TestBudget:
    def test_the_one_used_longest_ago_goes_first(self, model: Model) -> None:
        talks = [conversation(seed, 64) for seed in range(6)]
        sizes = model.reader(snapshots=2, parked=PLENTY)
        for talk in talks[:2]:
            rows_for(sizes, talk)
        reader = model.reader(snapshots=2, parked=int(4.2 * parked(sizes).num_bytes))
        for talk in talks[:4]:
            rows_for(reader, talk)
        assert rows_for(reader, talks[0]) == 64 - kept_stops(talks[0])[-1]
        for talk in talks[4:]:
            rows_for(reader, talk)

        def held(index: int) -> int:
            return parked(reader).deepest(talks[index], stops_of(talks[index]))

        # Parked in this order: 0, 1, 2, 3, then 0 again, then 4, for which 1 had to go.
        there = [held(index) == kept_stops(talks[index])[-1] for index in range(5)]
        assert there == [True, False, True, True, True]
        assert parked(reader).evictions > 0
        assert rows_for(reader, talks[2]) == 64 - kept_stops(talks[2])[-1]
        assert rows_for(reader, talks[1]) == 64 - held(1)

    def test_the_place_to_go_on_from_outlives_those_before_it(self, model: Model) -> None:
        """A conversation that has to shrink loses the states on its way, and then all."""
        talk, reader = conversation(1, 150), model.reader(parked=600_000)
        rows_for(reader, talk)
        states = list[list[int]]()
        for seed in range(2, 14):
            rows_for(reader, conversation(seed, 60))
            states.append(parked(reader).states(talk, stops_of(talk)))
        last = kept_stops(talk)[-1]
        assert len(states[0]) > 5
        assert any(0 < len(held) < len(states[0]) for held in states)
        assert states[-1] == []
        assert all(held[-1] == last for held in states if held)
        assert [len(held) for held in states] == sorted(map(len, states), reverse=True)

    def test_what_does_not_fit_is_parked_as_far_as_it_does(self, model: Model) -> None:
        cold = model.reader(snapshots=0)
        reader = model.reader(parked=8 * cold.executor.snapshot_bytes)
        talk = conversation(1, 300)
        rows_for(reader, talk)
        rows_for(reader, conversation(2))
        assert parked(reader).evictions == 0
        assert 0 < 300 - rows_for(reader, talk, cold) < 250

    def test_what_is_to_come_back_does_not_go(self, model: Model) -> None:
        """Parking one may not push out the other, for which it makes room."""
        cold = model.reader(snapshots=0)
        one, other = conversation(1, 100), conversation(2, 100)
        sizes = model.reader(snapshots=2, parked=PLENTY)
        rows_for(sizes, one)
        rows_for(sizes, other)
        reader = model.reader(snapshots=2, parked=int(1.1 * parked(sizes).num_bytes))
        rows_for(reader, one)
        rows_for(reader, other)
        assert rows_for(reader, one, cold) == 100 - kept_stops(one)[-1]

    @pytest.mark.parametrize("budget", [1, 4095, 5000])
    def test_a_budget_for_nothing(self, model: Model, budget: int) -> None:
        reader = model.reader(parked=budget)
        for seed in (1, 2, 1):
            assert rows_for(reader, conversation(seed)) == 60
        assert parked(reader).num_bytes == parked(reader).count == 0

    def test_no_states_no_conversations(self, model: Model) -> None:
        assert model.reader(snapshots=0, parked=PLENTY).parked is None
        assert model.reader(parked=0).parked is None


def fail_at(call: int, error: BaseException, real: Callable[..., Any]) -> Callable[..., Any]:
    """``real``, which fails at one of its calls."""
    left = call

    def failing(*given: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise error
        return real(*given)

    return failing


OUT = torch.OutOfMemoryError("out of memory, for the test")
ERRORS: list[BaseException] = [KeyboardInterrupt(), OUT]


class TestTrouble:
    @pytest.mark.parametrize("error", ERRORS, ids=["interrupt", "memory"])
    @pytest.mark.parametrize("name", ["read", "write"])
    @pytest.mark.parametrize("call", [0, 1, 3])
    def test_a_failure_while_one_comes_or_goes(
        self,
        model: Model,
        monkeypatch: pytest.MonkeyPatch,
        error: BaseException,
        name: str,
        call: int,
    ) -> None:
        """E07: a copy too few costs time; an interrupt costs the request, and no other."""
        warm, cold = model.reader("mtp", parked=PLENTY), model.reader("mtp", snapshots=0)
        start = conversation(0, 40)
        talks = [[*start, *conversation(seed, 60)] for seed in range(3)]
        for talk in talks:
            rows_for(warm, talk, cold)
        coming, store = [*talks[0], TURN, 11], parked(warm)._store  # for which talk 2 is parked
        with monkeypatch.context() as patched:
            patched.setattr(store, name, fail_at(call, error, getattr(store, name)))
            if isinstance(error, KeyboardInterrupt):
                with pytest.raises(KeyboardInterrupt):
                    warm.read(coming)
            else:
                rows_for(warm, coming, cold)
        for prompt in (coming, talks[1], talks[2], talks[0]):
            rows_for(warm, prompt, cold)
        assert warm.cached_tokens == shared_stop(talks[0], talks[0])

    @pytest.mark.parametrize("draft", DRAFTS)
    @pytest.mark.parametrize("where", ["restore", "reset", "snapshot", "resume"])
    def test_a_failure_while_state_is_moved(
        self, model: Model, monkeypatch: pytest.MonkeyPatch, draft: str, where: str
    ) -> None:
        warm, cold = model.reader(draft, parked=PLENTY), model.reader(draft, snapshots=0)
        one, other = conversation(1, 70), conversation(2, 70)
        warm.read(one)
        warm.read(other)
        longer = [*one, TURN, *some_ids(random.Random(3), 20)]
        owner = warm.draft if where == "resume" else warm.executor
        if owner is not None:
            real = getattr(owner, where)
            with monkeypatch.context() as patched:
                patched.setattr(owner, where, fail_at(0, KeyboardInterrupt(), real))
                with pytest.raises(KeyboardInterrupt):
                    warm.read(conversation(3) if where == "reset" else longer)
        for prompt in (longer, other, one, longer):
            rows_for(warm, prompt, cold)
        assert warm.cached_tokens > 60

    @pytest.mark.parametrize("failing", [0, 1, 2])
    def test_a_pass_that_fails_after_one_came_back(self, model: Model, failing: int) -> None:
        warm, cold = model.reader("mtp", parked=PLENTY), model.reader("mtp", snapshots=0)
        one, other = conversation(1, 70), conversation(2, 70)
        warm.read(one)
        warm.read(other)
        longer = [*one, *some_ids(random.Random(3), 80)]
        warm.executor.fail_in = failing
        with pytest.raises(torch.OutOfMemoryError):
            warm.read(longer)
        for prompt in (other, longer, one):
            rows_for(warm, prompt, cold)

    def test_numbers_that_are_not_finite_are_not_kept(self, model: Model) -> None:
        """A copy that was damaged on the host would otherwise come back for ever."""
        reader, cold = model.reader(parked=PLENTY), model.reader(snapshots=0)
        one, other = conversation(1, 70), conversation(2, 70)
        reader.read(one)
        reader.read(other)
        with torch.inference_mode():
            for node in parked(reader)._nodes():
                for page in (*node.caches, *(node.state.pages if node.state else ())):
                    page.fill_(0xFF)
        assert reader.read([*one, 11]).isnan().all()
        assert parked(reader).num_bytes == parked(reader).count == 0
        for prompt in ([*one, 11], other):
            assert rows_for(reader, prompt, cold) == len(prompt)

    def test_scoring_takes_the_resident_one_only(self, model: Model) -> None:
        reader, cold = model.reader("mtp", parked=PLENTY), model.reader("mtp", snapshots=0)
        one, other = conversation(1, 70), conversation(2, 70)
        reader.read(one)
        reader.read(other)
        reader.executor.score(conversation(3, 80))
        assert rows_for(reader, one, cold) == 70 - kept_stops(one)[-1]
        assert rows_for(reader, other, cold) == 70

    def test_two_readers_of_one_executor(self, model: Model) -> None:
        """What one brings back is no prompt of the other."""
        cold, one = model.reader(snapshots=0), model.reader(parked=PLENTY)
        other = PromptReader(one.executor, turn_starts={TURN}, conversation_bytes=PLENTY)
        talks = [conversation(seed, 60) for seed in range(3)]
        turns = random.Random(1)
        for _ in range(25):
            reader, talk = turns.choice([one, other]), turns.choice(talks)
            assert torch.equal(reader.read(talk), cold.read(talk))
            assert_same(reader, cold, len(talk))
        assert one.beginnings.parked > 0 < other.beginnings.parked

    def test_a_draft_that_cannot_be_parked_switches_it_off(self, model: Model) -> None:
        class OnlyBack:
            name = "only back"

            def begin(self, first_id: int) -> None: ...
            def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None: ...
            def rewind(self, length: int) -> None: ...
            def propose(self, count: int, sampler: object) -> Proposal:
                return Proposal(())

        executor = model.reader().executor
        reader = PromptReader(executor, OnlyBack(), conversation_bytes=PLENTY)
        assert reader.parked is None
        for _ in range(2):
            reader.read(conversation(1))
        assert reader.cached_tokens == 60


def test_scripts_park_their_positions() -> None:
    """With nothing but ids to hold: the tree has its own bytes, so its size is bounded too."""
    steps = [[5], [6, 7], [8]]
    draft = ScriptedDraft(steps)
    executor = ScriptedExecutor(steps, 40)
    reader = PromptReader(executor, draft, conversation_bytes=20_000)
    talks = [[one, *range(10, 39), *range(10, 39), *range(10, 24)] for one in range(40)]
    for talk in talks:
        reader.read(talk)
        assert parked(reader).num_bytes <= 20_000
    assert 15 < parked(reader).count < 40
    assert int(reader.read([*talks[-2]]).argmax()) == 5
    assert (reader.cached_tokens, executor.position, draft.observed) == (73, 73, talks[-2])
    reader.read(talks[0])
    assert reader.cached_tokens == 0


@pytest.mark.parametrize("draft", ["mtp", "ngram"])
def test_a_draft_resumes_from_anything(model: Model, draft: str) -> None:
    """Whatever it saw before, and wherever that was interrupted."""
    choose = random.Random(1)
    for _ in range(30):
        one, other = model.reader(draft).draft, model.reader(draft).draft
        shared = some_ids(choose, choose.randint(1, 20))
        before = [*shared, *some_ids(choose, choose.randint(0, 9))]
        after = [*shared[: choose.randint(1, 20)], *some_ids(choose, choose.randint(0, 9))]
        if draft == "mtp":
            one.resume(after)
            assert one.length == len(after) - 1
            continue
        if choose.random() < 0.9:
            one.begin(before[0])
            one.observe(before[1:], None)
        if choose.random() < 0.3:
            one.ids.append(after[min(len(one.ids), len(after) - 1)])  # and no n-grams of it
        one.resume(after)
        other.begin(after[0])
        other.observe(after[1:], None)
        assert (one.ids, one._ends) == (other.ids, other._ends)
