"""The server as a process: what it listens with, and how it ends.

The first Ctrl-C or SIGTERM lets the requests that are there end. Those that have not after the time
allowed, or when a second signal comes, are cut: each of them fails as its protocol has it, so that
no client takes half a reply for a whole one.
"""

import asyncio
import logging
import socket
from types import FrameType

import uvicorn

from bytebound.engine import Engine
from bytebound.server.app import app_of
from bytebound.server.http_protocol import HttpProtocol
from bytebound.server.service import Service
from bytebound.server.settings import ServerSettings

log = logging.getLogger("bytebound.server")

KEEP_ALIVE_S = 75
"""Seconds that a connection may be idle: more than clients keep theirs, or one would send a request
while the server closes."""
LAST_WORDS_S = 1.0
"""Seconds in which a client must have taken the end of a reply that was cut."""
HURRIED_PASS_S = 0.5
"""Seconds that a second signal leaves the engine to end its pass."""


class ServerProcess(uvicorn.Server):
    """Serves one engine until a signal comes."""

    def __init__(
        self,
        engine: Engine,
        settings: ServerSettings,
        *,
        shutdown_timeout_s: float,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.service = Service(engine, settings)
        config = uvicorn.Config(
            app_of(self.service),
            host=host,  # unused where ``run`` gets a socket
            port=port,
            http=HttpProtocol,
            log_config=None,
            log_level="error",  # anybody could fill the log with requests that are none
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            lifespan="on",
            ws="none",
        )
        super().__init__(config)
        self._shutdown_timeout_s = shutdown_timeout_s
        self._hurried = asyncio.Event()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note a signal; the one after the first allows no more time."""
        hurried = self.should_exit
        super().handle_exit(sig, frame)
        self.force_exit = False  # would leave the application without its end
        if hurried:
            self._hurried.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections; return when those that are there have ended."""
        ending = asyncio.ensure_future(self._end_requests())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_requests(self) -> None:
        """Once the time is over, cut the requests, and then the connections that still stand."""
        try:
            async with asyncio.timeout(self._shutdown_timeout_s):
                await self._hurried.wait()
            why = "stopped at once"
            self.service.last_pass_s = HURRIED_PASS_S
        except TimeoutError:
            why = f"the {self._shutdown_timeout_s:g} s of --shutdown-timeout are over"
        cut = self.service.worker.end_requests()
        log.warning("%s: %d request%s cut", why, cut, " was" if cut == 1 else "s were")
        await asyncio.sleep(LAST_WORDS_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in list(self.server_state.tasks):
            task.cancel()
