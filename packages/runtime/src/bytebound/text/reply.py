"""A model's reply, split into reasoning, text and tool calls by its token ids.

A tag counts where the model wrote its control token; the same characters made of other tokens are
text. Where the tags stand in the text is known because the characters of each id are counted.

- A thought is open from the start if the prompt leaves one open, or where ``<think>`` comes before
  anything else; it ends at ``</think>``, or where a tool call begins. White space around it goes.
- A tool call is what stands behind ``<tool_call>``, if the request offered tools and the text
  behind it names a function. White space before and behind it goes.
- A tag that means nothing where it stands is text, and so is a call that names no function.
- ``stop`` strings end the answer's text, but for those that are complete before the reply has
  ``min_tokens`` ids. They are not looked for in thoughts and in calls.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bytebound.text import thinking, tool_calls
from bytebound.text.detokenizer import Detokenizer
from bytebound.text.pieces import (
    Piece,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from bytebound.text.stop_strings import StopStrings
from bytebound.text.tokenizer import Tokenizer

__all__ = [
    "Piece",
    "ReasoningDelta",
    "ReplySplitter",
    "TextDelta",
    "ToolCallArguments",
    "ToolCallEnd",
    "ToolCallStart",
]


class _Tag(NamedTuple):
    """A control token in the reply's text."""

    name: str
    start: int
    text: str  # empty where the tokenizer gives such tokens no text


class ReplySplitter:
    """Splits one reply.

    ``prompt_ids`` is the rendered prompt, ``tools`` maps the name of each function that the request
    offers to the JSON schema of its arguments, ``call_id`` names a call by its place in the reply.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        call_id: Callable[[int], str] = tool_calls.new_call_id,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
    ) -> None:
        tags = [thinking.OPEN, thinking.CLOSE]
        tags += [tool_calls.OPEN, tool_calls.CLOSE] if tools else []
        ids = {tag: thinking.control_id(tokenizer, tag) for tag in tags}
        self._tag_of = {token_id: tag for tag, token_id in ids.items() if token_id is not None}
        self._detokenizer = Detokenizer(tokenizer)
        self._seen = 0  # characters of the ids so far
        self._passed = 0  # characters of the text so far that were dealt with
        self._held = ""  # text behind them
        self._tags: deque[_Tag] = deque()

        self.thinking = thinking.begins_thinking(tokenizer, prompt_ids)
        """Whether the reply is inside a thought."""
        self._thought = _Trimmed(at_start=True)
        self._text = _Trimmed(at_start=False)
        self._said = False  # whether there was text or a call
        self._tools = tools or {}
        self._call_id = call_id
        self._call: tool_calls.ToolCallReader | None = None
        self._calls = 0
        self._stops = StopStrings(stop)
        self._missing = min_tokens  # ids until a stop string counts
        self.surplus = 0
        """Ids of the last ``push`` behind the one that completed a stop string."""

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended the text, or None. Nothing comes after it: end the request."""
        return self._stops.matched

    def push(self, token_ids: Sequence[int], text_delta: str) -> list[Piece]:
        """Take what one step of the engine added.

        The text may lag behind the ids, and end before them.

        Raises:
            ValueError: ``text_delta`` is not the text of the ids.
        """
        self.surplus = 0
        pieces: list[Piece] = []
        for count, token_id in enumerate(token_ids, start=1):
            self._missing -= 1
            self._take_id(token_id)
            # Each id's text by itself shows which one completes a stop string.
            due = max(0, self._seen - self._passed - len(self._held))
            self._held, text_delta = self._held + text_delta[:due], text_delta[due:]
            self._advance(pieces)
            if self.matched_stop is not None:
                self.surplus = len(token_ids) - count
                break
        self._held += text_delta
        self._advance(pieces)
        return _joined(pieces)

    def _take_id(self, token_id: int) -> None:
        text = self._detokenizer.push([token_id])
        self._seen += len(text)
        tag = self._tag_of.get(token_id)
        if tag is not None and text.endswith(tag):
            self._tags.append(_Tag(tag, self._seen - len(tag), tag))
        elif tag is not None and not text:
            self._tags.append(_Tag(tag, self._seen, ""))

    def _advance(self, pieces: list[Piece]) -> None:
        """Deal with the text that is there, up to a tag whose text is not."""
        while self._tags:
            first = self._tags[0]
            self._feed(pieces, first.start - self._passed)
            if self._passed < first.start or len(self._held) < len(first.text):
                return
            if not self._held.startswith(first.text):
                raise ValueError(f"expected {first.text} in the text, got {self._held[:20]!r}")
            self._tags.popleft()
            self._held = self._held[len(first.text) :]
            self._passed += len(first.text)
            self._take_tag(pieces, first.name)
        self._feed(pieces, len(self._held))

    def finish(self, reason: str) -> list[Piece]:
        """The reply is over; ``reason`` is the engine's finish reason.

        An open call ends here. It is complete if the reply ended right behind a closed value and
        was not cut ("length"); else ``ToolCallEnd.complete`` is False and its arguments do not
        parse.
        """
        pieces: list[Piece] = []
        self._feed(pieces, len(self._held))  # a tag of which a stop string left the beginning
        if self._call is not None:
            self._close_call(pieces, by_tag=False, cut=reason == "length")
        self._say(pieces, self._text.flush())
        self._flush_stops(pieces)
        return _joined(pieces)

    def _feed(self, pieces: list[Piece], count: int) -> None:
        """Deal with the next ``count`` characters, or as many as are there."""
        text, self._held = self._held[:count], self._held[count:]
        self._passed += len(text)
        self._take_text(pieces, text)

    def _take_text(self, pieces: list[Piece], text: str) -> None:
        if not text or self.matched_stop is not None:
            return
        if self._call is not None:
            self._take_from_call(pieces, self._call, self._call.push(text))
        elif self.thinking:
            thought = self._thought.push(text)
            if thought:
                pieces.append(ReasoningDelta(thought))
        else:
            self._say(pieces, self._text.push(text))
            # White space may be a stop string, which the id that completes it ends.
            if self._stops.would_end(self._text.held) and (self._said or self._missing > 0):
                self._say(pieces, self._text.flush())

    def _take_tag(self, pieces: list[Piece], tag: str) -> None:
        call = self._call
        if self.matched_stop is not None:
            return
        if call is not None and tag == tool_calls.CLOSE:
            self._close_call(pieces, by_tag=True)
        elif call is not None and tag == tool_calls.OPEN and not call.in_value:
            self._close_call(pieces, by_tag=False)
            self._take_tag(pieces, tag)
        elif call is not None:
            self._take_text(pieces, tag)
        elif tag == tool_calls.OPEN:
            self._call = tool_calls.ToolCallReader(self._tools, self._calls, self._call_id)
        elif tag == thinking.CLOSE and (self.thinking or not self._said):
            self._leave_thought()
        elif tag == thinking.OPEN and self.thinking and not self._thought.begun:
            pass  # the prompt has opened the thought already
        elif tag == thinking.OPEN and not self.thinking and not self._said:
            self.thinking = True
            self._text.drop()
        else:
            self._take_text(pieces, tag)

    def _leave_thought(self) -> None:
        self.thinking = False
        self._thought.drop()
        self._text.drop()

    def _take_from_call(
        self, pieces: list[Piece], call: tool_calls.ToolCallReader, found: list[Piece]
    ) -> None:
        """Add what a call gave; if it turned out to be none, go on as if there were no tag."""
        if found and isinstance(found[0], ToolCallStart):
            self._flush_stops(pieces)
            self._leave_thought()
            self._said = True
        pieces += found
        if call.failed:
            self._call = None
            self._take_text(pieces, tool_calls.OPEN + call.raw)

    def _close_call(self, pieces: list[Piece], *, by_tag: bool, cut: bool = False) -> None:
        call = self._call
        if call is None:
            raise RuntimeError("no call is open")
        self._take_from_call(pieces, call, call.close(by_tag=by_tag, cut=cut))
        self._call = None
        self._calls = call.next_index
        if call.failed and by_tag:
            self._take_text(pieces, tool_calls.CLOSE)

    def _say(self, pieces: list[Piece], text: str) -> None:
        if text:
            self._said = self._said or not text.isspace()
            shown, _ = self._stops.push(text, active=self._missing <= 0)
            if shown:
                pieces.append(TextDelta(shown))

    def _flush_stops(self, pieces: list[Piece]) -> None:
        """Nothing that is held back can become a stop string any more."""
        held = self._stops.flush()
        if held:
            pieces.append(TextDelta(held))


class _Trimmed:
    """Text without the white space at its end, and from a tag on without that at its start."""

    def __init__(self, *, at_start: bool) -> None:
        self.begun = False
        self._at_start = at_start
        self._held = ""

    @property
    def held(self) -> str:
        """White space that is text unless a tag comes."""
        return self._held

    def push(self, text: str) -> str:
        """Take more; return what is text whatever comes next."""
        text = self._held + text
        if self._at_start:
            text = text.lstrip()
        shown = text.rstrip()
        self._held = text[len(shown) :]
        if shown:
            self.begun, self._at_start = True, False
        return shown

    def drop(self) -> None:
        """A tag came: the white space around it is no text."""
        self._held, self._at_start = "", True

    def flush(self) -> str:
        """Return the white space at the end: no tag comes any more."""
        held, self._held = self._held, ""
        return held


def _joined(pieces: list[Piece]) -> list[Piece]:
    """The same pieces, each run of deltas of one kind made one."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if isinstance(piece, TextDelta) and isinstance(last, TextDelta):
            joined[-1] = TextDelta(last.text + piece.text)
        elif isinstance(piece, ReasoningDelta) and isinstance(last, ReasoningDelta):
            joined[-1] = ReasoningDelta(last.text + piece.text)
        elif (
            isinstance(piece, ToolCallArguments)
            and isinstance(last, ToolCallArguments)
            and piece.index == last.index
        ):
            joined[-1] = ToolCallArguments(last.index, last.json_delta + piece.json_delta)
        else:
            joined.append(piece)
    return joined
