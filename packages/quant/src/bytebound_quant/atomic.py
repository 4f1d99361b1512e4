"""Files that appear whole or not at all: written under a hidden name, synced, then renamed.

Every failure to write is one DestinationError that says what to do; the hidden file is removed.
Nothing here knows what the bytes mean.
"""

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bytebound_quant.errors import DestinationError

PENDING = ".pending-"  # prefix of a file that is not whole yet
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What was written."""

    sha256: str
    num_bytes: int


def write_file(path: Path, blocks: Iterable[bytes | memoryview]) -> WrittenFile:
    """Write ``blocks`` to ``path`` and return once they are on the disk.

    Raises:
        DestinationError: the disk is full, or the folder cannot be written.
    """
    pending = path.with_name(PENDING + path.name)
    hashed = hashlib.sha256()
    size = 0
    try:
        try:
            with pending.open("wb") as file:
                for block in blocks:
                    write_block(file.fileno(), block)
                    hashed.update(block)
                    size += len(block)
                os.fsync(file.fileno())
            rename(pending, path)
        except BaseException:
            with contextlib.suppress(OSError):
                pending.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise cannot_write(path, error) from error
    return WrittenFile(hashed.hexdigest(), size)


def write_block(descriptor: int, block: bytes | memoryview) -> None:
    """Write all of ``block``."""
    view = memoryview(block)
    while view:
        view = view[os.write(descriptor, view) :]


def rename(source: Path, target: Path) -> None:
    """The step that makes ``target`` appear, atomic and on the disk when this returns."""
    os.replace(source, target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(path: Path, error: OSError) -> DestinationError:
    """The one line for a failed write."""
    if error.errno in NO_SPACE:
        return DestinationError(
            f"{path}: no space left on the disk; free some and run the same command again, it "
            "continues where it stopped"
        )
    return DestinationError(f"{path} cannot be written: {error.strerror or error}")
