"""Hashes of a checkpoint's files: of all bytes, and remembered only while they hold."""

import hashlib
import json
import os
import time
from pathlib import Path

import pytest
from bytebound import shard_hashes
from bytebound.parallel_blocks import BLOCK_BYTES
from bytebound.shard_hashes import content_hashes, hash_file


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path in paths:
        path.write_bytes(path.name.encode() * 1000)
    return paths


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read."""
    names: list[str] = []

    def count(file: Path) -> str:
        names.append(file.name)
        return hash_file(file)

    monkeypatch.setattr(shard_hashes, "hash_file", count)
    monkeypatch.setattr(shard_hashes, "SETTLED_NS", -(10**9))
    return names


def test_the_hash_is_that_of_the_blocks_hashes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = os.urandom(1000) * (BLOCK_BYTES // 1000 + 5)
    path.write_bytes(content)
    blocks = [content[:BLOCK_BYTES], content[BLOCK_BYTES:]]
    digests = b"".join(hashlib.sha256(block).digest() for block in blocks)
    assert hash_file(path) == hashlib.sha256(digests).hexdigest()
    path.write_bytes(b"")
    assert hash_file(path) == hashlib.sha256(b"").hexdigest()


def test_a_link_to_nothing_has_no_stamp(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").symlink_to(tmp_path / "nowhere")
    found = shard_hashes.stamps(tmp_path.glob("*.safetensors"))
    assert sorted(found) == [file.name for file in files]


def test_a_file_is_read_once(files: list[Path], tmp_path: Path, hashed: list[str]) -> None:
    memo = tmp_path / ".bytebound" / "hashes.json"
    first = content_hashes(files, memo)
    assert hashed == ["a.safetensors", "b.safetensors"] and len(set(first.values())) == 2
    assert content_hashes(files, memo) == first and len(hashed) == 2


def test_a_change_that_hides_its_time_is_seen(
    files: list[Path], tmp_path: Path, hashed: list[str]
) -> None:
    memo = tmp_path / "hashes.json"
    first = content_hashes(files, memo)
    times = files[1].stat()
    files[1].write_bytes(files[1].read_bytes()[:-1] + b"!")
    os.utime(files[1], ns=(times.st_atime_ns, times.st_mtime_ns))
    second = content_hashes(files, memo)
    assert hashed[2:] == ["b.safetensors"]
    assert second["a.safetensors"] == first["a.safetensors"]
    assert second["b.safetensors"] != first["b.safetensors"]


def test_a_file_that_was_just_written_is_hashed_again(
    files: list[Path], tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second write within the clock's step would leave the same times."""
    memo = tmp_path / "hashes.json"
    monkeypatch.setattr(shard_hashes, "SETTLED_NS", 10**9 * 3600)
    content_hashes(files, memo)
    content_hashes(files, memo)
    assert len(hashed) == 4 and not memo.exists()


@pytest.mark.parametrize("damage", ["not json", "[]", "{}", '{"version": 1, "files": {}}'])
def test_a_damaged_memo_is_no_memo(
    files: list[Path], tmp_path: Path, hashed: list[str], damage: str
) -> None:
    memo = tmp_path / "hashes.json"
    first = content_hashes(files, memo)
    memo.write_text(damage)
    assert content_hashes(files, memo) == first and len(hashed) == 4
    content = json.loads(memo.read_bytes())
    content["files"]["a.safetensors"]["sha256"] = "0" * 64
    memo.write_text(json.dumps(content))
    assert content_hashes(files, memo) == first


def test_a_memo_that_cannot_be_written_is_no_error(
    files: list[Path], tmp_path: Path, hashed: list[str]
) -> None:
    (tmp_path / "in the way").write_text("")
    memo = tmp_path / "in the way" / "hashes.json"
    assert content_hashes(files, memo) == content_hashes(files, memo)
    assert len(hashed) == 4


def test_a_file_that_changes_meanwhile_is_an_error(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(file: Path) -> str:
        time.sleep(0.01)
        file.write_bytes(b"other")
        return "0"

    monkeypatch.setattr(shard_hashes, "hash_file", change)
    with pytest.raises(OSError, match="changed while it was read"):
        content_hashes(files, tmp_path / "hashes.json")
