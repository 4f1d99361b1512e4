"""The weights of a 4-bit folder in the kernels' form, kept beside it for the next load.

Bringing a folder into that form takes time; ``.bytebound/packed-<architecture>.bin`` is read as it
is. It counts only with the same key: a hash of all bytes of the checkpoint's files
(``shard_hashes.py``), its config, the way matrices are fused, the kernels' layout version and the
architecture. Every block is checked as it is read. A file whose key is no longer right is replaced.
That it cannot be written is never an error: one line to the log, and the next load packs again.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bytebound_kernels as bk
import torch
from bytebound_kernels.ops.w4_matvec.layout import PACKED_LAYOUT_VERSION

from bytebound.checkpoint import StoredModel
from bytebound.config import ModelConfig
from bytebound.cuda import fusion
from bytebound.cuda.matrices import DenseMatrix, GatedDenseMatrix, Matrix, PackedMatrix
from bytebound.cuda.packed_file import (
    DamagedFileError,
    PackedFile,
    open_packed,
    write_packed,
)
from bytebound.reading import Progress
from bytebound.shard_hashes import Stamp, content_hashes, stamps

FOLDER = ".bytebound"
VERSION = 1  # of what the parts hold; raise it with any change of assembly.py that changes bytes

Weights = dict[str, Matrix | torch.Tensor]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackedCache:
    """The kept form of one folder for one device."""

    folder: Path
    files: tuple[Path, ...]
    device: torch.device
    dtype: torch.dtype
    own_key: str  # of everything but what the files hold
    seen: Mapping[str, Stamp]  # how the files looked before anything of them was read

    @classmethod
    def of(
        cls,
        folder: Path,
        config: ModelConfig,
        stored: StoredModel,
        *,
        seen: Mapping[str, Stamp],
        device: torch.device,
        dtype: torch.dtype,
    ) -> "PackedCache":
        """For a folder whose headers were read; nothing is looked up yet.

        ``seen`` are the stamps of its files from before that.
        """
        own = {
            "version": VERSION,
            "layout": PACKED_LAYOUT_VERSION,
            "arch": architecture(device),
            "dtype": str(dtype),
            "config": hashlib.sha256((folder / "config.json").read_bytes()).hexdigest(),
            "fusions": repr(fusion.plan(config, stored.prefix, with_mtp=stored.with_mtp)),
        }
        return cls(folder, stored.files, device, dtype, json.dumps(own), seen)

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.folder / FOLDER / f"packed-{architecture(self.device)}.bin"

    def find(self) -> PackedFile | None:
        """The kept form, if there is one and it is that of these files."""
        try:
            found = open_packed(self.path)
            if found is None:
                return None
            if found.key == self._key():
                return found
        except DamagedFileError as error:
            _log.info("%s is not used: %s", self.path, error)
            return None
        except OSError as error:
            _log.info("%s is not used: %s", self.path, error)
            return None
        _log.info("%s is not used: the checkpoint, the kernels or the config changed", self.path)
        return None

    def load(self, found: PackedFile, on_progress: Progress | None) -> Weights | None:
        """Read the weights; None, and one line to the log, where the file is damaged."""
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if on_progress is not None:
                on_progress(done, found.num_bytes)

        try:
            return {
                part.name: _joined(part.meta, tensors)
                for part, tensors in found.read(self.device, advance)
            }
        except (DamagedFileError, OSError) as error:
            _log.info("%s is not used: %s", self.path, error)
            return None

    def save(self, weights: Weights, on_progress: Progress | None) -> bool:
        """Keep the weights; False, and one line to the log, where that is not possible."""
        done = 0

        def advance(count: int, total: int) -> None:
            nonlocal done
            done += count
            if on_progress is not None:
                on_progress(done, total)

        try:
            self.path.parent.mkdir(exist_ok=True)
            key = self._key()
            if stamps(self.files) != {file.name: self.seen.get(file.name) for file in self.files}:
                raise OSError("the checkpoint changed while it was read")
            content = {name: _taken_apart(one) for name, one in weights.items()}
            write_packed(self.path, key, content, advance)
        except OSError as error:
            _log.info("%s is not written: %s", self.path, error)
            return False
        return True

    def _key(self) -> str:
        hashes = content_hashes(self.files, self.folder / FOLDER / "hashes.json")
        text = self.own_key + json.dumps(hashes, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def architecture(device: torch.device) -> str:
    """The name of the device's architecture: "sm90"."""
    if device.type != "cuda":
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm{major}{minor}"


def _taken_apart(weight: Matrix | torch.Tensor) -> tuple[dict[str, Any], list[torch.Tensor]]:
    match weight:
        case torch.Tensor():
            return {"kind": "tensor"}, [weight]
        case DenseMatrix():
            return {"kind": "dense"}, [weight.weight]
        case GatedDenseMatrix():
            return {"kind": "gated"}, [weight.gate, weight.up]
        case PackedMatrix(weight=packed):
            meta = {
                "n": packed.n,
                "k": packed.k,
                "asymmetric": packed.asymmetric,
                "scale_dtype": packed.scale_dtype,
                "interleaved": packed.interleaved,
            }
            return {"kind": "packed", **meta}, [packed.data]
    raise TypeError(f"no form for a {type(weight).__name__}")


def _joined(meta: Any, tensors: list[torch.Tensor]) -> Matrix | torch.Tensor:
    fields = dict(meta)
    match fields.pop("kind"):
        case "tensor":
            return tensors[0]
        case "dense":
            return DenseMatrix(tensors[0])
        case "gated":
            return GatedDenseMatrix(*tensors)
        case "packed":
            return PackedMatrix(bk.PackedW4(tensors[0], **fields))
        case kind:
            raise TypeError(f"no matrix of kind {kind!r}")
