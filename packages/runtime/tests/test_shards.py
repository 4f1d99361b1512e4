"""Weight files and index: each way in which a set of files can be wrong is refused (E32-E34)."""

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bytebound.errors import CheckpointError
from bytebound.shards import DRAFT_VOCAB_FILE, open_shards, read_tensor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from .checkpoints import INDEX_FILE, SHAPES, SINGLE_FILE, random_checkpoint
from .damage import change_header, change_index, load, refused

SHARD = "model-00002-of-00003.safetensors"


def cut(count: int) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        os.truncate(folder / SHARD, (folder / SHARD).stat().st_size - count)

    return change


def in_index(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    return lambda folder: change_index(folder, change)


def in_header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    return lambda folder: change_header(folder / SHARD, change)


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def first_tensor(header: dict[str, Any]) -> dict[str, Any]:
    return next(entry for name, entry in header.items() if name != "__metadata__")


def duplicate(folder: Path) -> None:
    """Put a tensor of the first shard into the second as well."""
    tensors = load_file(folder / SHARD)
    other = load_file(folder / "model-00001-of-00003.safetensors")
    save_file(
        tensors | {"model.embed_tokens.weight": other["model.embed_tokens.weight"]}, folder / SHARD
    )


def move_one(index: dict[str, Any]) -> None:
    name = next(name for name, file in index["weight_map"].items() if file == SHARD)
    index["weight_map"][name] = "model-00001-of-00003.safetensors"


def drop_one(index: dict[str, Any]) -> None:
    del index["weight_map"]["model.norm.weight"]


FILE_FAULTS: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "E32 missing shard": (lambda d: (d / SHARD).unlink(), (SHARD, "not in the folder")),
    "E32 broken link": (
        lambda d: ((d / SHARD).unlink(), (d / SHARD).symlink_to(d / "gone")),
        (SHARD,),
    ),
    "E32 shard is a folder": (lambda d: ((d / SHARD).unlink(), (d / SHARD).mkdir()), (SHARD,)),
    "E33 one byte short": (cut(1), (SHARD, "truncated")),
    "E33 half": (cut(50_000), (SHARD, "truncated")),
    "E33 empty": (write(SHARD, b""), (SHARD, "0 bytes")),
    "E33 too long": (
        lambda d: (d / SHARD).write_bytes((d / SHARD).read_bytes() + b"\0"),
        (SHARD, "too long"),
    ),
    "E33 header cut": (
        lambda d: os.truncate(d / SHARD, 100),
        (SHARD, "100 bytes"),
    ),
    "E33 zeros": (write(SHARD, bytes(4096)), (SHARD, "not valid JSON")),
    "E33 lfs pointer": (
        write(SHARD, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        (SHARD, "git-lfs"),
    ),
    "E33 html": (write(SHARD, b"<html>not found</html>"), (SHARD,)),
    "E33 gap": (
        in_header(lambda h: first_tensor(h).update(data_offsets=[4, 8])),
        (SHARD, "begins at byte"),
    ),
    "E33 offsets and shape": (
        in_header(lambda h: first_tensor(h).update(shape=[1])),
        (SHARD, "needs 4"),
    ),
    "E33 no offsets": (
        in_header(lambda h: first_tensor(h).pop("data_offsets")),
        (SHARD, "data_offsets"),
    ),
    "E33 negative shape": (
        in_header(lambda h: first_tensor(h).update(shape=[-1, -16])),
        (SHARD, "shape"),
    ),
    "E33 unknown dtype": (
        in_header(lambda h: first_tensor(h).update(dtype="F5")),
        (SHARD, "'F5'"),
    ),
    "E34 stray single file": (write(SINGLE_FILE, b"x"), (SINGLE_FILE, "does not name")),
    "E34 stray shard": (write("model-00004-of-00004.safetensors", b"x"), ("00004-of-00004",)),
    "E34 stray adapter": (write("adapter_model.safetensors", b"x"), ("adapter_model",)),
    "E34 index of another set": (in_index(drop_one), ("model.norm.weight", "does not list")),
    "E34 tensor in another shard": (in_index(move_one), ("it is in " + SHARD,)),
    "E34 index names a phantom": (
        in_index(lambda i: i["weight_map"].update(phantom=SHARD)),
        ("phantom", SHARD),
    ),
    "E34 total size": (
        in_index(lambda i: i["metadata"].update(total_size=1)),
        ("total_size 1",),
    ),
    "E34 total size no number": (
        in_index(lambda i: i["metadata"].update(total_size="big")),
        ("total_size", "'big'"),
    ),
    "E34 no map": (in_index(lambda i: i.pop("weight_map")), ("weight_map",)),
    "E34 path outside": (
        in_index(lambda i: i["weight_map"].update({"x": "../other.safetensors"})),
        ("../other.safetensors",),
    ),
    "E34 pickle in the index": (
        in_index(lambda i: i["weight_map"].update({"x": "pytorch_model.bin"})),
        ("pytorch_model.bin",),
    ),
    "E34 index cut": (
        lambda d: os.truncate(d / INDEX_FILE, 200),
        (INDEX_FILE, "not valid JSON"),
    ),
    "E34 index gone": (lambda d: (d / INDEX_FILE).unlink(), ("00001-of-00003", INDEX_FILE)),
    "E34 twice": (duplicate, ("model.embed_tokens.weight", SHARD, "again")),
}


@pytest.mark.parametrize("fault", FILE_FAULTS)
def test_wrong_files(tmp_path: Path, fault: str) -> None:
    random_checkpoint(tmp_path, shards=3)
    change, parts = FILE_FAULTS[fault]
    change(tmp_path)
    refused(tmp_path, *parts)


def test_stray_beside_a_single_file(tmp_path: Path) -> None:
    """E34."""
    random_checkpoint(tmp_path)
    (tmp_path / "draft.safetensors").write_bytes(b"x")
    refused(tmp_path, "draft.safetensors")


@pytest.mark.parametrize("shards", [1, 3])
def test_a_draft_vocabulary_beside_the_weights_is_no_stray(tmp_path: Path, shards: int) -> None:
    written = random_checkpoint(tmp_path, shards=shards)
    (tmp_path / DRAFT_VOCAB_FILE).write_bytes(b"x")
    assert open_shards(tmp_path).keys() == written.tensors.keys()


def test_single_file_under_another_name(tmp_path: Path) -> None:
    random_checkpoint(tmp_path)
    (tmp_path / SINGLE_FILE).rename(tmp_path / "weights.safetensors")
    refused(tmp_path, "weights.safetensors", SINGLE_FILE)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model-q4.gguf"])
def test_only_other_formats(tmp_path: Path, name: str) -> None:
    random_checkpoint(tmp_path)
    (tmp_path / SINGLE_FILE).rename(tmp_path / name)
    refused(tmp_path, name, "no safetensors")


def test_no_weights(tmp_path: Path) -> None:
    random_checkpoint(tmp_path)
    (tmp_path / SINGLE_FILE).unlink()
    refused(tmp_path, "no weights", SINGLE_FILE)


def test_repeated_name_in_a_header(tmp_path: Path) -> None:
    text = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
    text += b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    random_checkpoint(tmp_path)
    (tmp_path / SINGLE_FILE).write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    refused(tmp_path, SINGLE_FILE, "appears twice")


def test_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    """E33: a plain read comes up short, where a mapping would give zeros or a signal."""
    random_checkpoint(tmp_path)
    stored = open_shards(tmp_path)["lm_head.weight"]
    os.truncate(stored.file, stored.offset + 16)
    with stored.file.open("rb", buffering=0) as file, pytest.raises(CheckpointError) as caught:
        read_tensor(stored, file)
    assert "lm_head.weight" in str(caught.value)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.floats(0, 1, exclude_max=True))
def test_cut_anywhere(tmp_path: Path, where: float) -> None:
    """E33: no prefix of a file loads, whatever its length."""
    folder = tmp_path / "sound"
    if not folder.exists():
        random_checkpoint(folder, **SHAPES["one_linear"])
    whole = (folder / SINGLE_FILE).read_bytes()
    # Squared, so that the header gets its share of the cuts.
    (folder / SINGLE_FILE).write_bytes(whole[: int(len(whole) * where**2)])
    try:
        refused(folder, SINGLE_FILE)
    finally:
        (folder / SINGLE_FILE).write_bytes(whole)
    load(folder)
