"""Who may ask and how much: the key, the name of the host, the size of a body.

It stands before the application, so nothing of a refused request is parsed.
"""

import asyncio
import hmac
import re
from collections.abc import Callable
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bytebound.server.errors import ClientGoneError, RequestFailure
from bytebound.server.settings import ServerSettings, is_loopback
from bytebound.server.worker import log_bug

OPEN_PATHS = ("/health",)
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::[0-9]*)?")

BODY_S, SLOWEST = 30.0, 65_536
"""A body may take that many seconds, and one more for every so many bytes of it."""
LINGER_S, LINGER_BYTES = 10.0, 2**28
"""What a refused body may still take, unread: many clients read no answer before they have sent
everything, and would find a closed connection in its place."""


class Guard:
    """ASGI middleware; ``refuse`` writes a failure in the protocol of its path."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        refuse: Callable[[str, RequestFailure], Response],
    ) -> None:
        self._app = app
        self._key = None if settings.api_key is None else settings.api_key.encode()
        self._max_body = settings.max_body_bytes
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on with its whole body read, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        incoming = _Incoming(receive)
        try:
            self._check_host(headers)
            if scope["path"] not in OPEN_PATHS:
                self._check_key(headers)
            body = await self._read(headers, incoming)
        except ClientGoneError:
            return
        except RequestFailure as failure:
            response = self._refuse(scope["path"], failure)
            response.headers["Connection"] = "close"
            # A client that waits for "100 Continue" sends no body now.
            waits = headers.get("expect", "").lower() == "100-continue" and not incoming.begun
            await response(scope, receive, send if waits else incoming.lingering(send))
            return
        except asyncio.CancelledError:
            return
        try:
            await self._app(scope, _replayed(body, receive), send)
        except asyncio.CancelledError:
            return  # a shutdown that waits no longer; the server above would log a traceback
        except Exception as error:  # answered by now; the server above would log all of it
            log_bug(error)

    def _check_host(self, headers: Headers) -> None:
        """Without a key, only a name of this machine: a web page can make a browser ask us.

        Such a page gives its own name, even where that resolves to the loopback address.
        """
        if self._key is not None:
            return
        host = headers.get("host", "")
        found = _HOST.fullmatch(host)
        if found is None or not is_loopback((found[1] or found[2]).lower()):
            raise RequestFailure(
                403,
                f"Host {host[:80]!r}: without --api-key only localhost, 127.0.0.1 and ::1 are "
                "answered",
            )

    def _check_key(self, headers: Headers) -> None:
        if self._key is None:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # Takes the same time for any wrong key of the same length.
        if not hmac.compare_digest(given.encode(), self._key):
            raise RequestFailure(
                401,
                "missing or wrong API key; send 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _read(self, headers: Headers, incoming: "_Incoming") -> bytes:
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced[:20]) > self._max_body:
            raise self._too_large()
        body = bytearray()
        clock = asyncio.get_running_loop().time
        latest = clock() + BODY_S
        try:
            async with asyncio.timeout_at(latest) as limit:
                while not incoming.ended:
                    body += await incoming.piece()
                    if len(body) > self._max_body:
                        raise self._too_large()
                    limit.reschedule(latest + len(body) / SLOWEST)
        except TimeoutError:
            raise RequestFailure(
                408,
                f"the body comes too slowly: {len(body)} bytes in "
                f"{clock() - latest + BODY_S:.0f} s; send it again",
                code="body_timeout",
            ) from None
        return bytes(body)

    def _too_large(self) -> RequestFailure:
        return RequestFailure(
            413,
            f"the body has more than {self._max_body} bytes, the limit of this server",
            code="request_too_large",
        )


class _Incoming:
    """The body of one request as it comes."""

    def __init__(self, receive: Receive) -> None:
        self.begun = False
        self.ended = False
        self._receive = receive

    async def piece(self) -> bytes:
        """Return the next piece; raises ClientGoneError."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        self.begun = True
        self.ended = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    def lingering(self, send: Send) -> Send:
        """Send an answer whole, and end it only when the body has, or has had its time."""

        async def send_and_wait(message: Message) -> None:
            if message["type"] != "http.response.body":
                await send(message)
                return
            await send({**message, "more_body": True})
            with suppress(ClientGoneError, TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    dropped = 0
                    while not self.ended and dropped < LINGER_BYTES:
                        dropped += len(await self.piece())
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        return send_and_wait


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Give the body that was read, then whatever else comes: the disconnect."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay
