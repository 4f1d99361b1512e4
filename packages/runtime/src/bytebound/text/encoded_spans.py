"""Spans of text and their ids, kept: the next turn of a conversation has most of them again."""

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence

SHORTEST = 256
"""Characters of a span that is worth keeping."""
MOST_CHARACTERS = 8_000_000


class EncodedSpans:
    """What ``encode`` gave for the spans used last, up to ``most_characters`` of them together.

    Several threads may ask at once.
    """

    def __init__(
        self, encode: Callable[[str], Sequence[int]], most_characters: int = MOST_CHARACTERS
    ) -> None:
        self._encode = encode
        self._most = most_characters
        self._kept: OrderedDict[str, array[int]] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    def __call__(self, span: str) -> Sequence[int]:
        """The ids of ``span``."""
        if not SHORTEST <= len(span) <= self._most:
            return self._encode(span)
        with self._lock:
            known = self._kept.get(span)
            if known is not None:
                self._kept.move_to_end(span)
                return known
        ids = array("i", self._encode(span))  # a list holds an object for each id
        with self._lock:
            if span not in self._kept:
                self._kept[span] = ids
                self._characters += len(span)
            while self._characters > self._most:
                oldest, _ = self._kept.popitem(last=False)
                self._characters -= len(oldest)
        return ids
