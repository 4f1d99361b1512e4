"""HTTP to a server on this machine: a JSON request, a JSON answer or a stream of events.

Knows nothing of what is asked. Whatever goes wrong is a RivalError that names the address and
quotes the beginning of what the server said.
"""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from bytebound.cli.errors import UsageError

from bytebound_evals.errors import RivalError

QUOTED = 300  # characters of an answer that an error quotes
END_OF_STREAM = "[DONE]"


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server listens, e.g. ``http://127.0.0.1:8000``."""

    url: str
    timeout_s: float = 600.0
    headers: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme != "http" or not parts.hostname:
            raise UsageError(f"--url {self.url!r}: expected http://HOST:PORT")

    def get(self, path: str) -> Any:
        """The JSON behind an address; None where the answer has no body."""
        with self._answer("GET", path, None) as answer:
            return self._json(path, answer.read())

    def post(self, path: str, body: Any) -> Any:
        """The JSON answer to a JSON request."""
        with self._answer("POST", path, body) as answer:
            return self._json(path, answer.read())

    def stream(self, path: str, body: Any) -> Iterator[Any]:
        """The events of an answer, each parsed, until the server says that it is done.

        Raises:
            RivalError: the stream ends before that, or an event is an error.
        """
        with self._answer("POST", path, body) as answer:
            for raw in answer:
                line = raw.decode("utf-8", errors="replace").strip()
                if not line.startswith("data:"):
                    continue  # a blank line, a comment, the name of an event
                data = line.removeprefix("data:").strip()
                if data == END_OF_STREAM:
                    return
                event = self._json(path, data.encode())
                if isinstance(event, dict) and event.get("error"):
                    raise RivalError(f"{self.url}{path}: error in the stream: {_quoted(data)}")
                yield event
        raise RivalError(f"{self.url}{path}: the stream ended before {END_OF_STREAM}")

    @contextmanager
    def _answer(self, method: str, path: str, body: Any) -> Iterator[http.client.HTTPResponse]:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port or 80, timeout=self.timeout_s
        )
        headers = {"Content-Type": "application/json", **dict(self.headers)}
        text = None if body is None else json.dumps(body).encode()
        with closing(connection):
            try:
                connection.request(method, parts.path.rstrip("/") + path, text, headers)
                answer = connection.getresponse()
                if answer.status != 200:
                    said = answer.read(4 * QUOTED).decode("utf-8", errors="replace")
                    raise RivalError(
                        f"{self.url}{path}: HTTP {answer.status} {answer.reason}: {_quoted(said)}"
                    )
                yield answer
            except (OSError, http.client.HTTPException) as error:
                said = str(error) or type(error).__name__
                raise RivalError(f"{self.url}{path}: {said}") from error

    def _json(self, path: str, text: bytes) -> Any:
        if not text.strip():
            return None
        try:
            return json.loads(text)
        except ValueError as error:
            said = _quoted(text.decode("utf-8", errors="replace"))
            raise RivalError(f"{self.url}{path}: not JSON: {said}") from error


def _quoted(text: str) -> str:
    short = " ".join(text.split())
    return short if len(short) <= QUOTED else f"{short[:QUOTED]}..."
