"""A server that behaves as other engines do, on a thread; and as they do when something is wrong.

Run as a program it is a rival to start: ``python fake_rival.py --port N``.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VOCAB = 1000


class FakeRival:
    """What to answer; tests change the fields."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.tokens_per_piece = 1
        self.thinking = 0
        self.usage = True
        self.continuous = False
        self.cached = 0
        self.timings: dict[str, Any] | None = None
        self.status = 200
        self.break_off = False
        self.error_event = False
        self.empty = False
        self.counters: Callable[[int], str] | None = None  # of the number of requests
        self.scores: Any = None
        self.extra_prompt_tokens = 0
        self.delay_s = 0.0

    def prompt_tokens(self, body: dict[str, Any]) -> int:
        if "messages" in body:
            return sum(len(message["content"].split()) for message in body["messages"])
        prompt = body["prompt"]
        count = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
        return count + self.extra_prompt_tokens

    def events(self, body: dict[str, Any]) -> Iterator[dict[str, Any] | str]:
        """The stream of one reply: thinking first, then text, several tokens in a piece."""
        chat = "messages" in body
        total = body["max_tokens"]
        sent = 0
        if chat:  # the role alone is no token
            yield {"choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]}
        while sent < total and not self.empty:
            count = min(self.tokens_per_piece, total - sent)
            text = "x" * count
            field = "reasoning_content" if sent < self.thinking else "content"
            sent += count
            choice = {"delta": {field: text}} if chat else {"text": text}
            event: dict[str, Any] = {"choices": [{**choice, "finish_reason": None}]}
            if self.continuous:
                event["usage"] = self._usage(body, sent)
            yield event
            if self.error_event:
                yield {"error": {"message": "out of memory", "code": 500}}
            if self.break_off:
                return
        last = {"delta": {}} if chat else {"text": ""}
        final: dict[str, Any] = {"choices": [{**last, "finish_reason": "length"}]}
        if self.timings is not None:
            final["timings"] = self.timings
        yield final
        if self.usage:
            yield {"choices": [], "usage": self._usage(body, sent)}
        yield "[DONE]"

    def _usage(self, body: dict[str, Any], sent: int) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens(body),
            "completion_tokens": sent,
        }
        if self.cached:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached}
        return usage


def _handler(rival: FakeRival) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/health":
                self._send(b"")
            elif self.path == "/version":
                self._send(b'{"version": "1.2.3"}')
            elif self.path == "/metrics" and rival.counters is not None:
                self._send(rival.counters(len(rival.requests)).encode())
            else:
                self.send_error(404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            rival.requests.append({"path": self.path, **body})
            if rival.status != 200:
                self._send(b'{"error": "no such\nmodel"}', rival.status)
            elif body.get("stream"):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                for event in rival.events(body):
                    text = event if isinstance(event, str) else json.dumps(event)
                    self.wfile.write(f"data: {text}\n\n: keep-alive\n\n".encode())
                    self.wfile.flush()
                    time.sleep(rival.delay_s)
            else:
                self._send(json.dumps(rival.scores).encode())

        def _send(self, body: bytes, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


@contextmanager
def serving(rival: FakeRival) -> Iterator[str]:
    """The address of the server while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(rival))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--die", action="store_true")
    options, _ = parser.parse_known_args()
    if options.die:
        print("cannot allocate", file=sys.stderr)
        sys.exit(3)
    ThreadingHTTPServer(("127.0.0.1", options.port), _handler(FakeRival())).serve_forever()


if __name__ == "__main__":
    main()
