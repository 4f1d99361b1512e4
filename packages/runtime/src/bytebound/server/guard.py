"""Who may ask and how much: the key, the name of the host, the size of a body.

It stands before the application, so nothing of a refused request is parsed.
"""

import asyncio
import hmac
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bytebound.server.errors import ClientGoneError, RequestFailure
from bytebound.server.settings import ServerSettings, is_loopback
from bytebound.server.worker import log_bug

OPEN_PATHS = ("/health",)


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
        try:
            self._check_host(headers)
            if scope["path"] not in OPEN_PATHS:
                self._check_key(headers)
            body = await self._read(headers, receive)
        except ClientGoneError:
            return
        except RequestFailure as failure:
            response = self._refuse(scope["path"], failure)
            # What is left of the body is not read.
            response.headers["Connection"] = "close"
            await response(scope, receive, send)
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
        name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
        if not is_loopback(name.lower()):
            raise RequestFailure(
                403,
                f"Host {name[:80]!r}: without --api-key only localhost, 127.0.0.1 and ::1 are "
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

    async def _read(self, headers: Headers, receive: Receive) -> bytes:
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced[:20]) > self._max_body:
            raise self._too_large()
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            body += message.get("body", b"")
            if len(body) > self._max_body:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self) -> RequestFailure:
        return RequestFailure(
            413,
            f"the body has more than {self._max_body} bytes, the limit of this server",
            code="request_too_large",
        )


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
