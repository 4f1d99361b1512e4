"""From documents to windows of token ids, and which of their ids are scored: pure, no model.

A window is what a model reads at once, from an empty state. Windows begin every ``stride`` ids of
their document; no window reaches into another document. An id is scored in the first window that
holds it and has at least one id in front of it there, so no id is scored twice. What stands in
front of the first id is the prefix rule:

- ``none``: nothing. A window's first id is context only. With windows that do not overlap, one id
  in every ``window`` is thus not scored.
- ``document``: the prefix id stands in front of each document, as one more id of it.
- ``window``: the prefix id stands in front of each window and takes one of its places, so every id
  of the text is scored.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bytebound_evals.errors import SettingError, SourceError

PREFIXES = ("none", "document", "window")
DEFAULT_WINDOW = 2048


@dataclass(frozen=True, slots=True)
class WindowRule:
    """How documents are cut; lengths in tokens."""

    window: int = DEFAULT_WINDOW
    """The most ids that a model reads at once, the prefix included."""
    stride: int | None = None
    """From the beginning of one window to that of the next; None: as long as the text in one."""
    prefix: str = "none"
    prefix_id: int | None = None

    def __post_init__(self) -> None:
        if self.prefix not in PREFIXES:
            raise SettingError(f"prefix is {self.prefix!r}, expected one of {', '.join(PREFIXES)}")
        if (self.prefix == "none") != (self.prefix_id is None):
            raise SettingError(
                f"prefix {self.prefix!r} with prefix id {self.prefix_id}: expected an id with "
                "every rule but none"
            )
        if self.window < 2:
            raise SettingError(f"window is {self.window}, expected at least 2 tokens")
        if self.stride is not None and not 1 <= self.stride <= self.capacity:
            raise SettingError(
                f"stride is {self.stride}, expected 1 to {self.capacity}: the windows would skip "
                "tokens"
            )

    @property
    def capacity(self) -> int:
        """Ids of the text in one window."""
        return self.window - (self.prefix == "window")

    @property
    def step(self) -> int:
        """The stride that is used."""
        return self.capacity if self.stride is None else self.stride

    def as_dict(self) -> dict[str, Any]:
        """The rule for reports and keys, in JSON's types."""
        return {
            "window": self.window,
            "stride": self.step,
            "prefix": self.prefix,
            "prefix_id": self.prefix_id,
        }


@dataclass(frozen=True, slots=True)
class Window:
    """Ids that a model reads at once; those from ``first`` on are scored."""

    document: int
    """Number of the document, from 0."""
    ids: tuple[int, ...]
    first: int

    @property
    def targets(self) -> tuple[int, ...]:
        """The ids that are scored."""
        return self.ids[self.first :]

    @property
    def rows(self) -> slice:
        """The rows of the window's logits ``[T, vocab]`` that predict the targets."""
        return slice(self.first - 1, len(self.ids) - 1)


@dataclass(frozen=True, slots=True)
class CutText:
    """All windows of a text."""

    label: str
    rule: WindowRule
    windows: tuple[Window, ...]
    documents: int
    tokens: int
    """Ids of the text, prefixes not counted."""

    @property
    def scored(self) -> int:
        """Ids that are scored."""
        return sum(len(window.targets) for window in self.windows)

    def as_dict(self) -> dict[str, Any]:
        """What was measured on, in JSON's types."""
        return {
            "text": self.label,
            "documents": self.documents,
            "tokens": self.tokens,
            "scored_tokens": self.scored,
            "windows": len(self.windows),
            **self.rule.as_dict(),
        }


def cut_text(
    label: str,
    documents: Iterable[Sequence[int]],
    rule: WindowRule,
    *,
    max_tokens: int | None = None,
) -> CutText:
    """Cut every document; ``max_tokens`` ends the text after that many ids.

    Raises:
        SettingError: ``max_tokens`` is not positive.
        SourceError: there is no document, one of them is empty or has nothing that can be scored,
            or none is long enough for one window.
    """
    if max_tokens is not None and max_tokens < 1:
        raise SettingError(f"max tokens is {max_tokens}, expected at least 1")
    windows: list[Window] = []
    tokens = longest = count = 0
    for number, ids in enumerate(documents):
        whole = len(ids)
        if not whole:
            raise SourceError(
                f"{label}: document {number + 1} is empty; remove it, or join rows that are parts "
                "of one text"
            )
        if max_tokens is not None:
            ids = ids[: max_tokens - tokens]
        found = list(cut_document(number, ids, rule))
        if not found and len(ids) == whole:
            raise SourceError(
                f"{label}: document {number + 1} is a single token, and nothing stands in front "
                "of it; remove it, or use the prefix rule document"
            )
        windows += found
        tokens += len(ids)
        longest = max(longest, len(ids) + (rule.prefix != "none"))
        count += 1
        if tokens == max_tokens:
            break
    if not count:
        raise SourceError(f"{label}: there is no document in it")
    if longest < rule.window:
        raise SourceError(
            f"{label}: the longest document has {longest} tokens, shorter than the window of "
            f"{rule.window}; give more text or a smaller window"
        )
    return CutText(label, rule, tuple(windows), count, tokens)


def cut_document(number: int, ids: Sequence[int], rule: WindowRule) -> Iterator[Window]:
    """The windows of one document that score anything."""
    if rule.prefix == "document" and rule.prefix_id is not None:
        ids = [rule.prefix_id, *ids]
    front = (rule.prefix_id,) if rule.prefix == "window" and rule.prefix_id is not None else ()
    scored = begin = 0
    while scored < len(ids):
        end = min(begin + rule.capacity, len(ids))
        window = (*front, *ids[begin:end])
        first = max(scored - begin + len(front), 1)
        if first < len(window):
            yield Window(number, window, first)
        scored = end
        begin += rule.step
