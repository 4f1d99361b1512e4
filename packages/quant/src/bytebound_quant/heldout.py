"""Recognising the project's held-out text in calibration text, whole or in part, by hashes only.

The text is not shipped here; ``heldout_hashes.json`` holds hashes of some of its passages and long
lines. Which passages are hashed depends on their own characters, so a copy is found wherever it
lies in another text. Spaces and line ends do not matter. A licence or a verse that both texts quote
is not enough: several hashes must be found.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

import torch

HASH_FILE = "heldout_hashes.json"
NAME = "the held-out text of bytebound-evals (heldout.txt)"
PASSAGE_BYTES = 200
PASSAGE_SHARE = 16  # one word in so many begins a hashed passage
LINE_CHARS = 80
LINE_SHARE = 8  # one long line in so many is hashed
ENOUGH = 4  # distinct hashes that make a copy

_BLANKS = re.compile(r"\s+")
_SPACE = 0x20
_KNUTH = 2654435761  # 2**32 / golden ratio: spreads the first four bytes of a word
_CHUNK = 1 << 22


@dataclass(slots=True)
class HeldoutDetector:
    """Looks at one source, document by document, in the order of the source."""

    found: set[str] = field(default_factory=set)
    """Hashes seen so far."""
    _tail: bytes = b""

    def feed(self, text: str) -> None:
        """Look at the next document; a passage may begin in one and end in the next."""
        known_passages, known_lines = _known()
        self.found |= known_lines & set(line_hashes(text))
        joined = self._tail + _normalised(text) + b" "
        self.found |= known_passages & set(passage_hashes(joined))
        # Its first byte never begins a word of its own: that word was looked at.
        self._tail = joined[-PASSAGE_BYTES:]

    @property
    def is_copy(self) -> bool:
        """Whether the source holds enough of the held-out text."""
        return len(self.found) >= ENOUGH


def passage_hashes(normalised: bytes) -> list[str]:
    """Hashes of the passages of ``PASSAGE_BYTES`` that begin at one word in ``PASSAGE_SHARE``."""
    hashes = []
    for start in range(0, len(normalised), _CHUNK):
        chunk = normalised[start : start + _CHUNK + PASSAGE_BYTES]
        hashes += [
            _hash(chunk[at : at + PASSAGE_BYTES])
            for at in _anchors(chunk)
            if at < _CHUNK and at + PASSAGE_BYTES <= len(chunk)
        ]
    return hashes


def line_hashes(text: str) -> list[str]:
    """Hashes of one in ``LINE_SHARE`` of the lines of at least ``LINE_CHARS`` characters."""
    lines = (" ".join(line.split()) for line in text.split("\n") if len(line) >= LINE_CHARS)
    hashes = (_hash(line.encode("utf-8", "replace")) for line in lines if len(line) >= LINE_CHARS)
    return [one for one in hashes if int(one, 16) % LINE_SHARE == 0]


def _anchors(chunk: bytes) -> list[int]:
    """Offsets of the words whose first four bytes are chosen."""
    if len(chunk) < PASSAGE_BYTES:
        return []
    values = torch.frombuffer(bytearray(chunk), dtype=torch.uint8)
    starts = torch.nonzero(values[:-4] == _SPACE).flatten() + 1
    starts = starts[starts + 4 <= len(chunk)]
    word = sum(values[starts + index].long() << (8 * index) for index in range(4))
    chosen = ((torch.as_tensor(word) * _KNUTH) & 0xFFFFFFFF) >> 16
    anchors: list[int] = starts[chosen % PASSAGE_SHARE == 0].tolist()
    return anchors


def _normalised(text: str) -> bytes:
    return _BLANKS.sub(" ", text).strip().encode("utf-8", "replace")


def _hash(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=6).hexdigest()


@cache
def _known() -> tuple[frozenset[str], frozenset[str]]:
    file = resources.files("bytebound_quant") / "data" / HASH_FILE
    known = json.loads(file.read_text(encoding="utf-8"))
    return frozenset(known["passages"]), frozenset(known["lines"])
