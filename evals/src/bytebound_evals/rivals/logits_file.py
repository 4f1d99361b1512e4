"""Reads the file that ``llama-perplexity --kl-divergence-base FILE`` writes.

Little-endian: the bytes ``_logits_``; int32 context length ``n``, vocabulary ``V`` and chunks; the
int32 ids of all chunks; then for every chunk one row for each of the positions ``n // 2`` to
``n - 2``, which predict the ids after them. A row is two float32, scale and lowest log-probability,
and ``V`` uint16 ``q`` (padded to an even count): log p = lowest + scale * q.

Such rows are rounded to 16 bits, and what was far below the top is raised to the lowest value. So
they serve to judge that engine's own perplexity and top choice, and are no reference for a small KL
divergence.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bytebound_evals.errors import DataError

MAGIC = b"_logits_"
_HEADER = struct.Struct("<3i")
_ROW_HEADER = 4  # uint16 that two float32 take


@dataclass(frozen=True, slots=True)
class LogitsFile:
    """The header and ids of one file; rows are read one by one."""

    path: Path
    context: int
    vocab_size: int
    tokens: npt.NDArray[np.int32]
    """Ids, [chunks, context]."""

    @property
    def first(self) -> int:
        """The first position of a chunk that has a row."""
        return self.context // 2

    @property
    def rows_per_chunk(self) -> int:
        """Rows of one chunk; the last position predicts nothing that is known."""
        return self.context - 1 - self.first

    def rows(self) -> Iterator[tuple[int, int, npt.NDArray[np.float32]]]:
        """Chunk, position and log-probabilities [V] in float32, in the order of the file."""
        width = _width(self.vocab_size)
        with self.path.open("rb") as file:
            file.seek(len(MAGIC) + _HEADER.size + self.tokens.nbytes)
            for chunk in range(len(self.tokens)):
                for position in range(self.first, self.first + self.rows_per_chunk):
                    raw = np.frombuffer(file.read(2 * width), dtype="<u2")
                    scale, lowest = raw[:_ROW_HEADER].view("<f4")
                    values = raw[_ROW_HEADER : _ROW_HEADER + self.vocab_size]
                    yield chunk, position, lowest + scale * values.astype(np.float32)

    def target_logprobs(self) -> Iterator[float]:
        """Log-probability of the id after each row, in the order of the file."""
        for chunk, position, row in self.rows():
            yield float(row[self.tokens[chunk, position + 1]])


def open_logits_file(path: Path) -> LogitsFile:
    """Check header and size; nothing else is read.

    Raises:
        DataError: it is no such file, or is cut short (its writer does not notice a full disk).
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
            header = file.read(_HEADER.size)
            if magic != MAGIC or len(header) < _HEADER.size:
                raise DataError(f"{path}: expected a file of llama-perplexity, got {magic!r}")
            context, vocab_size, chunks = _HEADER.unpack(header)
            if context < 2 or vocab_size < 1 or chunks < 1:
                raise DataError(
                    f"{path}: context {context}, vocabulary {vocab_size}, chunks {chunks}"
                )
            _check_size(path, size, context, vocab_size, chunks)
            tokens = np.frombuffer(file.read(4 * context * chunks), dtype="<i4")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise DataError(f"{path}: an id is outside the vocabulary of {vocab_size}")
    return LogitsFile(path, context, vocab_size, tokens.reshape(chunks, context))


def _check_size(path: Path, size: int, context: int, vocab_size: int, chunks: int) -> None:
    rows = chunks * (context - 1 - context // 2)
    header = len(MAGIC) + _HEADER.size + 4 * context * chunks
    expected = header + 2 * rows * _width(vocab_size)
    if size != expected:
        raise DataError(f"{path}: {size} bytes, expected {expected}: it is cut short or damaged")


def _width(vocab_size: int) -> int:
    """uint16 of one row."""
    return 2 * ((vocab_size + 1) // 2) + _ROW_HEADER
