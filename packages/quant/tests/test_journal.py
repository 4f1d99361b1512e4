from pathlib import Path

import pytest
from bytebound_quant.errors import ResumeError
from bytebound_quant.journal import JOURNAL_FILE, DoneUnit, differences, open_journal

IDENTITY = {"source": {"a.safetensors": "1" * 64}, "options": {"mse": True, "group_size": 128}}


def unit(name: str = "layer 0") -> DoneUnit:
    return DoneUnit(name, "a", "2" * 64, 10, 8, ["x"], [{"name": "x"}], 0.5)


def test_what_was_added_is_read_back(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, IDENTITY)
    journal.add(unit())
    journal.add(unit("layer 1"))
    assert open_journal(tmp_path, IDENTITY).units == [unit(), unit("layer 1")]
    journal.drop_from(1)
    assert open_journal(tmp_path, IDENTITY).units == [unit()]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({**IDENTITY, "source": {"a.safetensors": "3" * 64}}, "source a.safetensors"),
        ({**IDENTITY, "options": {"mse": False, "group_size": 128}}, "options mse (true then"),
        ({**IDENTITY, "options": {"mse": True}}, "options group_size (128 then, null now)"),
        ({**IDENTITY, "calibration": {"hash": "ab"}}, "calibration hash (null then"),
    ],
    ids=["source", "option", "fewer options", "calibration"],
)
def test_another_run_is_refused_by_what_differs(tmp_path: Path, other: dict, named: str) -> None:
    open_journal(tmp_path, IDENTITY).add(unit())
    with pytest.raises(ResumeError) as caught:
        open_journal(tmp_path, other)
    assert named in str(caught.value)


def test_a_run_that_finished_nothing_gives_way(tmp_path: Path) -> None:
    open_journal(tmp_path, IDENTITY)
    other = {"options": {"mse": False}}
    open_journal(tmp_path, other).add(unit())
    assert open_journal(tmp_path, other).units == [unit()]


def test_all_differences_are_named() -> None:
    assert differences({"a": {"x": 1, "y": 2}}, {"a": {"x": 1, "y": 3}, "b": {"z": 0}}) == [
        "a y (2 then, 3 now)",
        "b z (null then, 0 now)",
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1, "identity": {}, "units": [{}]}'])
def test_a_damaged_journal(tmp_path: Path, text: str) -> None:
    (tmp_path / JOURNAL_FILE).write_text(text)
    with pytest.raises(ResumeError, match="cannot be read"):
        open_journal(tmp_path, IDENTITY)


def test_a_journal_of_another_version(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_FILE).write_text('{"version": 9, "identity": {}, "units": []}')
    with pytest.raises(ResumeError, match="journal 9"):
        open_journal(tmp_path, IDENTITY)
