"""The safetensors files of a model folder: which they are, what they hold, and reading one tensor.

Everything that can be checked without reading weights is checked on opening: the folder holds
exactly the files that its index names, each is as long as its header says, each tensor is where the
index says. Reads are plain reads into fresh memory, never a mapping: a file that shrinks meanwhile
is an error and not a tensor of zeros. Files whose names begin with a dot are not looked at, nor is
``draft_vocab.safetensors``, which holds ids and no weight.
"""

import ctypes
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from bytebound.config import read_json_object
from bytebound.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SUFFIX = ".safetensors"
DRAFT_VOCAB_FILE = "draft_vocab.safetensors"  # ids for drafting, no part of the model
OTHER_FORMATS = (".bin", ".gguf", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".npz", ".onnx")

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
READ_BYTES = 64 << 20  # one read call; progress is reported after each
LFS_MARK = b"version https://git-lfs"

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "U16": 2,
    "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
FLOATS = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
READABLE = {**FLOATS, "I32": torch.int32, "I64": torch.int64}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies: ``num_bytes`` bytes from ``offset`` of ``file``."""

    name: str
    file: Path
    dtype: str  # as the format spells it: "BF16"
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def some(names: list[str], limit: int = 5) -> str:
    """Join the first names for a message, with the count of those left out."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def open_shards(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of the folder by name, files and index checked against each other (E32-E34)."""
    present = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    weight_files = [name for name in present if name.endswith(SUFFIX) and name != DRAFT_VOCAB_FILE]
    if INDEX_FILE in present:
        return _open_indexed(folder, weight_files)
    if SINGLE_FILE not in weight_files:
        raise _no_weights(folder, present, weight_files)
    strays = [name for name in weight_files if name != SINGLE_FILE]
    if strays:
        raise CheckpointError(
            f"{folder} holds {SINGLE_FILE} and also {some(strays)}, without {INDEX_FILE} that "
            "would say what belongs to the model; remove what does not"
        )
    return read_header(folder / SINGLE_FILE)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors that one file says it holds; the file must be exactly as long as that needs."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            if LFS_MARK.startswith(start) and start:
                raise CheckpointError(
                    f"{path} is a git-lfs pointer, not the weights; run 'git lfs pull' or "
                    "download the file"
                )
            length = int.from_bytes(start, "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise CheckpointError(
                    f"{path} is no complete safetensors file: {size} bytes, and its header alone "
                    f"would take {length + 8}; fetch it again"
                )
            text = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    header = _parse_header(path, text)
    tensors: dict[str, StoredTensor] = {}
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: _offsets(path, *item)):
        tensor = _stored_tensor(path, name, entry, base=8 + length, expected_begin=end)
        end += tensor.num_bytes
        tensors[name] = tensor
    if size != 8 + length + end:
        raise CheckpointError(
            f"{path} is {'truncated' if size < 8 + length + end else 'too long'}: {size} bytes, "
            f"its header describes {8 + length + end}; fetch it again"
        )
    return tensors


def read_tensor(
    tensor: StoredTensor, file: BinaryIO, on_read: Callable[[int], None] | None = None
) -> torch.Tensor:
    """Read one tensor of a ``READABLE`` dtype into fresh memory; ``file`` is unbuffered."""
    # Memory of torch's own, so that its alignment, and with it the order of sums, never varies.
    result = torch.empty(tensor.shape, dtype=READABLE[tensor.dtype])
    raw = (ctypes.c_char * tensor.num_bytes).from_address(result.data_ptr())
    view = memoryview(raw)
    done = 0
    try:
        file.seek(tensor.offset)
        while done < tensor.num_bytes:
            got = file.readinto(view[done : done + READ_BYTES])  # type: ignore[attr-defined]
            if not got:
                raise CheckpointError(
                    f"{tensor.file} ended inside {tensor.name}: it became shorter while being read"
                )
            done += got
            if on_read is not None:
                on_read(got)
    except OSError as error:
        raise CheckpointError(
            f"{tensor.file}: {tensor.name} cannot be read: {error.strerror or error}"
        ) from error
    return result


def _open_indexed(folder: Path, weight_files: list[str]) -> dict[str, StoredTensor]:
    weight_map, total_size = _read_index(folder)
    named = sorted(set(weight_map.values()))
    missing = [name for name in named if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder}: {INDEX_FILE} names {some(missing)}, not in the folder; fetch them"
        )
    strays = [name for name in weight_files if name not in named]
    if strays:
        raise CheckpointError(
            f"{folder} also holds {some(strays)}, which {INDEX_FILE} does not name; remove what "
            "does not belong to the model, or fetch the index that goes with the files"
        )
    tensors: dict[str, StoredTensor] = {}
    for file_name in named:
        for name, tensor in read_header(folder / file_name).items():
            if name in tensors:
                raise CheckpointError(
                    f"{folder}: {name} is in {tensors[name].file.name} and again in {file_name}"
                )
            tensors[name] = tensor
    _check_index(folder, weight_map, tensors)
    stored = sum(tensor.num_bytes for tensor in tensors.values())
    if total_size is not None and total_size != stored:
        raise CheckpointError(
            f"{folder}: {INDEX_FILE} gives total_size {total_size}, the files hold {stored} bytes "
            "of tensors; index and files are not of one set"
        )
    return tensors


def _read_index(folder: Path) -> tuple[dict[str, str], int | None]:
    index = read_json_object(folder, INDEX_FILE)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / INDEX_FILE}: weight_map is missing, empty or no object")
    for name, file_name in weight_map.items():
        plain = isinstance(file_name, str) and Path(file_name).name == file_name
        if not plain or not file_name.endswith(SUFFIX):
            raise CheckpointError(
                f"{folder / INDEX_FILE}: {name} is mapped to {file_name!r}, expected the plain "
                f"name of a {SUFFIX} file in the folder"
            )
    metadata = index.get("metadata")
    total_size = metadata.get("total_size") if isinstance(metadata, dict) else None
    if not (total_size is None or type(total_size) is int) and not (
        isinstance(total_size, float) and total_size.is_integer()
    ):
        raise CheckpointError(
            f"{folder / INDEX_FILE}: total_size is {total_size!r}, expected a number of bytes"
        )
    return weight_map, None if total_size is None else int(total_size)


def _check_index(
    folder: Path, weight_map: dict[str, str], tensors: dict[str, StoredTensor]
) -> None:
    absent = [name for name in weight_map if name not in tensors]
    if absent:
        raise CheckpointError(
            f"{folder}: {INDEX_FILE} puts {some(absent)} in {weight_map[absent[0]]}, no such "
            "tensor there; index and files are not of one set"
        )
    unlisted = [name for name in tensors if name not in weight_map]
    if unlisted:
        raise CheckpointError(
            f"{folder}: {tensors[unlisted[0]].file.name} holds {some(unlisted)}, which "
            f"{INDEX_FILE} does not list; index and files are not of one set"
        )
    for name, file_name in weight_map.items():
        if tensors[name].file.name != file_name:
            raise CheckpointError(
                f"{folder}: {INDEX_FILE} puts {name} in {file_name}, it is in "
                f"{tensors[name].file.name}; index and files are not of one set"
            )


def _no_weights(folder: Path, present: list[str], weight_files: list[str]) -> CheckpointError:
    if weight_files:
        return CheckpointError(
            f"{folder} holds {some(weight_files)} but neither {SINGLE_FILE} nor {INDEX_FILE}; "
            "fetch the index, or give a single file that name"
        )
    others = [name for name in present if name.endswith(OTHER_FORMATS)]
    if others:
        return CheckpointError(
            f"{folder} holds no safetensors, only {some(others)}; that format is not read, use "
            "the model's safetensors release or convert it with save_pretrained()"
        )
    return CheckpointError(f"{folder} holds no weights: neither {SINGLE_FILE} nor {INDEX_FILE}")


def _parse_header(path: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                raise CheckpointError(f"{path}: {key} appears twice in the header")
            result[key] = value
        return result

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: its header is not valid JSON, the file is damaged; fetch it again"
        ) from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: its header is no JSON object; fetch it again")
    header.pop("__metadata__", None)
    return header


def _offsets(path: Path, name: str, entry: Any) -> tuple[int, int]:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or any(type(value) is not int or value < 0 for value in offsets)
    ):
        raise CheckpointError(f"{path}: {name} has no sound data_offsets; fetch the file again")
    return offsets[0], offsets[1]


def _stored_tensor(
    path: Path, name: str, entry: dict[str, Any], base: int, expected_begin: int
) -> StoredTensor:
    begin, end = _offsets(path, name, entry)
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(shape, list) or any(type(size) is not int or size < 0 for size in shape):
        raise CheckpointError(f"{path}: {name} has no sound shape ({shape!r})")
    if dtype not in ITEM_BYTES:
        raise CheckpointError(f"{path}: {name} has dtype {dtype!r}, which is not known")
    if begin != expected_begin:
        raise CheckpointError(
            f"{path}: {name} begins at byte {begin} of the data, expected {expected_begin}; "
            "the file has a gap or overlapping tensors"
        )
    if end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
        raise CheckpointError(
            f"{path}: {name} takes {end - begin} bytes, its shape {shape} in {dtype} needs "
            f"{math.prod(shape) * ITEM_BYTES[dtype]}"
        )
    return StoredTensor(name, path, dtype, tuple(shape), base + begin, end - begin)
