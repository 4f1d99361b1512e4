"""Calibration windows: sources, shares, draws, and each way in which text can be unfit."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import datasets
import pytest
from bytebound.text.tokenizer import Tokenizer
from bytebound_quant.calibration import apportion, load_calibration, parse_source, permutation
from bytebound_quant.errors import CalibrationError, HeldoutTextError, VocabularyMismatchError
from bytebound_quant.heldout import HeldoutDetector, line_hashes, passage_hashes
from bytebound_quant.text_sources import CalibrationSource

REPO = Path(__file__).resolve().parents[3]
HELDOUT = REPO / "evals" / "src" / "bytebound_evals" / "data" / "heldout.txt"
HASHES = REPO / "packages" / "quant" / "src" / "bytebound_quant" / "data" / "heldout_hashes.json"


def story(count: int, start: int = 0) -> str:
    return "".join(f"Line {n} says {n * n} foxes and {n * 7} dogs.\n" for n in range(start, count))


def load(tokenizer: Tokenizer, *specs: str, window=16, samples=4, seed=0, **options):
    sources = [parse_source(spec) for spec in specs]
    return load_calibration(
        sources, tokenizer, window=window, samples=samples, seed=seed, **options
    )


def write_rows(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("text:a@b#c=0.5", CalibrationSource("text", "a@b#c", weight=0.5)),
        ("jsonl:x.jsonl#m=2", CalibrationSource("jsonl", "x.jsonl", field="m", weight=2.0)),
        (
            "datasets:w@c-1/test#t",
            CalibrationSource("datasets", "w", config="c-1", split="test", field="t"),
        ),
        ("datasets:o/n@test", CalibrationSource("datasets", "o/n", split="test")),
        ("text:C=/x.txt", CalibrationSource("text", "C=/x.txt")),
    ],
)
def test_specifications(spec: str, expected: CalibrationSource) -> None:
    assert parse_source(spec) == expected


@pytest.mark.parametrize("spec", ["notes.txt", "text:", "csv:x", "text:x=0", "text:x=1e", ""])
def test_wrong_specifications(spec: str) -> None:
    with pytest.raises(CalibrationError):
        parse_source(spec)


def test_shares_are_exact() -> None:
    assert apportion(10, [0.7, 0.2, 0.1]) == [7, 2, 1]
    assert apportion(5, [1, 1, 1]) == [2, 2, 1]
    assert sum(apportion(256, [0.1, 0.2, 0.3, 0.35])) == 256


def test_permutation_is_one_and_pinned() -> None:
    assert sorted(permutation(100, 3, 9)) == list(range(100))
    assert list(permutation(6, 3, 9)) != list(permutation(6, 4, 9))
    assert list(permutation(6, 0, 1)) == [3, 4, 5, 0, 2, 1]


def test_windows_are_cut_from_the_text_and_never_twice(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_text(story(40))
    ids = tokenizer.encode(story(40))
    found = load(tokenizer, f"text:{path}", samples=8)
    cut = {tuple(ids[at : at + 16]) for at in range(0, len(ids) - 15, 16)}
    drawn = [tuple(row) for row in found.windows.tolist()]
    assert set(drawn) <= cut and len(set(drawn)) == 8
    assert found.windows.shape == (8, 16)
    again = load(tokenizer, f"text:{path}", samples=8)
    assert again.digest == found.digest and again.windows.equal(found.windows)
    assert load(tokenizer, f"text:{path}", samples=8, seed=1).digest != found.digest
    json.dumps(found.summary)


def test_sources_are_mixed_by_weight(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(story(100))
    rows = [{"text": story(n + 8, n)} for n in range(200, 400, 8)]
    write_rows(tmp_path / "b.jsonl", rows)
    found = load(
        tokenizer, f"text:{tmp_path}/a.txt=0.75", f"jsonl:{tmp_path}/b.jsonl=0.25", samples=8
    )
    assert [one["windows"] for one in found.summary["sources"]] == [6, 2]


def test_documents_are_joined_by_the_end_id(tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_rows(tmp_path / "b.jsonl", [{"body": "the quick fox"}, {"body": "hello world"}])
    (end,) = tokenizer.eos_ids
    expected = [*tokenizer.encode("the quick fox"), end, *tokenizer.encode("hello world")]
    found = load(tokenizer, f"jsonl:{tmp_path}/b.jsonl#body", window=len(expected), samples=1)
    assert found.windows.tolist() == [expected]


def test_conversations_go_through_the_template(tokenizer: Tokenizer, tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "the world"}]
    write_rows(tmp_path / "b.jsonl", [{"messages": chat}])
    expected = tokenizer.apply_chat_template(chat, add_generation_prompt=False)
    found = load(
        tokenizer,
        f"jsonl:{tmp_path}/b.jsonl",
        window=len(expected),
        samples=1,
        chat_template=True,
    )
    assert found.windows.tolist() == [expected]


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize("layout", ["parquet", "json", "arrow", "arrow with splits"])
def test_datasets_on_disk(tokenizer: Tokenizer, tmp_path: Path, layout: str) -> None:
    table = datasets.Dataset.from_dict({"text": [story(n + 4, n) for n in range(0, 80, 4)]})
    folder = tmp_path / "data"
    folder.mkdir()
    if layout == "parquet":
        table.to_parquet(folder / "train.parquet")
    elif layout == "json":
        table.to_json(folder / "train.jsonl")
    elif layout == "arrow":
        table.save_to_disk(folder)
    else:
        datasets.DatasetDict({"train": table}).save_to_disk(folder)
    found = load(tokenizer, f"datasets:{folder}", samples=6)
    assert found.windows.shape == (6, 16)
    assert load(tokenizer, f"datasets:{folder}", samples=6).digest == found.digest
    with pytest.raises(CalibrationError, match="no field 'body'"):
        load(tokenizer, f"datasets:{folder}#body")
    with pytest.raises(CalibrationError, match="test"):
        load(tokenizer, f"datasets:{folder}@test")


@pytest.mark.usefixtures("no_cache")
def test_a_dataset_that_is_not_there(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*args: object, **options: object) -> None:
        raise ConnectionError("no\nroute")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(CalibrationError, match=r"no route.*local copy") as caught:
        load(tokenizer, "datasets:someone/something")
    assert "\n" not in str(caught.value)


def test_empty_and_repeated_rows_are_left_out_and_counted(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    rows = [{"text": text} for text in (story(9), "", story(9), "  \n", story(30, 9))]
    write_rows(tmp_path / "b.jsonl", rows)
    (source,) = load(tokenizer, f"jsonl:{tmp_path}/b.jsonl").summary["sources"]
    assert Counter(documents=5, empty=2, repeated=1) == {
        key: source[key] for key in ("documents", "empty", "repeated")
    }


UNFIT = {
    "empty rows": ([{"text": ""}, {"text": " "}], "nothing is left"),
    "no rows": ([], "nothing is left"),
    "one row over and over": ([{"text": story(20)}] * 9, "repeat an earlier one"),
    "one id": ([{"text": "0" * 500}], "kinds"),
    "shorter than the window": ([{"text": "hello"}], "shorter than the window"),
    "too few windows": ([{"text": story(2)}], "different windows"),
    "no such field": ([{"body": "x"}], "no field 'text'"),
    "no string": ([{"text": 3}], "expected a string"),
    "no object": ([[1]], "expected an object"),
}


@pytest.mark.parametrize("rows,message", UNFIT.values(), ids=UNFIT.keys())
def test_unfit_rows(tokenizer: Tokenizer, tmp_path: Path, rows: list[object], message: str) -> None:
    write_rows(tmp_path / "b.jsonl", rows)
    with pytest.raises(CalibrationError, match=message):
        load(tokenizer, f"jsonl:{tmp_path}/b.jsonl", samples=40)


def test_unfit_files(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "x"
    cases = [
        (b"\xff\xfe", "text", "not UTF-8"),
        (b"the same line\n" * 99, "text", "every line"),
        (b"{", "jsonl", "line 1: not JSON"),
    ]
    for content, kind, message in cases:
        path.write_bytes(content)
        with pytest.raises(CalibrationError, match=message):
            load(tokenizer, f"{kind}:{path}")
    with pytest.raises(CalibrationError, match="cannot be read"):
        load(tokenizer, f"text:{path}.gone")
    path.write_text(story(40))
    with pytest.raises(CalibrationError, match="none of 4 windows"):
        load(tokenizer, f"text:{path}", f"jsonl:{path}=0.001")
    with pytest.raises(CalibrationError, match="no conversations"):
        load(tokenizer, f"text:{path}", chat_template=True)
    with pytest.raises(CalibrationError, match="window is 1"):
        load(tokenizer, f"text:{path}", window=1)


def test_ids_beyond_the_models_vocabulary(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(story(40))
    with pytest.raises(VocabularyMismatchError, match="has 64 ids"):
        load(tokenizer, f"text:{tmp_path}/a.txt", vocab_size=64)


def test_the_hashes_are_those_of_the_heldout_text() -> None:
    """And how the file is made anew if the text changes."""
    text = HELDOUT.read_text(encoding="utf-8")
    normalised = " ".join(text.split()).encode()
    assert json.loads(HASHES.read_text()) == {
        "sha256": hashlib.sha256(normalised).hexdigest(),
        "passages": sorted(set(passage_hashes(normalised))),
        "lines": sorted(set(line_hashes(text))),
    }


@pytest.mark.parametrize("form", ["whole", "part", "rows", "reflowed"])
def test_the_heldout_text_is_refused(tokenizer: Tokenizer, tmp_path: Path, form: str) -> None:
    text = HELDOUT.read_text(encoding="utf-8")
    path = tmp_path / "innocent"
    kind = "text"
    if form == "whole":
        path.write_text(text)
    elif form == "part":
        path.write_text(story(300) + text[150_000:153_000] + story(600, 300))
    elif form == "reflowed":
        path.write_text("\r\n".join(text[100_000:120_000].split()))
    else:
        kind = "jsonl"
        write_rows(path, [{"text": line} for line in text[:60_000].split("\n")])
    with pytest.raises(HeldoutTextError, match="innocent holds the held-out text"):
        load(tokenizer, f"{kind}:{path}")


def test_other_text_is_not_taken_for_it() -> None:
    detector = HeldoutDetector()
    detector.feed((REPO / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    detector.feed(story(5000))
    assert detector.found == set()
