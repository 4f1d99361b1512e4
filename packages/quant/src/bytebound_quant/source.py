"""The checkpoint that is quantized: its config, its headers, and one tensor or row block at a time.

Headers pass the runtime's own strict checks before anything is read, so a missing shard or a wrong
shape costs no work; nor does a tokenizer with ids that the model has no row for. A folder that is
quantized already is refused by name: quantizing twice loses quality without a word. Nothing here
knows what happens to a tensor.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bytebound.checkpoint import StoredModel, read_headers
from bytebound.config import ModelConfig, read_json_object
from bytebound.names import resolve_model
from bytebound.shards import FLOATS, StoredTensor, open_shards, read_tensor
from bytebound.text.tokenizer import Tokenizer

from bytebound_quant.errors import SourceError
from bytebound_quant.vocabulary import matching_tokenizer

BLOCK_BYTES = 64 << 20  # read at once where a tensor is streamed
HASH_THREADS = 8
QUANTIZATION_FIELDS = ("quantization_config", "compression_config", "quantization")
PACKED_TAILS = (".weight_packed", ".weight_scale", ".qweight", ".qzeros", ".weight_scale_inv")


@dataclass(frozen=True, slots=True)
class Source:
    """An unquantized checkpoint whose headers are sound."""

    folder: Path
    raw_config: Mapping[str, Any]
    config: ModelConfig
    stored: StoredModel
    tokenizer: Tokenizer | None
    """None where the folder holds none."""

    @property
    def tensors(self) -> dict[str, StoredTensor]:
        """Every tensor by name, vision included."""
        return {**self.stored.tensors, **self.stored.skipped}

    def read(self, name: str) -> torch.Tensor:
        """One whole tensor in its stored dtype; NaN or infinity is refused."""
        stored = self.stored.tensors[name]
        return _read(stored, stored)

    def rows(self, name: str, rows: int) -> Iterator[torch.Tensor]:
        """A matrix in blocks of ``rows`` rows, the last one shorter."""
        stored = self.stored.tensors[name]
        height, row_bytes = stored.shape[0], stored.num_bytes // stored.shape[0]
        for start in range(0, height, rows):
            count = min(rows, height - start)
            block = dataclasses.replace(
                stored,
                shape=(count, *stored.shape[1:]),
                offset=stored.offset + start * row_bytes,
                num_bytes=count * row_bytes,
            )
            yield _read(block, stored)

    def raw(self, name: str) -> Iterator[bytes]:
        """The bytes of any tensor as stored, in blocks; floats are checked to be finite."""
        stored = self.tensors[name]
        dtype = FLOATS.get(stored.dtype)
        try:
            with stored.file.open("rb", buffering=0) as file:
                file.seek(stored.offset)
                left = stored.num_bytes
                while left:
                    block = file.read(min(left, BLOCK_BYTES))
                    if not block:
                        raise SourceError(
                            f"{stored.file} ended inside {name}: it became shorter while being read"
                        )
                    left -= len(block)
                    # A read may end inside an element only where the file system splits reads.
                    if dtype is not None and len(block) % dtype.itemsize == 0:
                        _check_finite(torch.frombuffer(bytearray(block), dtype=dtype), stored)
                    yield block
        except OSError as error:
            raise SourceError(
                f"{stored.file}: {name} cannot be read: {error.strerror or error}"
            ) from error

    def hashes(self) -> dict[str, str]:
        """SHA-256 of config and weight files, by file name."""
        paths = [self.folder / "config.json", *self.stored.files]
        with ThreadPoolExecutor(HASH_THREADS) as pool:
            return {
                path.name: digest
                for path, digest in zip(paths, pool.map(file_hash, paths), strict=True)
            }


def open_source(path_or_name: str | Path) -> Source:
    """Check the folder's config, headers and tokenizer.

    Raises:
        SourceError: it is quantized already.
        VocabularyMismatchError: its tokenizer has an id beyond the model's vocabulary.
        CheckpointError: of the runtime, for whatever else makes it no sound checkpoint.
    """
    folder = resolve_model(path_or_name)
    raw = read_json_object(folder, "config.json")
    _check_not_quantized(folder, raw)
    config = ModelConfig.from_folder(folder)
    packed = [name for name in open_shards(folder) if name.endswith(PACKED_TAILS)]
    if packed:
        raise SourceError(
            f"{folder} is quantized already: it holds {packed[0]}, though its config does not say "
            "so; give the 16-bit checkpoint that it was made from"
        )
    stored = read_headers(folder, config)
    tokenizer = matching_tokenizer(folder, config.vocab_size)
    return Source(folder, raw, config, stored, tokenizer)


def file_hash(path: Path) -> str:
    """SHA-256 of one file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, however its keys are ordered."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _check_not_quantized(folder: Path, raw: Mapping[str, Any]) -> None:
    inner = raw.get("text_config")
    for level in (raw, inner if isinstance(inner, dict) else {}):
        for name in QUANTIZATION_FIELDS:
            block = level.get(name)
            if block is None:
                continue
            detail = block if isinstance(block, dict) else {}
            method = detail.get("quant_method", "of unknown method")
            form = f", {detail['format']}" if "format" in detail else ""
            raise SourceError(
                f"{folder} is quantized already ({method}{form}; config.json: {name}); give the "
                "16-bit checkpoint that it was made from"
            )


def _read(block: StoredTensor, stored: StoredTensor) -> torch.Tensor:
    try:
        with stored.file.open("rb", buffering=0) as file:
            tensor = read_tensor(block, file)
    except OSError as error:
        raise SourceError(f"{stored.file} cannot be read: {error.strerror or error}") from error
    _check_finite(tensor, stored)
    return tensor


def _check_finite(tensor: torch.Tensor, stored: StoredTensor) -> None:
    low, high = torch.aminmax(tensor)
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        raise SourceError(
            f"{stored.file}: {stored.name} holds NaN or infinite values; the file is damaged"
        )
