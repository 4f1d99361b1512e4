import re
from pathlib import Path
from typing import Any

import pytest
from bytebound_evals.data import heldout_text
from bytebound_evals.errors import SettingError, SourceError
from bytebound_evals.needle import (
    Find,
    NeedleSettings,
    NeedleTable,
    default_lengths,
    hide,
    lengths_of,
    make_needle,
    measure_needles,
)
from bytebound_evals.needle_plot import draw_needle_map

from .quality_engines import ReplyEngine, tiny

TEXT = heldout_text()[:40_000]
SENTENCE = re.compile(r"The secret number of (\w+) is (\d{7})\.")


def read(prompt: str) -> str:
    """A reader that finds everything."""
    found = SENTENCE.findall(prompt)
    asked = prompt.rpartition("secret number of ")[2].split("?")[0].split()[0]
    return f"It is {dict(found)[asked]}."


def measure(engine: Any, **settings: Any) -> NeedleTable:
    return measure_needles(engine, TEXT, NeedleSettings(**settings))


@pytest.mark.parametrize("mode", ["chat", "completion"])
def test_a_reader_that_finds_everything_scores_one(mode: str) -> None:
    engine = ReplyEngine(read)
    found = measure(engine, lengths=(400, 900), depths=(0, 0.5, 1), trials=2, mode=mode)
    assert found.share() == 1
    assert (len(engine.prompts), found.lengths, found.depths) == (12, [400, 900], [0, 0.5, 1])


def test_prompts_leave_room_for_the_answer_and_little_else() -> None:
    found = measure(ReplyEngine(read), lengths=(400, 1500), depths=(0, 0.3), max_tokens=30)
    for find in found.finds:
        assert find.length - 30 - 12 <= find.prompt_tokens <= find.length - 30


def test_the_needle_stands_at_its_depth() -> None:
    engine = ReplyEngine(read)
    measure(engine, lengths=(3000,), depths=(0, 0.25, 0.5, 0.75, 1))
    for prompt, depth in zip(engine.prompts, (0, 0.25, 0.5, 0.75, 1), strict=True):
        body = prompt.removeprefix("<|im_start|>user\n").rpartition("\n\nWhat is the")[0]
        found = SENTENCE.search(body)
        assert found is not None
        place = found.start() / (len(body) - len(found[0]))
        assert place == pytest.approx(depth, abs=0.05)
        assert len(SENTENCE.findall(body)) == 1


def test_a_reader_that_sees_the_end_only_fails_elsewhere() -> None:
    def short_sighted(prompt: str) -> str:
        return read(prompt) if SENTENCE.search(prompt[-400:]) else "I do not know."

    found = measure(ReplyEngine(short_sighted), lengths=(1200,), depths=(0, 0.5, 1))
    assert [found.share(1200, depth) for depth in found.depths] == [0, 0, 1]
    assert found.share() == pytest.approx(1 / 3)


def test_every_run_asks_the_same() -> None:
    asked = []
    for _ in range(2):
        engine = ReplyEngine(read)
        measure(engine, lengths=(400,), depths=(0, 1), trials=3)
        asked.append(engine.prompts)
    assert asked[0] == asked[1]
    assert len(set(asked[0])) == 6


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ("1234567", True),
        ("The number is 1,234,567.", True),
        ("1 234 567", True),
        ("12345678", False),
        ("91234567", False),
        ("1234568", False),
        ("", False),
    ],
)
def test_only_the_whole_number_counts(reply: str, found: bool) -> None:
    from bytebound_evals.needle import _holds

    assert _holds(reply, "1234567", thinking=False) is found


def test_a_number_that_is_only_thought_of_is_not_an_answer() -> None:
    thinking = {"lengths": (400,), "depths": (0.5,), "thinking": True}
    assert measure(ReplyEngine(read), **thinking).share() == 0
    assert measure(ReplyEngine(lambda p: f"hm</think>{read(p)}"), **thinking).share() == 1


def test_a_short_haystack_is_repeated() -> None:
    engine = ReplyEngine(read)
    settings = NeedleSettings(lengths=(1500,), depths=(0.5,))
    found = measure_needles(engine, "A short text. It has two sentences. ", settings)  # type: ignore[arg-type]
    assert found.share() == 1 and found.finds[0].prompt_tokens > 1400


def test_a_sentence_is_hidden_between_sentences() -> None:
    text = "One two. Three four! Five?\nSix"
    assert hide(text, "HERE.", 0) == "HERE.\nOne two. Three four! Five?\nSix"
    assert hide(text, "HERE.", 0.4) == "One two.\nHERE.\nThree four! Five?\nSix"
    assert hide(text, "HERE.", 1) == f"{text}\nHERE."
    assert hide("", "HERE.", 0.5) == "HERE."


def test_lengths_go_up_to_the_models_limit() -> None:
    assert default_lengths(8192) == (1024, 2048, 4096, 8192)
    assert default_lengths(262_144)[-2:] == (131_072, 262_144)
    assert default_lengths(3000) == (1024, 2048, 3000)


def test_lengths_as_a_user_writes_them() -> None:
    assert lengths_of(["4096", "4k", "8K", " 1m"]) == (4096, 8192, 1 << 20)
    with pytest.raises(SettingError, match="length '4g': expected a number of tokens"):
        lengths_of(["4g"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lengths": (100,)}, "length 100: expected at least 304 tokens"),
        ({"lengths": (400,), "depths": (1.5,)}, "depth 1.5: expected a share from 0 to 1"),
        ({"lengths": (400,), "depths": (float("nan"),)}, "depth nan"),
        ({"lengths": ()}, "needs a length"),
        ({"lengths": (400,), "trials": 0}, "a trial"),
        ({"lengths": (400,), "mode": "raw"}, "mode is 'raw'"),
        ({"lengths": (400,), "mode": "completion", "thinking": True}, "needs the mode chat"),
    ],
)
def test_settings_that_cannot_be_are_an_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        NeedleSettings(**settings)


def test_a_length_beyond_the_context_is_refused_before_anything_is_asked() -> None:
    engine = ReplyEngine(read, max_len=1000)
    with pytest.raises(SettingError, match="length 1001 is beyond the context of 1000"):
        measure(engine, lengths=(400, 1001))
    assert engine.prompts == []


@pytest.mark.parametrize(
    ("haystack", "message"),
    [(" \n", "the haystack is empty"), ("The secret number of Oz is 1.", "holds sentences of")],
)
def test_a_haystack_that_cannot_be_used_is_an_error(haystack: str, message: str) -> None:
    settings = NeedleSettings(lengths=(400,))
    with pytest.raises(SourceError, match=message):
        measure_needles(ReplyEngine(read), haystack, settings)  # type: ignore[arg-type]


def table() -> NeedleTable:
    finds = [
        Find(length, depth, 0, length - 50, "1", "", found=depth == 1)
        for length in (400, 800)
        for depth in (0.0, 0.5, 1.0)
    ]
    return NeedleTable(tuple(finds))


def test_the_heat_map_holds_every_cell(tmp_path: Path) -> None:
    draw_needle_map(table(), tmp_path / "new" / "map.svg", title="made-up")
    drawn = (tmp_path / "new" / "map.svg").read_text()
    assert drawn.count("<!-- 100% -->") == 2 + 1  # two cells, one row label
    assert drawn.count("<!-- 0% -->") == 4 + 1
    for label in ("400", "800", "50%", "made-up", "depth of the needle", "length (tokens)"):
        assert f"<!-- {label} -->" in drawn
    draw_needle_map(table(), tmp_path / "map.png", title="made-up")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_kind_of_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"expected a file that ends in \.png or \.svg"):
        draw_needle_map(table(), tmp_path / "map.jpg", title="")


def test_tiny_is_asked_and_reported_honestly() -> None:
    """The shipped model finds what stands near the question, and not what stands far from it."""
    found = measure(tiny(), lengths=(512,), depths=(0, 1))
    assert [len(find.number) for find in found.finds] == [7, 7]
    for find in found.finds:
        assert find.found == (find.number in find.reply)
    assert found.share(depth=1.0) == 1
    assert make_needle(512, 1.0, 0).number == found.finds[1].number
