import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound import Engine
from bytebound.errors import ByteboundError
from bytebound_quant import atomic, output
from bytebound_quant.errors import DestinationError
from bytebound_quant.output import OutputFolder, tensor_blob
from safetensors.torch import load_file

from .small import checkpoint, contents, rtn_job

DTYPES = [torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32]


def test_a_shard_reads_back(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path / "out", needed_bytes=0)
    tensors = {f"t{i}": torch.arange(3 * i + 3).to(t) for i, t in enumerate(DTYPES)}
    tensors["matrix"] = torch.randn(6, 5).T  # not contiguous
    folder.write_shard("a.safetensors", [tensor_blob(name, t) for name, t in tensors.items()])
    loaded = load_file(folder.folder / "a.safetensors")
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(DestinationError, match="exists and is not empty"):
        OutputFolder(tmp_path / "out", needed_bytes=0)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DestinationError, match="exists and is not empty"):
        OutputFolder(tmp_path / "file", needed_bytes=0)


def test_a_partial_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "notes.txt").write_text("mine")
    with pytest.raises(DestinationError, match="no unfinished output"):
        OutputFolder(tmp_path / "out", needed_bytes=0)


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "a")
    (tmp_path / "out").mkdir()
    rtn_job(made.folder, tmp_path / "out").run()
    assert (tmp_path / "out" / "config.json").exists()


def test_two_runs_at_once(tmp_path: Path) -> None:
    first = OutputFolder(tmp_path / "out", needed_bytes=0)
    with pytest.raises(DestinationError, match="another run"):
        OutputFolder(tmp_path / "out", needed_bytes=0)
    first.close()
    OutputFolder(tmp_path / "out", needed_bytes=0).close()


def test_a_disk_that_is_too_small_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(DestinationError, match="the disk has"):
        OutputFolder(tmp_path / "out", needed_bytes=1 << 60)
    assert list(tmp_path.iterdir()) == []


def full_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The disk takes ``after`` more bytes."""
    left = after
    write = os.write

    def write_some(descriptor: int, data: Any) -> int:
        nonlocal left
        if left < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left -= len(data)
        return write(descriptor, data)

    monkeypatch.setattr(atomic.os, "write", write_some)


@pytest.mark.parametrize("after", [0, 3_000, 60_000, 150_000])
def test_a_full_disk_leaves_nothing_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    made = checkpoint(tmp_path / "a")
    rtn_job(made.folder, tmp_path / "whole").run()
    with monkeypatch.context() as patch:
        full_disk(patch, after)
        with pytest.raises(DestinationError, match="no space left on the disk"):
            rtn_job(made.folder, tmp_path / "out").run()
    assert not (tmp_path / "out").exists()
    with pytest.raises(ByteboundError):
        Engine.from_pretrained(tmp_path / "out.partial")
    assert not list(tmp_path.glob("out.partial/.pending*"))
    # With space again, the same command continues.
    rtn_job(made.folder, tmp_path / "out").run()
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(output.Path, "mkdir", refuse)
    with pytest.raises(DestinationError, match="Permission denied"):
        OutputFolder(tmp_path / "out", needed_bytes=0)
