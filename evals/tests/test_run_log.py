import json
from pathlib import Path

import pytest
from bytebound_evals.errors import RunLogError
from bytebound_evals.run_log import RunLog

SETTINGS = {"model": "m", "shots": 2, "stops": ["a"]}


def begin(path: Path, items: int) -> None:
    with RunLog(path, SETTINGS) as log:
        for number in range(items):
            log.add(str(number), {"reply": f"r{number}\u2028é"})


def test_items_are_on_the_disk_at_once_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.jsonl"
    with RunLog(path, SETTINGS) as log:
        log.add("0", {"reply": "a\nb"})
        lines = path.read_text().splitlines()
    assert json.loads(lines[0])["settings"] == SETTINGS
    assert json.loads(lines[1]) == {"item": "0", "reply": "a\nb"}
    with RunLog(path, SETTINGS) as log:
        assert log.done == {"0": {"reply": "a\nb"}}


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_line_that_was_cut_off_is_dropped(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    begin(path, 3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with RunLog(path, SETTINGS) as log:
        assert list(log.done) == ["0", "1"]
        log.add("2", {"reply": "r2\u2028é"})
    assert path.read_bytes() == whole


def test_nothing_of_a_dropped_line_stays_behind_a_shorter_one(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with RunLog(path, SETTINGS) as log:
        log.add("0", {"reply": "long" * 100})
    path.write_bytes(path.read_bytes()[:-5])
    with RunLog(path, SETTINGS) as log:
        log.add("0", {"reply": "short"})
    assert json.loads(path.read_bytes().splitlines()[-1]) == {"item": "0", "reply": "short"}


@pytest.mark.parametrize("kept", [0, 5, 30])
def test_a_log_that_was_cut_off_in_its_first_line_begins_anew(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    begin(path, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    begin(path, 0)
    assert path.read_bytes() == whole


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    begin(path, 1)
    before = path.read_bytes()
    with pytest.raises(RunLogError, match=r"other settings \(model 'm', now 'n'; new None, now 1"):
        RunLog(path, {**SETTINGS, "model": "n", "new": 1})
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"settings": 1}\n', "line 1: no log of a run"),
        ("my notes\n", "line 1: no log of a run"),
        ("my notes", "is no log of a run; name another file"),
        ('{"other": 1}\n', "line 1: no log of a run"),
    ],
)
def test_another_file_is_refused_and_left_alone(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text(content)
    with pytest.raises(RunLogError, match=message):
        RunLog(path, SETTINGS)
    assert path.read_text() == content


def test_damage_in_the_middle_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    begin(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[2][:10] + b"\n", lines[3]]))
    with pytest.raises(RunLogError, match="line 3: no log of a run, or damaged"):
        RunLog(path, SETTINGS)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunLogError, match="Is a directory"):
        RunLog(tmp_path, SETTINGS)
