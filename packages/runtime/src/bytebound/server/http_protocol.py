"""HTTP itself: an answer to what is no request, and no endless wait for the head of one."""

import asyncio
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from bytebound.server.errors import RequestFailure
from bytebound.server.sse import dumps

HEAD_S = 20.0
"""Seconds from the start of a connection, or of a request on it, to the end of its head."""
REFUSED_S = 2.0
"""Seconds in which what follows upon a refused head is dropped, so that its sender can read why."""

_REASONS = {
    400: (b"Bad Request", "the request is not HTTP/1.1"),
    431: (b"Request Header Fields Too Large", "the head of the request is too large"),
    501: (b"Not Implemented", "the body has a transfer encoding other than chunked"),
}


class HttpProtocol(H11Protocol):
    """One connection."""

    _head_timer: asyncio.TimerHandle | None = None
    _refused = False

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._forget_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        if not self._refused:
            super().data_received(data)
        if not self._refused:
            self._watch_head()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request; called while the error is handled that says why."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # an answer is under way already
            return
        hint = getattr(sys.exc_info()[1], "error_status_hint", 400)
        status = hint if hint in _REASONS else 400
        reason, message = _REASONS[status]
        body = dumps(RequestFailure(status, message).openai()).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=reason),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self._refused = True
        self.transport.write_eof()
        self._forget_head()
        self._head_timer = self.loop.call_later(REFUSED_S, self.transport.abort)

    def _watch_head(self) -> None:
        """Have a timer run while a head is awaited, and only then."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget_head()
        elif self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(HEAD_S, self.transport.abort)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
