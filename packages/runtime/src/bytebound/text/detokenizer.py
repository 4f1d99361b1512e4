"""Token ids to text, piece by piece: the joined pieces equal the decoding of all ids at once.

A character is emitted once it is complete. Each id costs the same however long the text is.
"""

import codecs
from collections.abc import Sequence

from bytebound.text.tokenizer import Tokenizer

# A UTF-8 character has at most four bytes, and a token has at least one.
_LONGEST_CHARACTER = 4
_REPLACEMENT = "\ufffd"


class Detokenizer:
    """Decodes one completion. Special tokens give no text; bytes that are no UTF-8 give U+FFFD."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._window = _Window(tokenizer)

    def push(self, ids: Sequence[int]) -> str:
        """Take the next ids; return the text they complete."""
        if self._tokenizer.byte_level:
            return self._utf8.decode(b"".join(map(self._tokenizer.token_bytes, ids)))
        return "".join(map(self._window.push, ids))

    def flush(self) -> str:
        """Return what an unfinished character leaves: the ids are over."""
        if self._tokenizer.byte_level:
            return self._utf8.decode(b"", final=True)
        return self._window.flush()


class _Window:
    """For vocabularies whose tokens are not bytes: decode the last ids with and without the newest.

    The ids of the last emitted piece stay as context, because such decoders drop a leading space.
    Exact wherever decoding more ids does not rewrite earlier text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        if token_id in self._tokenizer.special_ids:
            return ""
        self._pending.append(token_id)
        text = self._delta()
        unfinished = not text or text.endswith(_REPLACEMENT)
        if unfinished and len(self._pending) < _LONGEST_CHARACTER:
            return ""
        return self._take(text)

    def flush(self) -> str:
        return self._take(self._delta())

    def _delta(self) -> str:
        before = self._tokenizer.decode(self._context)
        return self._tokenizer.decode(self._context + self._pending)[len(before) :]

    def _take(self, text: str) -> str:
        # Ids that gave no text are no context: a leading space would be dropped after them.
        if text:
            self._context = self._pending
        else:
            self._context = self._context + self._pending
        self._pending = []
        return text
