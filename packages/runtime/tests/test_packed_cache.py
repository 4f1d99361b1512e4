"""The packed cache: what it gives is what was packed; what is stale or damaged is never used."""

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bytebound import shard_hashes
from bytebound.checkpoint import StoredModel, read_headers
from bytebound.config import ModelConfig
from bytebound.cuda import packed_cache, packed_file
from bytebound.cuda.loading import load_weights
from bytebound.cuda.packed_cache import PackedCache
from bytebound.cuda.packed_file import PackedFile
from bytebound.cuda.weights import ModelWeights
from bytebound.weights import iter_tensors

from .checkpoints import SINGLE_FILE
from .cuda_models import FOLDERS, symmetric
from .emulated_kernels import emulate

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    emulate(monkeypatch)
    monkeypatch.setattr("bytebound.parallel_blocks.BLOCK_BYTES", 4096)
    monkeypatch.setattr(packed_file, "pieces", lambda size: cut(size))
    monkeypatch.setattr(shard_hashes, "pieces", lambda size: cut(size))
    monkeypatch.setattr(shard_hashes, "SETTLED_NS", 0)
    caplog.set_level(logging.INFO, "bytebound")


def cut(size: int) -> list[tuple[int, int]]:
    """Many small blocks, so that small models have several."""
    return [(start, min(4096, size - start)) for start in range(0, size, 4096)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return symmetric(tmp_path_factory.mktemp("made") / "model")


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "model"))


class Load:
    """One load of a folder, as ``load_cuda`` does it."""

    def __init__(self, folder: Path) -> None:
        self.progress: list[tuple[int, int]] = []
        config = ModelConfig.from_folder(folder)
        stored = read_headers(folder, config)
        self.cache = cache_of(folder, config, stored)
        self.found = self.cache.find()
        self.weights = load_weights(
            folder, config, stored, device=CPU, cache=self.cache, found=self.found,
            on_progress=lambda done, total: self.progress.append((done, total)),
        )  # fmt: skip

    @property
    def cached(self) -> bool:
        return self.found is not None


def cache_of(folder: Path, config: ModelConfig, stored: StoredModel) -> PackedCache:
    seen = shard_hashes.stamps(folder.glob("*.safetensors"))
    return PackedCache.of(folder, config, stored, seen=seen, device=CPU, dtype=torch.bfloat16)


def same(one: ModelWeights, other: ModelWeights) -> bool:
    pairs = list(zip(flat(one), flat(other), strict=True))
    return all(
        a_name == b_name and a.dtype == b.dtype and torch.equal(a, b)
        for (a_name, a), (b_name, b) in pairs
    ) and bool(pairs)


def flat(weights: ModelWeights) -> list[tuple[str, torch.Tensor]]:
    return list(iter_tensors(weights))


@pytest.mark.parametrize("kind", FOLDERS)
def test_it_gives_what_was_packed(tmp_path: Path, kind: str) -> None:
    folder = FOLDERS[kind](tmp_path / "model")
    first, second = Load(folder), Load(folder)
    assert not first.cached and second.cached
    assert same(first.weights, second.weights)
    names = [name for name, _ in flat(first.weights)]
    assert any("gate_up.weight.data" in name for name in names) == (kind not in no_packed_mlp)
    # One allocation, and every tensor of it aligned for the kernels.
    starts = {one.untyped_storage().data_ptr() for _, one in flat(second.weights)}
    assert len(starts) == 1
    base = starts.pop()
    assert all((one.data_ptr() - base) % 256 == 0 for _, one in flat(second.weights))


no_packed_mlp = ("partly", "gptq reordered")


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    folder = symmetric(tmp_path / "model", tied=True)
    first, second = Load(folder), Load(folder)
    assert second.cached and same(first.weights, second.weights)
    table = second.weights.embed_tokens
    assert getattr(second.weights.lm_head, "weight").data_ptr() == table.data_ptr()  # noqa: B009


def test_progress_grows_to_its_total(folder: Path) -> None:
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    for load in (Load(folder), Load(folder)):
        done = [one for one, _ in load.progress]
        totals = {total for _, total in load.progress}
        assert done == sorted(done) and len(done) > 4 and totals == {done[-1]}
        assert (0.5 if load.cached else 1.5) * size < done[-1] < 2.5 * size


def flip(path: Path, offset: int) -> None:
    """Turn one bit, and set the times back."""
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def swap_scales(folder: Path) -> None:
    """Another checkpoint of the same shape: same header, same size, same time of change."""
    flip(folder / SINGLE_FILE, (folder / SINGLE_FILE).stat().st_size - 2)


def change_config(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "rms_norm_eps": 1e-5}))


@pytest.mark.parametrize("change", [swap_scales, change_config])
def test_another_checkpoint_is_packed_again(
    folder: Path, caplog: pytest.LogCaptureFixture, change: Callable[[Path], None]
) -> None:
    Load(folder)
    change(folder)
    caplog.clear()
    second = Load(folder)
    assert not second.cached and "changed" in caplog.text and len(caplog.records) == 1
    third = Load(folder)
    assert third.cached and same(second.weights, third.weights)
    assert len(list((folder / ".bytebound").glob("packed-*"))) == 1


def test_another_layout_or_card_is_packed_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Load(folder)
    with monkeypatch.context() as other:
        other.setattr(packed_cache, "PACKED_LAYOUT_VERSION", 999)
        assert not Load(folder).cached
    assert not Load(folder).cached  # that of the other version took its place
    monkeypatch.setattr(packed_cache, "architecture", lambda device: "sm90")
    assert not Load(folder).cached
    assert {path.name for path in (folder / ".bytebound").glob("packed-*")} == {
        "packed-cpu.bin", "packed-sm90.bin"
    }  # fmt: skip


def test_any_damage_is_found(folder: Path) -> None:
    """Bits all over the file, and every way to cut it: never a wrong weight."""
    expected = Load(folder).weights
    path = folder / ".bytebound" / "packed-cpu.bin"
    whole = path.read_bytes()
    header = int.from_bytes(whole[16:24], "little")
    gaps = 0
    for offset in [
        0,
        17,
        30,
        50,
        4096,
        5000,
        header // 2,
        header - 300,
        header + 5,
        len(whole) - 1,
    ]:
        path.write_bytes(whole)
        flip(path, offset)
        load = Load(folder)
        assert same(load.weights, expected), offset
        gaps += path.read_bytes() != whole  # only a byte between tensors may stay
    assert gaps <= 2
    for size in (0, 10, 4096, header, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert same(Load(folder).weights, expected), size
        assert path.read_bytes() == whole
    path.write_bytes(whole + b"x")
    assert not Load(folder).cached


def test_damage_inside_the_image_costs_one_line(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = Load(folder).weights
    path = folder / ".bytebound" / "packed-cpu.bin"
    flip(path, 4096)
    caplog.clear()
    load = Load(folder)
    assert load.cached and same(load.weights, expected)
    (line,) = caplog.messages
    assert "not what was written" in line
    assert same(Load(folder).weights, expected)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("where", ["os.posix_fallocate", "os.pwrite", "os.open"])
def test_what_cannot_be_written_is_no_error(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
    error: int,
) -> None:
    original = os.open

    def refuse(*args: object, **options: object) -> int:
        if where == "os.open" and ".part" not in str(args[0]):
            return original(*args, **options)  # type: ignore[arg-type]
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as full:
        full.setattr(where, refuse)
        load = Load(folder)
    assert not load.cached and len(caplog.records) == 1 and os.strerror(error) in caplog.text
    assert not list((folder / ".bytebound").glob("packed*"))
    assert load.progress[-1][0] <= load.progress[-1][1]
    assert same(load.weights, Load(folder).weights)


def test_a_file_in_the_way_of_the_folder(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / ".bytebound").write_text("mine")
    assert not Load(folder).cached and not Load(folder).cached
    assert (folder / ".bytebound").read_text() == "mine"
    assert all("is not" in line for line in caplog.messages)


def test_a_process_that_was_killed_leaves_nothing_that_adds_up(folder: Path) -> None:
    (folder / ".bytebound").mkdir()
    left = folder / ".bytebound" / "packed-cpu.bin.part"
    left.write_bytes(b"half of a file" * 10_000)
    Load(folder)
    assert not left.exists() and Load(folder).cached


def test_two_processes_do_not_write_at_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    import fcntl

    (folder / ".bytebound").mkdir()
    with (folder / ".bytebound" / "packed-cpu.bin.part").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not Load(folder).cached
        assert len(caplog.records) == 1
    assert not (folder / ".bytebound" / "packed-cpu.bin").exists()


def test_a_checkpoint_that_changes_while_it_is_read_is_not_kept(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ModelConfig.from_folder(folder)
    stored = read_headers(folder, config)
    cache = cache_of(folder, config, stored)
    swap_scales(folder)
    load_weights(folder, config, stored, device=CPU, cache=cache)
    assert "changed while it was read" in caplog.text
    assert not cache.path.exists()


def test_a_copied_folder_keeps_its_cache(folder: Path, tmp_path: Path) -> None:
    Load(folder)
    copy = Path(shutil.copytree(folder, tmp_path / "copy", symlinks=True))
    assert Load(copy).cached  # other inodes and times, the same bytes


def test_a_hit_reads_no_byte_of_the_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Load(folder)
    monkeypatch.setattr(shard_hashes, "hash_file", lambda file: pytest.fail("it was hashed"))
    monkeypatch.setattr("bytebound.reading.read_tensor", lambda *_: pytest.fail("it was read"))
    assert Load(folder).cached


def test_a_cache_without_its_file(folder: Path) -> None:
    Load(folder)
    load = Load(folder)
    assert isinstance(load.found, PackedFile)
    load.found.path.unlink()
    parts = load.cache.load(load.found, None)
    assert parts is None
