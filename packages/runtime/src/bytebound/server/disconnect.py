"""Work that ends when its client goes away, whether the answer is streamed or not."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from bytebound.server.errors import ClientGoneError

T = TypeVar("T")


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` returns; cancel it when the client disconnects.

    The body of the request must have been read. Raises ClientGoneError.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        for each in (task, watch):
            if not each.done():
                each.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await each


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events, sent as they come; ``on_end`` is called however it ends."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[str, None],
        on_end: Callable[[], None],
        headers: dict[str, str],
    ) -> None:
        # The second is nginx's: it would hold events back until they fill a buffer.
        own = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, headers={**own, **headers})
        self._events = events
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, or until the client is gone."""
        try:
            with suppress(ClientGoneError, OSError):
                await until_gone(receive, self.stream_response(send))
        finally:
            # A generator that was never started runs no code of its own when it is closed.
            self._on_end()
            await self._events.aclose()
