"""What a request can fail with, as HTTP knows it: a status, and an envelope in each protocol."""

import re
from collections.abc import Mapping
from typing import Any

from bytebound.errors import (
    ByteboundError,
    ContextOverflowError,
    InvalidRequestError,
    NonFiniteLogitsError,
    OutOfMemoryError,
    StepTimeoutError,
    TokenizerMissingError,
)

_FIELD = re.compile(r"([a-z_]+)(?:[.\[][\w.\[\]]*)?(?::|=)")

# Anthropic's names of its errors; OpenAI has one for each side.
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class RequestFailure(Exception):
    """A request that ends with a status; ``code`` is for programs, ``param`` names the field."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def openai(self) -> dict[str, Any]:
        """The envelope of OpenAI's API."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        if self.status == 429:
            kind = "rate_limit_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def anthropic(self) -> dict[str, Any]:
        """The envelope of Anthropic's API."""
        kind = _ANTHROPIC_TYPES.get(self.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}


class ClientGoneError(Exception):
    """The client closed the connection: nobody waits for an answer."""


def bad_request(message: str, param: str | None = None, code: str | None = None) -> RequestFailure:
    """400: what the client can change."""
    return RequestFailure(400, message, param=param, code=code)


def queue_full(waiting: int, retry_after_s: int) -> RequestFailure:
    """429: the queue has no place left."""
    return RequestFailure(
        429,
        f"the queue is full: {waiting} requests wait; try again in {retry_after_s} s",
        code="queue_full",
        headers={"Retry-After": str(retry_after_s)},
    )


def timed_out(seconds: float) -> RequestFailure:
    """504: the request took longer than the server allows."""
    return RequestFailure(
        504,
        f"the request did not end within {seconds:g} s, waiting included; ask for fewer tokens, "
        "or start the server with a longer --request-timeout",
        code="request_timeout",
    )


def unavailable(reason: str) -> RequestFailure:
    """503: this server answers nothing now."""
    return RequestFailure(503, reason, code="unavailable")


def failure_of(error: BaseException) -> RequestFailure:
    """The failure that an exception of the engine, or a bug, is to a client.

    Of an exception that is no ByteboundError nothing is told: it may hold anything.
    """
    if isinstance(error, RequestFailure):
        return error
    if isinstance(error, ContextOverflowError):
        return bad_request(str(error), code="context_length_exceeded")
    if isinstance(error, (InvalidRequestError, TokenizerMissingError)):
        # Such a message begins with the field that it is about, as in "messages[2].role: ...".
        field = _FIELD.match(str(error))
        return bad_request(str(error), param=None if field is None else field[1])
    if isinstance(error, StepTimeoutError):
        return unavailable(str(error))
    if isinstance(error, OutOfMemoryError):
        return RequestFailure(503, str(error), code="out_of_memory")
    if isinstance(error, NonFiniteLogitsError):
        return RequestFailure(500, str(error), code="non_finite_logits")
    if isinstance(error, ByteboundError):
        return RequestFailure(500, str(error))
    return RequestFailure(500, "internal error; the server's log names its kind and place")
