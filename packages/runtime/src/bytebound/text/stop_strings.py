"""Stop strings over a stream of text pieces: what may be shown now, and whether the text has ended.

Generation ends as soon as any stop string is complete, wherever the pieces were cut; of several
that complete at the same character the longest counts. Knows nothing of tokens.
"""

from collections.abc import Sequence


class StopStrings:
    """Watches one completion. Holds back only the longest ending that could begin a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise ValueError("a stop string is empty; an empty string would match everywhere")
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._matched

    def push(self, delta: str, *, active: bool = True) -> tuple[str, str | None]:
        """Take the next piece; return the text that is safe to show and the matched stop string.

        A stop string that is completed in a piece that is not ``active`` is text, but one may begin
        there. After a match everything further is dropped.
        """
        if self._matched is not None or not self._stops:
            return ("" if self._matched is not None else delta), self._matched
        text = self._held + delta
        found = self._first(text) if active else None
        if found is not None:
            _, start, self._matched = found
            self._held = ""
            return text[:start], self._matched
        cut = len(text) - self._held_length(text)
        self._held = text[cut:]
        return text[:cut], None

    def would_end(self, delta: str) -> bool:
        """Whether a stop string is complete in what is held back and ``delta``."""
        return self._matched is None and self._first(self._held + delta) is not None

    def flush(self) -> str:
        """Return what was still held back: the text is over and no stop string was completed."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str) -> tuple[int, int, str] | None:
        """End, start and stop string of the first that ends behind what is held back."""
        found: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop, max(0, len(self._held) + 1 - len(stop)))
            if start >= 0:
                candidate = (start + len(stop), start, stop)
                found = candidate if found is None else min(found, candidate)
        return found

    def _held_length(self, text: str) -> int:
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            ending = text[-length:]
            if any(stop.startswith(ending) for stop in self._stops):
                return length
        return 0
