import json
from pathlib import Path
from typing import Any

import pytest
from bytebound_evals.errors import ResultError
from bytebound_evals.results import parse_result, read_result, write_result

from .speed_results import MACHINE, metric, result

GOOD = result(
    {"plain_1k.tok_s": metric(12.0, 13.0), "same": metric(1, tol_pct=0)},
    note="a note",
    wheel={"bytebound": "0.1"},
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "er" / "decode.json"
    write_result(file, GOOD)
    assert read_result(file) == GOOD
    assert [path.name for path in file.parent.iterdir()] == ["decode.json"]
    record = json.loads(file.read_text())
    assert record["metrics"]["plain_1k.tok_s"]["median"] == 12.5
    assert "tol_pct" not in record["metrics"]["plain_1k.tok_s"]


def test_not_measured_has_a_reason_and_no_metrics(tmp_path: Path) -> None:
    nothing = result({}, not_measured="vllm is not installed")
    write_result(tmp_path / "vllm.json", nothing)
    assert read_result(tmp_path / "vllm.json") == nothing
    with pytest.raises(ResultError, match="not_measured"):
        write_result(tmp_path / "x.json", result({}))
    with pytest.raises(ResultError, match="not_measured"):
        write_result(tmp_path / "x.json", result({"a": metric(1)}, not_measured="why"))
    assert not (tmp_path / "x.json").exists()


def put(record: Any, *path: str, value: Any) -> Any:
    """A deep copy with one value replaced; None removes it."""
    copy = json.loads(json.dumps(record))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copy


PLAIN = ("metrics", "plain_1k.tok_s")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("schema",), 2, "schema is 2, expected 1"),
        (("machine",), {"torch": "2"}, "names its gpu or its cpu"),
        (("machine",), None, "missing: machine"),
        (("commit",), " ", "commit must be a non-empty string"),
        (("odd",), 1, "unknown: odd"),
        (("metrics",), [], "metrics must be an object"),
        ((*PLAIN, "better"), "more", "better is 'more'"),
        (("schema",), True, "schema is True, expected 1"),
        (("wheel",), 5, "wheel must be an object of versions"),
        (("wheel",), {"bytebound": 1}, "wheel must be an object of versions"),
        ((*PLAIN, "samples"), [10**400], "finite numbers"),
        ((*PLAIN, "samples"), [1.7e308, 1.7e308], "beyond every float"),
        ((*PLAIN, "median"), 10**400, "but that of the samples is 12.5"),
        ((*PLAIN, "tol_pct"), 10**400, "expected a number of at least 0"),
        ((*PLAIN, "samples"), [], "at least one"),
        ((*PLAIN, "samples"), [12.0, True], "finite numbers"),
        ((*PLAIN, "samples"), [12.0, float("nan")], "finite numbers"),
        ((*PLAIN, "samples"), [12.0, 14.0], "median is 12.5, but that of the samples is 13.0"),
        ((*PLAIN, "tol_pct"), -1, "tol_pct is -1"),
        ((*PLAIN, "tol_pct"), "3", "tol_pct is '3'"),
        ((*PLAIN, "case"), None, "missing: case"),
        ((*PLAIN, "unit"), 3, "unit must be a string"),
    ],
)
def test_a_damaged_file_names_itself_and_the_field(
    path: tuple[str, ...], value: Any, words: str
) -> None:
    with pytest.raises(ResultError) as caught:
        parse_result(put(GOOD.as_dict(), *path, value=value), "h200/decode")
    assert str(caught.value).startswith("h200/decode: ")
    assert words in str(caught.value)


def test_what_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="No such file"):
        read_result(tmp_path / "none.json")
    (tmp_path / "half.json").write_text('{"schema": 1,')
    with pytest.raises(ResultError, match="not JSON"):
        read_result(tmp_path / "half.json")
    for text, words in (
        ("[" * 200_000 + "]" * 200_000, "nested too deep"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON"),
    ):
        (tmp_path / "odd.json").write_text(text)
        with pytest.raises(ResultError, match=words):
            read_result(tmp_path / "odd.json")
    for folder in (Path(), Path("/"), tmp_path):
        with pytest.raises(ResultError, match="is a folder"):
            write_result(folder, result({"a": metric(1)}))
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultError, match="cannot be written"):
        write_result(tmp_path / "file" / "x.json", result({"a": metric(1)}, machine=MACHINE))
