"""Sends requests to a port of loopback and notes when each line of the answer came.

    python bench/http_client.py PORT

Each line of stdin is a request, an object with method, path and body; each line of stdout its
answer: status, seconds from its sending to its end, and lines as [seconds, text], blank ones left
out. One connection serves all.
"""

import http.client
import json
import sys
import time


def main() -> int:
    """Answer until stdin ends."""
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=600)
    for line in sys.stdin:
        asked = json.loads(line)
        body = None if asked["body"] is None else json.dumps(asked["body"]).encode()
        headers = {"Content-Type": "application/json"}
        begun = time.perf_counter()
        connection.request(asked["method"], asked["path"], body, headers)
        response = connection.getresponse()
        lines = []
        while got := response.readline():
            lines.append((time.perf_counter() - begun, got))
        response.read()  # nothing is left, but this closes it
        seconds = time.perf_counter() - begun
        texts = [[when, text.decode().rstrip("\n")] for when, text in lines if text.strip()]
        print(json.dumps({"status": response.status, "seconds": seconds, "lines": texts}))
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
