"""Where prompts are cut, and which of the states there are kept."""

import pytest
from bytebound.executor import Snapshot
from bytebound.prompt_reader import cuts
from bytebound.snapshots import ReadPrompt, parking_pays, positions_to_keep
from hypothesis import given
from hypothesis import strategies as st

TURN = 1
ids_of_turns = st.lists(st.integers(1, 5), max_size=80)
positions = st.sets(st.integers(1, 200), max_size=40)


@given(ids=ids_of_turns, chunk=st.integers(1, 20), floor=st.integers(1, 25), end=st.integers(0, 80))
def test_a_cut_depends_on_the_ids_up_to_it_alone(
    ids: list[int], chunk: int, floor: int, end: int
) -> None:
    given = {"chunk": chunk, "floor": floor, "turn_starts": {TURN}}
    whole = cuts(ids, **given)
    assert cuts(ids[:end], **given) == [cut for cut in whole if cut < len(ids[:end])]
    # Whatever follows the id behind a cut, the cut is there.
    for cut in whole:
        assert cut in cuts([*ids[: cut + 1], 9, TURN, 9], **given)


@given(ids=ids_of_turns, chunk=st.integers(1, 20), floor=st.integers(1, 25))
def test_every_pass_is_bounded_and_turns_are_cut_where_it_pays(
    ids: list[int], chunk: int, floor: int
) -> None:
    found = cuts(ids, chunk=chunk, floor=floor, turn_starts={TURN})
    last = 0
    for cut in [*found, len(ids)]:
        assert cut - last <= chunk
        assert cut == len(ids) or cut - last == chunk or (cut - last >= floor and ids[cut] == TURN)
        # No turn starts within a pass, but right after its own start.
        assert all(ids[place] != TURN for place in range(last + floor, cut))
        last = cut


def test_no_turn_starts_known() -> None:
    assert cuts([TURN] * 10, chunk=4, floor=1, turn_starts=()) == [4, 8]
    assert cuts([TURN] * 8, chunk=4, floor=1, turn_starts=()) == [4]
    assert cuts([5], chunk=1, floor=1, turn_starts={5}) == []


@given(places=positions, count=st.integers(0, 12), more=st.integers(1, 50), at=st.integers(0, 200))
def test_at_most_so_many_are_kept(places: set[int], count: int, more: int, at: int) -> None:
    end = max(places, default=0) + more
    kept = positions_to_keep(places, end, count, opening=at)
    assert kept <= places | {end}
    assert len(kept) == min(count, len(places) + 1)
    if count == 1 and places:
        assert kept == {max(places)}
    if count >= 2:
        assert {end, max(places, default=end)} <= kept
    if count >= 3 and at in places:
        assert at in kept


def ids_read(kept: set[int], end: int, place: int) -> int:
    """What a prompt of the same length reads that parts from this one at ``place``."""
    return end - max([position for position in kept if position <= place], default=0)


@pytest.mark.parametrize("count", [6, 8, 12])
def test_they_lie_the_sparser_the_further_back(count: int) -> None:
    end = 100_000
    kept = positions_to_keep(range(1000, end, 1000), end, count)
    for place in range(500, end, 500):
        assert ids_read(kept, end, place) <= 4 * (end - place) + 1000, place


def test_a_growing_prompt_keeps_early_states() -> None:
    """Chosen anew at every turn from what is left, the choice stays as good."""
    kept = set[int]()
    for end in range(1000, 200_000, 700):
        new = range(max(kept, default=0) + 300, end, 300)
        kept = positions_to_keep({*kept, *new}, end, 8, opening=300) - {end}
        assert 300 in kept
        for place in range(500, end, 7_000):
            assert ids_read(kept, end, place) <= 6 * (end - place) + 1000, (end, place)


def snapshots(*places: int) -> dict[int, Snapshot]:
    return {place: Snapshot(place, None) for place in places}


@pytest.mark.parametrize(
    ("prompt", "stops", "position"),
    [
        ([1, 2, 3, 4, 5, 6], {2, 4, 6}, 4),
        ([1, 2, 3, 4, 5, 6], {2, 6}, 2),  # 4 is no cut of this prompt
        ([1, 2, 3, 9, 5, 6], {2, 4, 6}, 2),
        ([1, 9, 3, 4], {2, 4}, None),
        ([1, 2, 3, 4], {2, 4}, 4),  # its end
        ([1, 2, 3], {2, 3}, 2),
        ([1], {1}, None),
    ],
)
def test_the_deepest_state_that_is_the_prompts_own(
    prompt: list[int], stops: set[int], position: int | None
) -> None:
    read = ReadPrompt([1, 2, 3, 4, 5], snapshots(2, 4, 5))
    found = read.deepest(prompt, stops)
    assert (None if found is None else found.position) == position


def test_going_on_drops_what_is_written_again() -> None:
    read = ReadPrompt([1, 2, 3, 4, 5], snapshots(2, 4, 5), [2, 4, 5], 5)
    read.go_on([1, 2, 3, 4, 9, 9], [2, 4, 6], 4)
    assert (read.ids, sorted(read.snapshots)) == ([1, 2, 3, 4, 9, 9], [2, 4])
    assert (read.stops, read.length) == ([2, 4, 6], 4)


@pytest.mark.parametrize(
    ("prompt", "stops", "shared"),
    [
        ([1, 2, 3, 4, 5, 6], [2, 4, 6], 4),
        ([1, 2, 3, 4, 5, 6], [2, 4, 5, 6], 4),  # the last pass has not run
        ([1, 2, 3, 4, 5, 6], [2, 5, 6], 2),  # 4 is no cut of this prompt
        ([1, 2, 3, 9, 5], [2, 4, 5], 2),
        ([1, 2], [2], 2),
        ([9, 2], [2], 0),
    ],
)
def test_what_is_in_place_by_the_same_passes(
    prompt: list[int], stops: list[int], shared: int
) -> None:
    read = ReadPrompt([1, 2, 3, 4, 5], {}, [2, 4, 5], length=4)
    assert read.shared(prompt, stops) == shared


@pytest.mark.parametrize(("lost", "pays"), [(0, False), (511, False), (512, True), (9000, True)])
def test_parking_pays_from_so_many_ids_on(lost: int, pays: bool) -> None:
    assert parking_pays(lost, floor=256) == pays
