"""Server-sent events: their form, signs of life before the first one, and errors in mid-stream."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any, TypeVar

from bytebound.server.errors import RequestFailure, failure_of
from bytebound.server.worker import log_bug

T = TypeVar("T")

SIGN_OF_LIFE_S = 5.0

# What many clients' readers of lines take for the end of one, and JSON does not escape.
_LINE_ENDS = str.maketrans({end: f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"})


def dumps(value: Any) -> str:
    """JSON in one line; halves of surrogate pairs, which UTF-8 cannot hold, are escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if text.isascii():
        return text
    text = text.translate(_LINE_ENDS)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text


def data_event(value: Any) -> str:
    """An event without a name, as OpenAI's clients read them."""
    return f"data: {dumps(value)}\n\n"


def named_event(value: dict[str, Any]) -> str:
    """An event that bears the name of its type, as Anthropic's clients read them."""
    return f"event: {value['type']}\ndata: {dumps(value)}\n\n"


async def with_signs_of_life(
    updates: AsyncGenerator[T, None], note: Callable[[], str]
) -> AsyncGenerator[T | str, None]:
    """The same updates; until the first one a comment every few seconds, which clients skip.

    ``note`` says what to write there, such as the place in the queue.
    """
    first = asyncio.ensure_future(anext(updates))
    try:
        while not (await asyncio.wait({first}, timeout=SIGN_OF_LIFE_S))[0]:
            yield f": {note()}\n\n"
        with suppress(StopAsyncIteration):
            yield first.result()
            async for update in updates:
                yield update
    finally:
        if not first.done():
            first.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await first
        await updates.aclose()


async def with_errors(
    events: AsyncGenerator[str, None],
    render: Callable[[RequestFailure], str],
    on_failure: Callable[[RequestFailure], None],
) -> AsyncGenerator[str, None]:
    """The same events; what goes wrong becomes the last one, as ``render`` writes it."""
    try:
        async for event in events:
            yield event
    except Exception as error:
        failure = failure_of(error)
        if failure.status == 500:
            log_bug(error)
        on_failure(failure)
        yield render(failure)
    finally:
        await events.aclose()
