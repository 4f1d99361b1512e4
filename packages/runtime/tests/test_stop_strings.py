from itertools import pairwise

import pytest
from bytebound.text.stop_strings import StopStrings
from hypothesis import given
from hypothesis import strategies as st


def naive(text, stops):
    """Grow the text by a character at a time; the first stop string to be complete ends it."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(pieces, stops):
    watcher, shown, matched = StopStrings(stops), "", None
    for piece in pieces:
        emit, matched = watcher.push(piece)
        shown += emit
        if matched:
            break
    return shown + watcher.flush(), matched


letters = st.text(alphabet="abc", max_size=30)
stop_lists = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4)


@given(letters, stop_lists, st.data())
def test_any_split_gives_the_naive_answer(text, stops, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    edges = [0, *cuts, len(text)]
    pieces = [text[low:high] for low, high in pairwise(edges)]
    expected = naive(text, stops)
    assert run(pieces, stops) == expected
    assert run(list(text), stops) == expected


@given(letters, stop_lists)
def test_nothing_of_a_stop_string_is_shown_early(text, stops):
    expected, _ = naive(text, stops)
    watcher, shown = StopStrings(stops), ""
    for char in text:
        shown += watcher.push(char)[0]
        assert expected.startswith(shown)


@given(letters, stop_lists)
def test_no_more_is_held_back_than_could_begin_a_stop(text, stops):
    watcher, shown = StopStrings(stops), ""
    for index, char in enumerate(text):
        emit, matched = watcher.push(char)
        if matched:
            return
        shown += emit
        held = text[len(shown) : index + 1]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_match_across_pieces():
    watcher = StopStrings(["\nUser:"])
    assert watcher.push("Hi.\nUs") == ("Hi.", None)
    assert watcher.push("er: again") == ("", "\nUser:")
    assert watcher.matched == "\nUser:"
    assert watcher.push("more") == ("", "\nUser:")
    assert watcher.flush() == ""


def test_false_start_is_released():
    watcher = StopStrings(["</answer>"])
    assert watcher.push("a </ans") == ("a ", None)
    assert watcher.push("er") == ("</anser", None)
    assert watcher.push(" <") == (" ", None)
    assert watcher.flush() == "<"
    assert watcher.flush() == ""


def test_longest_of_those_that_complete_together():
    assert run(["xabc"], ["bc", "abc"]) == ("x", "abc")


def test_without_stop_strings_everything_passes():
    assert StopStrings(()).push("abc") == ("abc", None)


def test_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])
