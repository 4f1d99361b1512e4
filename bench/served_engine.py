"""An engine behind the server, on a free port of loopback, for the benchmarks of the server."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from bytebound import Engine
from bytebound.server.app import build_app
from bytebound.server.settings import ServerSettings

MODEL = "bench"
WARM_UP_S = 1800.0
CLIENT = Path(__file__).with_name("http_client.py")


@contextmanager
def served(engine: Engine, **settings: Any) -> Iterator["Client"]:
    """Serve ``engine``, once it is warm, to one client in a process of its own."""
    app = build_app(engine, ServerSettings(model_name=MODEL, **settings))
    config = uvicorn.Config(
        app,
        port=0,
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_keep_alive=600,  # the client's one connection waits for the engine's own runs
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the server did not start")
            time.sleep(0.01)
        client = Client(server.servers[0].sockets[0].getsockname()[1])
        try:
            client.wait_ready()
            yield client
        finally:
            client.close()
    finally:
        server.should_exit = True
        thread.join(20)


class Client:
    """Asks the server from another process, so that reading an answer costs the server nothing."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(CLIENT), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """One request: ``status``, ``seconds`` in all, and ``lines``, each as [seconds, text]."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the client has no pipes")
        request = {"method": method, "path": path, "body": body}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def post(self, path: str, body: Any) -> dict[str, Any]:
        """The same, of a request that must work."""
        found = self.ask("POST", path, body)
        if found["status"] != 200:
            raise RuntimeError(f"{path}: {found['status']}: {found['lines']}")
        return found

    def wait_ready(self) -> None:
        """Return once the engine is warm."""
        end = time.monotonic() + WARM_UP_S
        while (found := self.ask("GET", "/health"))["status"] != 200:
            state = json.loads(found["lines"][0][1])
            if state["status"] == "failed" or time.monotonic() > end:
                raise RuntimeError(f"the server does not become ready: {state}")
            time.sleep(0.1)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
