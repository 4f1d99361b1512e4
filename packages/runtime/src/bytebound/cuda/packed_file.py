"""A file of parts as the GPU holds them, made for reading into its memory as fast as a disk gives.

    0        magic, place and length of the header, SHA-256 of the header
    4096     image: the bytes of every tensor, each at a multiple of 256
    end      header, JSON: key, parts, and SHA-256 of every block of the image

One allocation takes the image, block by block: read to memory that the GPU copies from, checked,
copied. A block that is not what was written is an error, so nothing damaged gets through. The file
is written under another name and renamed when it is whole. It knows no model.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bytebound.parallel_blocks import Buffer, for_each, pieces, read_exactly, write_all

MAGIC = b"bytebound packed"
_PREAMBLE = struct.Struct("<16sQQ32s")
_IMAGE_START = 4096
_ALIGNMENT = 256
_MAX_HEADER_BYTES = 64 << 20

Advance = Callable[[int], None]


class DamagedFileError(Exception):
    """The file is not what was written."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one tensor lies in the image."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """One or two tensors and what they are; the file does not know what ``meta`` means."""

    name: str
    meta: Mapping[str, Any]
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class PackedFile:
    """An open file whose header is sound."""

    path: Path
    key: str
    image_bytes: int
    parts: tuple[Part, ...]
    blocks: tuple[tuple[int, int, str], ...]  # offset, length, SHA-256

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors, without what lies between them."""
        return sum(length for _, length, _ in self.blocks)

    def read(
        self, device: torch.device, advance: Advance
    ) -> Iterator[tuple[Part, list[torch.Tensor]]]:
        """Yield every part with its tensors on ``device``, once all of the image is there.

        Raises:
            DamagedFileError: a block is not what was written.
            OSError: it cannot be read.
        """
        image = torch.empty(self.image_bytes, dtype=torch.uint8, device=device)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # the memory may have been another's
        descriptor = os.open(self.path, os.O_RDONLY)
        try:

            def fetch(buffer: Buffer, block: tuple[int, int, str]) -> None:
                offset, length, expected = block
                view = buffer.view[:length]
                read_exactly(descriptor, view, _IMAGE_START + offset)
                if hashlib.sha256(view).hexdigest() != expected:
                    raise DamagedFileError(f"{length} bytes from {offset} are not what was written")
                buffer.copy(image[offset : offset + length], buffer.tensor[:length])

            for_each(self.blocks, fetch, device, lambda block: advance(block[1]))
        finally:
            os.close(descriptor)
        for part in self.parts:
            yield part, [_tensor(image, place) for place in part.places]


def open_packed(path: Path) -> PackedFile | None:
    """Read the header; None where there is no file.

    Raises:
        DamagedFileError: the header is not what was written, or the file not as long as it says.
        OSError: it cannot be read.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    with file:
        start = file.read(_PREAMBLE.size)
        if len(start) < _PREAMBLE.size:
            raise DamagedFileError("the file is cut off")
        magic, offset, length, digest = _PREAMBLE.unpack(start)
        size = os.fstat(file.fileno()).st_size
        if magic != MAGIC or length > _MAX_HEADER_BYTES or offset + length != size:
            raise DamagedFileError("it is no file of this kind, or is cut off")
        file.seek(offset)
        text = file.read(length)
    if hashlib.sha256(text).digest() != digest:
        raise DamagedFileError("its header is not what was written")
    header = json.loads(text)
    return PackedFile(
        path,
        header["key"],
        header["image_bytes"],
        tuple(
            Part(
                one["name"],
                one["meta"],
                tuple(Place(**{**p, "shape": tuple(p["shape"])}) for p in one["places"]),
            )
            for one in header["parts"]
        ),
        tuple((offset, length, digest) for offset, length, digest in header["blocks"]),
    )


def write_packed(
    path: Path,
    key: str,
    content: Mapping[str, tuple[Mapping[str, Any], list[torch.Tensor]]],
    advance: Callable[[int, int], None],
) -> None:
    """Write parts by their names: what each is, and its tensors. ``advance(count, total)``.

    Raises:
        OSError: it cannot be written, or another process is writing it.
    """
    parts, flat, end = list[Part](), list[tuple[Place, torch.Tensor]](), 0
    for name, (meta, tensors) in content.items():
        places = []
        for tensor in tensors:
            kind = str(tensor.dtype).removeprefix("torch.")
            places.append(Place(kind, tuple(tensor.shape), end, tensor.nbytes))
            flat.append((places[-1], tensor.contiguous().view(-1).view(torch.uint8)))
            end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        parts.append(Part(name, meta, tuple(places)))
    jobs = [
        (place.offset + start, length, data[start : start + length])
        for place, data in flat
        for start, length in pieces(place.num_bytes)
    ]
    device = flat[0][1].device
    total = sum(length for _, length, _ in jobs)
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # the threads copy on streams of their own
    with _exclusively(path) as descriptor:
        os.posix_fallocate(descriptor, 0, _IMAGE_START + end)

        def store(buffer: Buffer, job: tuple[int, int, torch.Tensor]) -> tuple[int, int, str]:
            offset, length, data = job
            view = buffer.view[:length]
            buffer.copy(buffer.tensor[:length], data)
            write_all(descriptor, view, _IMAGE_START + offset)
            return offset, length, hashlib.sha256(view).hexdigest()

        blocks = for_each(jobs, store, device, lambda job: advance(job[1], total))
        header = {
            "key": key,
            "image_bytes": end,
            "parts": [asdict(part) for part in parts],
            "blocks": blocks,
        }
        text = json.dumps(header).encode("ascii")
        write_all(descriptor, memoryview(text), _IMAGE_START + end)
        preamble = _PREAMBLE.pack(
            MAGIC, _IMAGE_START + end, len(text), hashlib.sha256(text).digest()
        )
        write_all(descriptor, memoryview(preamble), 0)


@contextlib.contextmanager
def _exclusively(path: Path) -> Iterator[int]:
    """A new file that takes the name ``path`` at the end, or leaves nothing behind.

    Its name until then is always the same and locked while it is in use, so what a killed process
    has left is taken over and never adds up.
    """
    part = path.with_name(f"{path.name}.part")
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever held it may have finished and renamed it since: then this is the finished file.
        if not os.path.samestat(os.fstat(descriptor), os.stat(part)):
            raise OSError(f"{part} was finished by another process")
        try:
            os.ftruncate(descriptor, 0)
            yield descriptor
            # No fsync: blocks that a crash loses are found by their hashes.
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    finally:
        os.close(descriptor)


def _tensor(image: torch.Tensor, place: Place) -> torch.Tensor:
    raw = image[place.offset : place.offset + place.num_bytes]
    return raw.view(getattr(torch, place.dtype)).view(place.shape)
