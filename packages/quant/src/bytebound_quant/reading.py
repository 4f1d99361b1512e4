"""Reading one calibration source document by document, as token ids, and judging what was read.

Empty documents and repeats of an earlier one are left out and counted. A source of nothing else, of
one text over and over, or with the text on which quality is measured is refused.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from bytebound.errors import ByteboundError
from bytebound.text.tokenizer import Tokenizer

from bytebound_quant.errors import CalibrationError, HeldoutTextError
from bytebound_quant.heldout import NAME as HELDOUT_NAME
from bytebound_quant.heldout import HeldoutDetector
from bytebound_quant.text_sources import CalibrationSource, Document, Order, documents


@dataclass(slots=True)
class Reading:
    """One source on its way to ids, and what was met so far."""

    source: CalibrationSource
    chat_template: bool
    seen: set[bytes] = field(default_factory=set)
    """Hashes of the documents met, by this reading and by earlier ones that share the set."""
    read: int = 0
    empty: int = 0
    repeated: int = 0
    content: Any = field(default_factory=hashlib.sha256)
    _detector: HeldoutDetector = field(default_factory=HeldoutDetector)
    _kinds: set[int] = field(default_factory=set)
    _tokens: int = 0

    def documents(self, tokenizer: Tokenizer, order: Order | None = None) -> Iterator[list[int]]:
        """The ids of each document that is neither empty nor a repeat.

        Raises:
            CalibrationError: the source is damaged, or a text file is one line over and over.
        """
        for document in documents(self.source, chat_template=self.chat_template, order=order):
            self.read += 1
            text = _plain_text(document)
            if not text.strip():
                self.empty += 1
                continue
            key = hashlib.sha256(_canonical(document)).digest()
            if key in self.seen:
                self.repeated += 1
                continue
            if self.source.kind == "text" and _is_one_line_repeated(text):
                raise CalibrationError(
                    f"{self.source.label}: every line of it is the same; give text that varies"
                )
            self.seen.add(key)
            self.content.update(key)
            self._detector.feed(text)
            ids = self._encoded(document, tokenizer)
            self._tokens += len(ids)
            if len(self._kinds) < 3:
                self._kinds.update(ids)
            yield ids

    def check(self) -> None:
        """Judge the whole, once nothing more is read.

        Raises:
            CalibrationError: nothing is left, or it is all the same.
            HeldoutTextError: it holds text on which quality is measured.
        """
        label = self.source.label
        if self._detector.is_copy:
            raise HeldoutTextError(
                f"{label} holds {HELDOUT_NAME}, or a part of it "
                f"({len(self._detector.found)} of its passages); quality is measured on that text, "
                "so nothing is fitted to it. Remove it from the source"
            )
        used = self.read - self.empty - self.repeated
        if used == 0:
            raise CalibrationError(
                f"{label} holds {self.read} documents, {self.empty} of them empty and "
                f"{self.repeated} that repeat an earlier one; nothing is left to use"
            )
        if used == 1 and self.repeated:
            raise CalibrationError(
                f"{label}: of {self.read} documents {self.repeated} repeat an earlier one and one "
                "is left; give text that varies"
            )
        if self._tokens > 1 and len(self._kinds) < 3:
            raise CalibrationError(
                f"{label}: {self._tokens} tokens of only {len(self._kinds)} kinds; give text that "
                "varies"
            )

    def summary(self) -> dict[str, Any]:
        """Counts and content hash, in JSON's types."""
        return {
            "documents": self.read,
            "empty": self.empty,
            "repeated": self.repeated,
            "sha256": self.content.hexdigest(),
        }

    def _encoded(self, document: Document, tokenizer: Tokenizer) -> list[int]:
        try:
            if isinstance(document, str):
                return tokenizer.encode(document)
            return tokenizer.apply_chat_template(document, add_generation_prompt=False)
        except ByteboundError as error:
            raise CalibrationError(f"{self.source.label}, document {self.read}: {error}") from error


def _plain_text(document: Document) -> str:
    if isinstance(document, str):
        return document
    contents = (one.get("content") for one in document)
    return "\n".join(one if isinstance(one, str) else json.dumps(one) for one in contents if one)


def _canonical(document: Document) -> bytes:
    if isinstance(document, str):
        return document.encode("utf-8", "surrogatepass")
    return json.dumps(document, sort_keys=True, default=str).encode()


def _is_one_line_repeated(text: str) -> bool:
    lines = text.split("\n")
    first, *others = islice((line.strip() for line in lines if line.strip()), 2)
    return bool(others) and all(line.strip() in ("", first) for line in lines)
