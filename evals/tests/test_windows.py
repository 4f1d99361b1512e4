import pytest
from bytebound_evals.errors import SettingError, SourceError
from bytebound_evals.windows import CutText, WindowRule, cut_document, cut_text
from hypothesis import given
from hypothesis import strategies as st

P = 99  # the prefix id


def cut(tokens: int, rule: WindowRule) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Ids and targets of each window over the ids 0, 1, ..."""
    return [(one.ids, one.targets) for one in cut_document(0, range(tokens), rule)]


def test_without_a_prefix_the_first_id_of_a_window_is_context() -> None:
    assert cut(8, WindowRule(4)) == [((0, 1, 2, 3), (1, 2, 3)), ((4, 5, 6, 7), (5, 6, 7))]


def test_a_document_prefix_is_one_more_id_of_the_document() -> None:
    rule = WindowRule(4, prefix="document", prefix_id=P)
    assert cut(5, rule) == [((P, 0, 1, 2), (0, 1, 2)), ((3, 4), (4,))]


def test_a_window_prefix_takes_a_place_in_every_window() -> None:
    rule = WindowRule(4, prefix="window", prefix_id=P)
    assert cut(5, rule) == [((P, 0, 1, 2), (0, 1, 2)), ((P, 3, 4), (3, 4))]


def test_windows_that_overlap_score_only_what_is_new() -> None:
    assert cut(7, WindowRule(4, stride=2)) == [
        ((0, 1, 2, 3), (1, 2, 3)),
        ((2, 3, 4, 5), (4, 5)),
        ((4, 5, 6), (6,)),
    ]


def test_a_last_window_with_nothing_to_score_is_left_out() -> None:
    assert cut(5, WindowRule(4)) == [((0, 1, 2, 3), (1, 2, 3))]


@given(
    tokens=st.integers(1, 60),
    window=st.integers(2, 20),
    stride=st.integers(1, 20) | st.none(),
    prefix=st.sampled_from(["none", "document", "window"]),
)
def test_no_id_is_scored_twice_and_all_but_the_stated_ones_are(
    tokens: int, window: int, stride: int | None, prefix: str
) -> None:
    capacity = window - (prefix == "window")
    stride = None if stride is None else min(stride, capacity)
    rule = WindowRule(window, stride, prefix, None if prefix == "none" else P)
    windows = list(cut_document(0, range(tokens), rule))
    scored = [target for one in windows for target in one.targets]
    assert scored == sorted(set(scored))
    missing = set(range(tokens)) - set(scored)
    # A window whose first id nobody scored before loses it, unless something stands in front.
    if prefix == "window" or (prefix == "document" and rule.step < capacity):
        assert not missing
    elif rule.step < capacity:
        assert missing <= {0}
    else:
        offset = prefix == "document"
        assert missing == {i for i in range(tokens) if (i + offset) % window == 0}
    for one in windows:
        assert len(one.ids) <= window
        assert list(range(one.rows.start, one.rows.stop)) == [
            place - 1 for place in range(one.first, len(one.ids))
        ]
        body = one.ids[prefix == "window" :]
        plain = [i for i in body if i != P]
        assert plain == list(range(plain[0], plain[-1] + 1))


def text(*lengths: int, rule: WindowRule | None = None, max_tokens: int | None = None) -> CutText:
    documents = [list(range(length)) for length in lengths]
    return cut_text("made-up", documents, rule or WindowRule(4), max_tokens=max_tokens)


def test_no_window_reaches_into_another_document() -> None:
    cut = text(5, 4)
    assert [(one.document, one.ids) for one in cut.windows] == [
        (0, (0, 1, 2, 3)),
        (1, (0, 1, 2, 3)),
    ]
    assert (cut.documents, cut.tokens, cut.scored) == (2, 9, 6)


def test_the_text_ends_after_max_tokens() -> None:
    cut = text(6, 6, 6, max_tokens=10)
    assert (cut.documents, cut.tokens) == (2, 10)
    assert cut.windows[-1].ids == (0, 1, 2, 3)


def test_a_text_that_max_tokens_cuts_within_a_document_is_no_empty_one() -> None:
    assert text(6, 6, max_tokens=7).scored == text(6).scored


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((), "there is no document"),
        ((5, 0), "document 2 is empty"),
        ((5, 1), "document 2 is a single token"),
        ((3, 2), "the longest document has 3 tokens, shorter than the window of 4"),
    ],
)
def test_a_text_that_cannot_be_measured_on_is_an_error(
    lengths: tuple[int, ...], message: str
) -> None:
    with pytest.raises(SourceError, match=f"^made-up: .*{message}"):
        text(*lengths)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"window": 1}, "window is 1"),
        ({"window": 4, "stride": 0}, "stride is 0"),
        ({"window": 4, "stride": 5}, "stride is 5, expected 1 to 4"),
        ({"window": 4, "stride": 4, "prefix": "window", "prefix_id": 1}, "expected 1 to 3"),
        ({"prefix": "bos"}, "prefix is 'bos', expected one of none, document, window"),
        ({"prefix": "window"}, "prefix 'window' with prefix id None"),
        ({"prefix_id": 3}, "prefix 'none' with prefix id 3"),
    ],
)
def test_a_rule_that_contradicts_itself_is_an_error(rule: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        WindowRule(**rule)  # type: ignore[arg-type]


def test_max_tokens_must_be_positive() -> None:
    with pytest.raises(SettingError, match="max tokens is 0"):
        text(5, max_tokens=0)
