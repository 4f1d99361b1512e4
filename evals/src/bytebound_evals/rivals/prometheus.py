"""Counters of a server in Prometheus' text form."""

import http.client
import re
from contextlib import closing
from urllib.parse import urlsplit

from bytebound_evals.errors import RivalError
from bytebound_evals.rivals.http import Server
from bytebound_evals.rivals.runner import Drafts

_SAMPLE = re.compile(r"^(?P<name>[\w:]+)(?:\{[^}]*\})?\s+(?P<value>[-+.\dEe]+)", re.M)


def counters(text: str) -> dict[str, float]:
    """Every metric's value, those of several labels added up."""
    found: dict[str, float] = {}
    for sample in _SAMPLE.finditer(text):
        found[sample["name"]] = found.get(sample["name"], 0.0) + float(sample["value"])
    return found


def draft_counters(server: Server, *, steps: str, drafted: str, accepted: str) -> Drafts | None:
    """Three counters of ``/metrics``; None where the server has none of them.

    Raises:
        RivalError: the server does not answer.
    """
    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port or 80, timeout=server.timeout_s
    )
    with closing(connection):
        try:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise RivalError(f"{server.url}/metrics: {error}") from error
    found = counters(text) if answer.status == 200 else {}
    names = (steps, drafted, accepted)
    if any(name not in found for name in names):
        return None
    return Drafts(*(int(found[name]) for name in names))
