"""The 4-bit folder while it is made: files that appear whole, and a last rename that finishes it.

All work happens in ``DST.partial``. When every file is in place the folder is renamed to ``DST``;
``config.json``, without which nothing loads a folder, is the last file to get its name, so that at
no moment an unfinished output loads. A journal inside says what is done (``journal.py``).
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bytebound.shards import ITEM_BYTES

from bytebound_quant import atomic
from bytebound_quant.atomic import PENDING, WrittenFile, write_file
from bytebound_quant.errors import DestinationError, SourceError
from bytebound_quant.journal import JOURNAL_FILE

WORK_SUFFIX = ".partial"
CONFIG_FILE = "config.json"
HIDDEN_CONFIG = ".config.json"  # the config before the folder is finished
INDEX_FILE = "model.safetensors.index.json"
REPORT_FILE = "quantization_report.json"

# Copied from the source where it has them; none of them says how a weight is stored.
COPIED_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "LICENSE",
    "LICENSE.txt",
)

STORED_AS = {
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
}


@dataclass(frozen=True, slots=True)
class Blob:
    """One tensor to be written: what the header says, and its bytes in blocks."""

    name: str
    dtype: str  # as safetensors spells it
    shape: Sequence[int]
    num_bytes: int
    blocks: Iterable[bytes | memoryview]


def tensor_blob(name: str, tensor: torch.Tensor) -> Blob:
    """A tensor of the host as it lies in memory."""
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    return Blob(
        name, STORED_AS[tensor.dtype], tuple(tensor.shape), flat.numel(), [flat.numpy().data]
    )


class OutputFolder:
    """The output of one run, new or to be continued."""

    def __init__(self, destination: Path, *, needed_bytes: int) -> None:
        self.final = destination
        self._work = destination.with_name(destination.name + WORK_SUFFIX)
        self._lock: int | None = None
        self.folder = self._choose()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._hold()
            self._remove_pending()
        except OSError as error:
            raise atomic.cannot_write(self.folder, error) from error
        if not (self.folder / JOURNAL_FILE).exists():
            self._check_space(needed_bytes)

    @property
    def finished(self) -> bool:
        """Whether only the tidying up was left."""
        return (self.folder / CONFIG_FILE).exists()

    def write_shard(self, file_name: str, blobs: Sequence[Blob]) -> WrittenFile:
        """One safetensors file; wide elements first, so that every tensor is aligned."""
        ordered = sorted(blobs, key=lambda blob: -ITEM_BYTES[blob.dtype])
        return write_file(self.folder / file_name, _safetensors(ordered))

    def write_json(self, file_name: str, value: Any) -> WrittenFile:
        """One JSON file, the same bytes for the same value."""
        text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        return write_file(self.folder / file_name, [text.encode()])

    def copy_files(self, source: Path) -> None:
        """Tokenizer, template and generation settings, unchanged."""
        for name in COPIED_FILES:
            if not (source / name).is_file():
                continue
            try:
                content = (source / name).read_bytes()
            except OSError as error:
                raise SourceError(
                    f"{source / name} cannot be read: {error.strerror or error}"
                ) from error
            write_file(self.folder / name, [content])

    def finish(self, config: Mapping[str, Any]) -> None:
        """Give the folder its name, then the config its own; only then does it load."""
        self.write_json(HIDDEN_CONFIG, config)
        try:
            if self.folder != self.final:
                atomic.rename(self.folder, self.final)
                self.folder = self.final
            atomic.rename(self.final / HIDDEN_CONFIG, self.final / CONFIG_FILE)
        except OSError as error:
            raise atomic.cannot_write(self.final, error) from error
        self.tidy()

    def tidy(self) -> None:
        """Remove what only an unfinished output needs."""
        try:
            (self.final / JOURNAL_FILE).unlink(missing_ok=True)
            atomic.sync_folder(self.final)
        except OSError as error:
            raise atomic.cannot_write(self.final / JOURNAL_FILE, error) from error

    def close(self) -> None:
        """Let another process have the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _choose(self) -> Path:
        """The folder to work in; refuses one that holds anything else than an unfinished output."""
        if self.final.is_dir() and (self.final / JOURNAL_FILE).exists():
            return self.final  # killed between the two last renames
        if self.final.exists() and not (self.final.is_dir() and not any(self.final.iterdir())):
            raise DestinationError(
                f"{self.final} exists and is not empty; give another folder, or remove it"
            )
        if self._work.exists():
            entries = [*self._work.iterdir()] if self._work.is_dir() else [self._work]
            named = [one for one in entries if not one.name.startswith(PENDING)]
            if named and not (self._work / JOURNAL_FILE).exists():
                raise DestinationError(
                    f"{self._work} exists and is no unfinished output of bytebound-quant; remove it"
                )
        return self._work

    def _hold(self) -> None:
        self._lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise DestinationError(
                f"{self.folder} is being written by another run; wait for it to end"
            ) from None

    def _remove_pending(self) -> None:
        for path in self.folder.glob(PENDING + "*"):
            path.unlink()

    def _check_space(self, needed: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            self.close()
            self.folder.rmdir()
            raise DestinationError(
                f"{self.final}: the output takes about {needed / 1e9:.2f} GB, the disk has "
                f"{free / 1e9:.2f} GB left; free some, or choose a folder on another disk"
            )


def _safetensors(blobs: Sequence[Blob]) -> Iterator[bytes | memoryview]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for blob in blobs:
        header[blob.name] = {
            "dtype": blob.dtype,
            "shape": list(blob.shape),
            "data_offsets": [end, end + blob.num_bytes],
        }
        end += blob.num_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for blob in blobs:
        yield from blob.blocks
