"""Logits of a reference model on the disk, so that it runs once however many models it judges.

An entry is a folder with one file per window, the float32 rows that predict its targets, and
``entry.json``, written last, with what they belong to and the SHA-256 of each file. A run that was
killed leaves an entry without ``entry.json``, which the next run with the same key completes. The
values are the model's own, never rounded to 16 bits.

The cache is a folder of entries, named by a hash of everything that decides the values: weights,
tokenizer, ids, window rule, how the model ran. It never takes more than its limit: before an entry
is written, those that were not used for the longest time make room.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bytebound import Engine

from bytebound_evals.errors import CacheError, ReferenceMismatchError
from bytebound_evals.identity import digest
from bytebound_evals.perplexity import Tick, scored_rows
from bytebound_evals.windows import CutText

ENTRY_FILE = "entry.json"
FORMAT = 1
DEFAULT_LIMIT = 32 * 10**9
VALUE_BYTES = 4  # float32
_OWN_FILE = re.compile(r"window-\d{6}\.f32|entry\.json|\.(window-\d{6}\.f32|entry\.json)\.\d+")


@dataclass(frozen=True, slots=True)
class ReferenceKey:
    """What reference logits belong to; equal keys mean equal logits."""

    model: str
    """``identity.model_digest`` of the reference."""
    tokenizer: str
    """``identity.tokenizer_digest``."""
    text: str
    """``identity.text_digest``: the ids of the windows."""
    vocab_size: int
    run: dict[str, Any]
    """How the reference ran: backend, device, dtype, package version."""

    @property
    def name(self) -> str:
        """The entry's folder name."""
        return digest({"format": FORMAT, **asdict(self)})[:32]


class StoredReference:
    """The rows of one complete entry; fits ``divergence.Reference``."""

    def __init__(self, folder: Path, text: CutText, tokenizer: str, text_hash: str) -> None:
        """Open the entry in ``folder`` for the windows of ``text``.

        ``tokenizer`` and ``text_hash`` are the digests that the model to be judged has.

        Raises:
            CacheError: the folder holds no complete entry, or a damaged one.
            ReferenceMismatchError: the entry was made with another tokenizer or other windows.
        """
        self._folder = folder
        self._record = _read_entry(folder)
        self._text = text
        key = self._record["key"]
        if key["tokenizer"] != tokenizer:
            raise ReferenceMismatchError(
                f"{folder}: these reference logits were made with another tokenizer "
                f"({key['tokenizer'][:12]}, the model's is {tokenizer[:12]}); compare a model with "
                "its own original"
            )
        if key["text"] != text_hash:
            made = ", ".join(f"{name} {value}" for name, value in self._record["cut"].items())
            raise ReferenceMismatchError(
                f"{folder}: these reference logits belong to other windows ({made}); measure on "
                "the same text with the same window, stride and prefix"
            )
        if len(self._record["files"]) != len(text.windows):
            raise CacheError(f"{folder / ENTRY_FILE} is damaged; remove {folder} and run again")
        os.utime(folder / ENTRY_FILE)  # used now: the order of eviction

    @property
    def record(self) -> dict[str, Any]:
        """What the entry says of itself: key, cut, files."""
        return self._record

    def rows(self, index: int) -> torch.Tensor:
        """Logits float32 ``[n, vocab]`` of window ``index``, checked against their hash.

        Raises:
            CacheError: the file is missing or damaged.
        """
        path = self._folder / _file_name(index)
        try:
            values = np.fromfile(path, dtype="<f4")
        except OSError as error:
            raise CacheError(f"{path} cannot be read: {error.strerror or error}") from error
        if hashlib.sha256(values.data).hexdigest() != self._record["files"][index]:
            raise CacheError(f"{path} is damaged; remove {self._folder} and run again")
        return torch.from_numpy(values).view(len(self._text.windows[index].targets), -1)


class ReferenceCache:
    """A folder of entries that together take at most ``limit`` bytes."""

    def __init__(self, folder: Path, limit: int = DEFAULT_LIMIT) -> None:
        self.folder = folder
        self.limit = limit

    def get(
        self,
        key: ReferenceKey,
        text: CutText,
        open_engine: Callable[[], Engine],
        *,
        announce: Callable[[str], object] = lambda line: None,
        tick: Tick | None = None,
    ) -> StoredReference:
        """The entry of ``key``; where it is missing, ``open_engine`` gives the model to make it.

        ``announce`` is told in one line what will be written before anything is.

        Raises:
            CacheError: the logits do not fit the limit or the disk, or cannot be written.
        """
        entry = self.folder / key.name
        if not (entry / ENTRY_FILE).is_file():
            size = entry_bytes(text, key.vocab_size)
            self._make_room(size, entry)
            announce(
                f"writes {_shown(size)} of reference logits to {entry} "
                f"(at most {_shown(self.limit)} in {self.folder})"
            )
            _write_entry(entry, key, text, open_engine(), tick)
        return StoredReference(entry, text, key.tokenizer, key.text)

    def _make_room(self, size: int, entry: Path) -> None:
        """Evict what was not used for longest; an unfinished entry of this key counts as its own.

        Nothing is evicted where the entry cannot fit anyway.
        """
        if size > self.limit:
            raise CacheError(
                f"the reference logits take {_shown(size)}, more than the limit of "
                f"{_shown(self.limit)}; measure on fewer tokens, raise the limit, or compute the "
                "reference side by side, without a cache"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            others = sorted(
                (one for one in self.folder.iterdir() if _is_entry(one) and one != entry),
                key=_last_use,
            )
            taken = sum(map(_size_of, others))
            while taken + size > self.limit and others:
                oldest = others.pop(0)
                taken -= _size_of(oldest)
                shutil.rmtree(oldest)
            free = shutil.disk_usage(self.folder).free
        except OSError as error:
            raise CacheError(f"{self.folder}: {error.strerror or error}") from error
        if size > free + _size_of(entry):
            raise CacheError(
                f"the reference logits take {_shown(size)}, and {_shown(free)} are free on the "
                f"disk of {self.folder}; measure on fewer tokens or use another disk"
            )


def entry_bytes(text: CutText, vocab_size: int) -> int:
    """Bytes that the logits of all scored ids take."""
    return text.scored * vocab_size * VALUE_BYTES


def _write_entry(
    entry: Path, key: ReferenceKey, text: CutText, engine: Engine, tick: Tick | None
) -> None:
    files = []
    try:
        entry.mkdir(exist_ok=True)
        for index, window in enumerate(text.windows):
            count = len(window.targets)
            path = entry / _file_name(index)
            if not path.is_file() or path.stat().st_size != count * key.vocab_size * VALUE_BYTES:
                rows = scored_rows(engine, window).contiguous()
                if rows.shape[1] != key.vocab_size:
                    raise ReferenceMismatchError(
                        f"the reference gave {rows.shape[1]} logits, expected {key.vocab_size}"
                    )
                _write_whole(path, rows.numpy().astype("<f4", copy=False).data)
            with path.open("rb") as file:
                files.append(hashlib.file_digest(file, "sha256").hexdigest())
            if tick is not None:
                tick(count)
        record = {"format": FORMAT, "key": asdict(key), "cut": text.as_dict(), "files": files}
        _write_whole(entry / ENTRY_FILE, json.dumps(record, indent=2).encode())
    except OSError as error:
        raise CacheError(
            f"{entry} cannot be written: {error.strerror or error}; the same command continues "
            "where it stopped"
        ) from error


def _read_entry(folder: Path) -> dict[str, Any]:
    path = folder / ENTRY_FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise CacheError(f"{path}: format {record['format']}, expected {FORMAT}")
        ReferenceKey(**record["key"])
        record["files"][0], record["cut"]["text"]
    except OSError as error:
        raise CacheError(
            f"{folder} holds no complete reference logits: {error.strerror or error}"
        ) from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise CacheError(f"{path} is damaged ({error}); remove {folder} and run again") from error
    return dict(record)


def _write_whole(path: Path, content: bytes | memoryview) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _shown(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 10**8 else f"{size / 1e6:.2f} MB"


def _file_name(index: int) -> str:
    return f"window-{index:06d}.f32"


def _is_entry(path: Path) -> bool:
    """Whether a folder is one of ours: nothing else in the cache's folder is ever removed."""
    return (
        re.fullmatch(r"[0-9a-f]{32}", path.name) is not None
        and path.is_dir()
        and all(_OWN_FILE.fullmatch(file.name) for file in path.iterdir())
    )


def _size_of(entry: Path) -> int:
    return sum(file.stat().st_size for file in entry.glob("*")) if entry.is_dir() else 0


def _last_use(entry: Path) -> float:
    mark = entry / ENTRY_FILE
    return (mark if mark.is_file() else entry).stat().st_mtime
