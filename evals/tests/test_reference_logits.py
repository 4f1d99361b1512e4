import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from bytebound_evals.errors import CacheError, ReferenceMismatchError
from bytebound_evals.identity import text_digest
from bytebound_evals.reference_logits import (
    ENTRY_FILE,
    ReferenceCache,
    ReferenceKey,
    StoredReference,
    entry_bytes,
)
from bytebound_evals.windows import CutText, WindowRule, cut_text

from .quality_engines import TableEngine

TEXT = cut_text("made-up", [[0, 1, 2, 0, 1, 2, 1, 1]], WindowRule(4))
SIZE = entry_bytes(TEXT, 3)


def row(ids: Sequence[int]) -> list[float]:
    # Values that neither bfloat16 nor float16 can hold.
    return [0.1234567 * len(ids), -70000.123 + ids[-1], 1e-9 * sum(ids)]


def key(text: CutText = TEXT, tokenizer: str = "t" * 64, **run: object) -> ReferenceKey:
    return ReferenceKey("m" * 64, tokenizer, text_digest(text), 3, run)


def get(cache: ReferenceCache, wanted: ReferenceKey, engine: TableEngine) -> StoredReference:
    return cache.get(wanted, TEXT, lambda: engine)  # type: ignore[arg-type, return-value]


def make(folder: Path, limit: int = 10**6, **run: object) -> Path:
    get(ReferenceCache(folder, limit), key(**run), TableEngine(row))
    return folder / key(**run).name


def test_what_comes_back_is_what_the_model_gave_bit_for_bit(tmp_path: Path) -> None:
    assert SIZE == 6 * 3 * 4
    make(tmp_path)
    engine = TableEngine(row)
    stored = get(ReferenceCache(tmp_path), key(), engine)
    assert engine.scored == []  # the model was not needed
    for index, window in enumerate(TEXT.windows):
        expected = TableEngine(row).score(window.ids)[window.rows]
        assert stored.rows(index).dtype == torch.float32
        assert torch.equal(stored.rows(index), expected)


def test_everything_that_decides_the_values_is_in_the_key() -> None:
    base = ReferenceKey("m", "t", "x", 3, {"dtype": "float32"})
    others = [
        ReferenceKey("M", "t", "x", 3, {"dtype": "float32"}),
        ReferenceKey("m", "T", "x", 3, {"dtype": "float32"}),
        ReferenceKey("m", "t", "X", 3, {"dtype": "float32"}),
        ReferenceKey("m", "t", "x", 4, {"dtype": "float32"}),
        ReferenceKey("m", "t", "x", 3, {"dtype": "bfloat16"}),
    ]
    assert len({base.name, *(other.name for other in others)}) == 6
    assert ReferenceKey("m", "t", "x", 3, {"dtype": "float32"}).name == base.name


def test_the_hash_of_a_text_tells_windows_apart() -> None:
    ids = list(range(12))
    cuts = [
        cut_text("a", [ids], WindowRule(4)),
        cut_text("a", [ids], WindowRule(6)),
        cut_text("a", [ids], WindowRule(6, stride=3)),
        cut_text("a", [ids], WindowRule(4, prefix="window", prefix_id=9)),
        cut_text("a", [ids], WindowRule(4, prefix="window", prefix_id=8)),
        cut_text("a", [ids[:6], ids[6:]], WindowRule(6)),
    ]
    assert len(set(map(text_digest, cuts))) == len(cuts)
    # Where a text comes from is not what it is.
    assert text_digest(cut_text("b", [ids], WindowRule(4))) == text_digest(cuts[0])


def test_a_run_that_was_killed_is_completed_and_not_repeated(tmp_path: Path) -> None:
    entry = make(tmp_path)
    (entry / ENTRY_FILE).unlink()
    (entry / "window-000001.f32").write_bytes(b"half")
    engine = TableEngine(row)
    stored = get(ReferenceCache(tmp_path), key(), engine)
    assert engine.scored == [TEXT.windows[1].ids]
    assert stored.rows(1).shape == (3, 3)


def test_the_size_is_said_before_anything_is_written(tmp_path: Path) -> None:
    seen: list[tuple[str, bool]] = []
    cache = ReferenceCache(tmp_path / "cache", 10 * SIZE)

    def announce(line: str) -> None:
        seen.append((line, any(cache.folder.glob("*/window-*"))))

    cache.get(key(), TEXT, lambda: TableEngine(row), announce=announce)  # type: ignore[arg-type, return-value]
    ((line, written),) = seen
    assert line.startswith("writes 0.00 MB of reference logits to ") and not written


def test_what_cannot_fit_is_refused_and_evicts_nothing(tmp_path: Path) -> None:
    entry = make(tmp_path)
    with pytest.raises(CacheError, match=r"more than the limit of 0\.00 MB; measure on fewer"):
        get(ReferenceCache(tmp_path, SIZE - 1), key(other=1), TableEngine(row))
    assert [one.name for one in tmp_path.iterdir()] == [entry.name]


def test_a_full_disk_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=SIZE - 1))
    with pytest.raises(CacheError, match="are free on the disk"):
        make(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_used_for_longest_makes_room(tmp_path: Path) -> None:
    entries = [make(tmp_path, run=number) for number in range(3)]
    for age, entry in zip((30, 20, 10), entries, strict=True):
        mark = entry / ENTRY_FILE
        os.utime(mark, (mark.stat().st_atime, mark.stat().st_mtime - age))
    sizes = [sum(file.stat().st_size for file in entry.iterdir()) for entry in entries]
    get(ReferenceCache(tmp_path), key(run=0), TableEngine(row))  # the oldest is used again
    newest = make(tmp_path, limit=sum(sizes) - 1 + SIZE, run=3)
    left = {one.name for one in tmp_path.iterdir()}
    assert left == {entries[0].name, entries[2].name, newest.name}


def test_nothing_but_entries_is_ever_removed(tmp_path: Path) -> None:
    foreign = tmp_path / "notes"
    foreign.mkdir()
    (foreign / "text.txt").write_text("x" * 1000)
    alike = tmp_path / ("a" * 32)
    alike.mkdir()
    (alike / "mine.txt").write_text("x" * 1000)
    make(tmp_path)
    make(tmp_path, limit=SIZE, run=1)
    assert (foreign / "text.txt").is_file() and (alike / "mine.txt").is_file()
    assert not (tmp_path / key().name).exists()


def opened(entry: Path, text: CutText = TEXT, tokenizer: str = "t" * 64) -> StoredReference:
    return StoredReference(entry, text, tokenizer, text_digest(text))


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReferenceMismatchError, match="made with another tokenizer"):
        opened(make(tmp_path), tokenizer="u" * 64)


def test_other_windows_are_refused_and_the_entrys_own_are_named(tmp_path: Path) -> None:
    other = cut_text("made-up", [[0, 1, 2, 0, 1, 2, 1, 1]], WindowRule(8))
    with pytest.raises(ReferenceMismatchError, match=r"other windows .*window 4, stride 4"):
        opened(make(tmp_path), other)


def test_an_entry_may_lie_anywhere(tmp_path: Path) -> None:
    moved = make(tmp_path / "here").rename(tmp_path / "there")
    assert opened(moved).rows(0).shape == (3, 3)


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    entry = make(tmp_path)
    file = entry / "window-000001.f32"
    content = bytearray(file.read_bytes())
    content[5] ^= 1
    file.write_bytes(content)
    assert opened(entry).rows(0).shape == (3, 3)
    with pytest.raises(CacheError, match=r"window-000001\.f32 is damaged; remove"):
        opened(entry).rows(1)
    file.unlink()
    with pytest.raises(CacheError, match=r"window-000001\.f32 cannot be read"):
        opened(entry).rows(1)


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"format": 1}', '{"format": 2}'])
def test_a_damaged_entry_is_an_error(tmp_path: Path, damage: str) -> None:
    entry = make(tmp_path)
    (entry / ENTRY_FILE).write_text(damage)
    with pytest.raises(CacheError, match=r"entry\.json"):
        opened(entry)


def test_an_entry_that_lacks_files_is_an_error(tmp_path: Path) -> None:
    entry = make(tmp_path)
    record = json.loads((entry / ENTRY_FILE).read_text())
    record["files"].pop()
    (entry / ENTRY_FILE).write_text(json.dumps(record))
    with pytest.raises(CacheError, match=r"entry\.json is damaged"):
        opened(entry)


def test_a_folder_without_an_entry_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="holds no complete reference logits"):
        opened(tmp_path)


def test_a_reference_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReferenceMismatchError, match="gave 2 logits, expected 3"):
        get(ReferenceCache(tmp_path), key(), TableEngine(lambda ids: [0.0, 1.0]))
