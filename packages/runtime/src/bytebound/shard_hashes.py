"""What a checkpoint's files hold, as hashes of all their bytes, without reading them every time.

A hash is remembered in a file beside the checkpoint with the size, the times and the inode that the
file had then, and holds as long as these do: whoever writes to a file changes its ctime, which no
ordinary tool can set back. A file that was written so shortly before it was hashed that a further
write might leave the same times is hashed again. Files are as large as models, so they are hashed
in blocks, by several threads: SHA-256 of the SHA-256 of every block.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bytebound.parallel_blocks import Buffer, for_each, pieces, read_exactly

SETTLED_NS = 2 * 10**9  # coarsest clock of a file system in use
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Stamp:
    """How a file looks from outside."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, file: Path) -> "Stamp":
        """Look at it; links are followed."""
        found = file.stat()
        return cls(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


def stamps(files: Iterable[Path]) -> dict[str, Stamp]:
    """Stamps by file name, of the files that can be looked at."""
    found = {}
    for file in files:
        with contextlib.suppress(OSError):
            found[file.name] = Stamp.of(file)
    return found


def content_hashes(files: Iterable[Path], memo: Path) -> dict[str, str]:
    """Return the hash of every file by its name, from ``memo`` where that still holds.

    ``memo`` is written anew when something was hashed; that it cannot be written is no error.

    Raises:
        OSError: a file cannot be read, or changed while it was.
    """
    known = _read(memo)
    result: dict[str, str] = {}
    fresh: dict[str, Any] = {}
    for file in sorted(files):
        stamp = Stamp.of(file)
        record = known.get(file.name)
        if record is None or record["stamp"] != asdict(stamp):
            begun = time.time_ns()
            digest = hash_file(file)
            if Stamp.of(file) != stamp:
                raise OSError(f"{file} changed while it was read")
            settled = max(stamp.mtime_ns, stamp.ctime_ns) < begun - SETTLED_NS
            record = {"stamp": asdict(stamp), "sha256": digest}
            if settled:
                fresh[file.name] = record
        result[file.name] = record["sha256"]
    if fresh:
        _write(memo, {**{name: known[name] for name in result if name in known}, **fresh})
    return result


def hash_file(file: Path) -> str:
    """SHA-256, in hexadecimal, of the SHA-256 of every block of the file."""
    descriptor = os.open(file, os.O_RDONLY)
    try:

        def digest(buffer: Buffer, piece: tuple[int, int]) -> bytes:
            offset, length = piece
            view = buffer.view[:length]
            read_exactly(descriptor, view, offset)
            return hashlib.sha256(view).digest()

        size = os.fstat(descriptor).st_size
        return hashlib.sha256(
            b"".join(for_each(pieces(size), digest, torch.device("cpu")))
        ).hexdigest()
    finally:
        os.close(descriptor)


def _read(memo: Path) -> dict[str, Any]:
    """Records that are whole; none where the file is missing or damaged."""
    try:
        content = json.loads(memo.read_bytes())
        if content["version"] != _VERSION or content["sha256"] != _digest(content["files"]):
            return {}
        return dict(content["files"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _write(memo: Path, files: dict[str, Any]) -> None:
    content = {"version": _VERSION, "files": files, "sha256": _digest(files)}
    part = memo.with_name(f".{memo.name}.{os.getpid()}.part")
    try:
        memo.parent.mkdir(exist_ok=True)
        part.write_text(json.dumps(content), encoding="ascii")
        part.replace(memo)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _digest(files: Any) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode("ascii")).hexdigest()
