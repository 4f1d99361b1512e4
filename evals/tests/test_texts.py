import json
from pathlib import Path

import datasets
import pytest
from bytebound_evals.data import heldout_text
from bytebound_evals.errors import SettingError, SourceError
from bytebound_evals.measured_text import TextSettings, default_prefix_id
from bytebound_evals.texts import KNOWN_TEXTS, find_text

from .local_datasets import WIKI_ROWS, write_dataset, write_wikitext
from .quality_engines import tiny


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets-cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def read(spec: object, join: str | None = None) -> list[str]:
    return list(find_text(str(spec), join=join).documents())


def test_the_shipped_text_is_one_document() -> None:
    assert read("heldout") == [heldout_text()]


def test_a_file_is_one_document_and_named_without_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("one\n\ntwo", encoding="utf-8")
    assert read(file) == read(f"text:{file}") == ["one\n\ntwo"]
    assert find_text(str(file)).label == "text:notes.txt"


def test_each_row_of_a_table_is_a_document_unless_rows_are_joined(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "one", "body": "1"}\n{"text": "two", "body": "2"}\n')
    assert read(file) == ["one", "two"]
    assert read(file, join="\n") == ["one\ntwo"]
    assert read(f"jsonl:{file}#body") == ["1", "2"]


def test_wikitext_is_read_from_a_local_copy_of_its_layout(tmp_path: Path) -> None:
    copy = write_wikitext(tmp_path / "wikitext")
    assert read(f"wikitext2:{copy}") == ["\n\n".join(WIKI_ROWS)]
    assert read(f"wikitext103:{copy}") == ["other"]
    assert read(f"wikitext2:{copy}", join="") == ["".join(WIKI_ROWS)]
    assert find_text(f"wikitext2:{copy}").label == "wikitext2"
    known = KNOWN_TEXTS["wikitext2"]
    assert (known.path, known.config, known.split, known.column) == (
        "Salesforce/wikitext",
        "wikitext-2-raw-v1",
        "test",
        "text",
    )


def test_any_dataset_is_read_by_config_split_and_column(tmp_path: Path) -> None:
    copy = write_dataset(
        tmp_path / "books",
        {"small": {"validation": {"body": ["a", "b"]}, "train": {"body": ["c"]}}},
    )
    assert read(f"datasets:{copy}@small/validation#body") == ["a", "b"]
    assert find_text(f"datasets:{copy}@small/validation#body").label == (
        "datasets:books@small/validation#body"
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{}/absent.txt", "is no file and no known text"),
        ("wikitext", "is no file and no known text; expected heldout"),
        ("wikitext2:", "is no file and no known text"),
        ("text:{}/absent.txt", "cannot be read: No such file"),
        ("jsonl:{}/rows.jsonl#body", "row 1: no field 'body'; it has text. Name one with #FIELD"),
        ("datasets:{}/wikitext@wikitext-2-raw-v1/test#body", "no field 'body'; it has text"),
        ("datasets:{}/wikitext@wikitext-2-raw-v1/dev", "cannot be loaded: .*dev"),
        ("datasets:{}/wikitext@wikitext-3/test", "cannot be loaded: .*wikitext-3"),
        ("jsonl:{}/rows.jsonl=0.5", "a text that is measured on has no weight"),
        ("jsonl:{}/broken.jsonl", "line 2: not JSON"),
        ("jsonl:{}/number.jsonl", "row 1: text is int, expected a string"),
        ("{}/table.parquet", "give its folder: datasets:FOLDER"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_why(
    spec: str, message: str, tmp_path: Path
) -> None:
    write_wikitext(tmp_path / "wikitext")
    (tmp_path / "rows.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "broken.jsonl").write_text('{"text": "one"}\n{"text": \n')
    (tmp_path / "number.jsonl").write_text('{"text": 1}\n')
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    with pytest.raises(SourceError, match=message):
        read(spec.format(tmp_path))


def test_a_text_file_has_no_rows_to_join(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(SourceError, match="there are no rows to join"):
        find_text(str(tmp_path / "a.txt"), join="\n")


def test_a_blank_row_is_an_error_unless_rows_are_joined(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = ["The first row, long enough for a window.", "", "The third row of this small table."]
    file.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    with pytest.raises(SourceError, match="document 2 is empty; remove it, or join rows"):
        TextSettings(str(file), window=8).cut(tiny().tokenizer)
    assert TextSettings(str(file), join="\n\n", window=8).cut(tiny().tokenizer).documents == 1


def test_the_default_prefix_is_the_end_of_a_document() -> None:
    tokenizer = tiny().tokenizer
    default = default_prefix_id(tokenizer)
    assert tokenizer.decode([default], skip_special_tokens=False) == "<|endoftext|>"
    cut = TextSettings(window=64, max_tokens=128, prefix="window").cut(tokenizer)
    assert {window.ids[0] for window in cut.windows} == {default}
    own = TextSettings(window=64, max_tokens=128, prefix="document", prefix_id=5).cut(tokenizer)
    assert [window.ids[0] == 5 for window in own.windows][:2] == [True, False]


@pytest.mark.parametrize("prefix_id", [-1, 10**6])
def test_a_prefix_that_is_no_id_is_refused(prefix_id: int) -> None:
    settings = TextSettings(window=64, prefix="window", prefix_id=prefix_id)
    with pytest.raises(SettingError, match=f"prefix id is {prefix_id}, expected an id"):
        settings.cut(tiny().tokenizer)
