"""The application: routes, failures in the envelope of their protocol, and what is counted."""

from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

import bytebound
from bytebound.engine import Engine
from bytebound.server.anthropic_bodies import CountBody, MessagesBody
from bytebound.server.anthropic_messages import count_tokens, create_message
from bytebound.server.errors import (
    ClientGoneError,
    RequestFailure,
    bad_request,
    failure_of,
)
from bytebound.server.guard import Guard
from bytebound.server.openai_bodies import ChatBody, CompletionBody
from bytebound.server.openai_chat import complete_chat
from bytebound.server.openai_completions import complete
from bytebound.server.service import Service, json_response
from bytebound.server.settings import ServerSettings
from bytebound.server.worker import log_bug

GONE = 499
_TEXT, _TEXT_OR_NULL = {"type": "string"}, {"type": ["string", "null"]}


def _object(**properties: Any) -> dict[str, Any]:
    """The schema of an object that has all of ``properties``."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _failures(envelope: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    content = {"application/json": {"schema": envelope}}
    return {
        "4XX": {
            "description": "The request is refused; the message names the field.",
            "content": content,
        },
        "5XX": {
            "description": "The request failed, or the server is not ready.",
            "content": content,
        },
    }


FAILURES = _failures(
    _object(
        error=_object(message=_TEXT, type=_TEXT, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL),
    )
)
ANTHROPIC_FAILURES = _failures(
    _object(type={"const": "error"}, error=_object(type=_TEXT, message=_TEXT))
)
ANTHROPIC_PATHS = "/v1/messages"
NOT_HERE = (
    "nothing is served at this path; the base URL of OpenAI's clients ends with /v1, that of "
    "Anthropic's with the port"
)
LONGEST_INPUT = 60
# A reply is one object, or events where the request asks for a stream.
REPLIES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {}, "text/event-stream": {}}}
}


def build_app(engine: Engine, settings: ServerSettings) -> ASGIApp:
    """Return the ASGI application that serves ``engine``; its lifespan owns the engine's thread.

    Raises:
        TokenizerMissingError: the model folder holds no tokenizer, so there is no text to serve.
    """
    return app_of(Service(engine, settings))


def app_of(service: Service) -> ASGIApp:
    """Return the ASGI application of a service."""
    app = FastAPI(
        title="bytebound",
        version=bytebound.__version__,
        lifespan=service.lifespan,
        responses=FAILURES,
        docs_url=None,  # the pages would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # would name a scheme and a host that a proxy has others for
    )
    _add_routes(app, service)
    _add_failures(app, service)

    def refuse(path: str, failure: RequestFailure) -> Response:
        service.metrics.requests.labels("refused at the door", str(failure.status)).inc()
        return _refusal(path, failure)

    return Guard(app, service.settings, refuse)


def _add_routes(app: FastAPI, service: Service) -> None:
    counted = service.metrics.requests

    async def run(endpoint: str, work: Awaitable[Response]) -> Response:
        try:
            response = await work
        except ClientGoneError:
            response = Response(status_code=GONE)  # nobody reads it
        except Exception as error:
            failure = failure_of(error)
            if failure.status == 500:
                log_bug(error)
            response = _refusal(endpoint, failure)
        counted.labels(endpoint, str(response.status_code)).inc()
        return response

    @app.get("/health", responses={503: {"description": "Not warm yet, or lost."}})
    async def health() -> Response:
        """200 once the engine is warm, 503 before and after it is lost."""
        ready, facts = service.state()
        return json_response(facts, 200 if ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/models")
    async def models() -> Response:
        """The one model."""
        card = _model_card(service)
        return json_response(
            {
                "object": "list",
                "data": [card],
                "first_id": card["id"],
                "last_id": card["id"],
                "has_more": False,
            }
        )

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        """The one model, by its name."""
        if name != service.settings.model_name:
            raise _no_model(service, name)
        return json_response(_model_card(service))

    @app.post("/v1/chat/completions", responses=REPLIES)
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        """A turn of a conversation."""
        _check_model(service, body.model)
        return await run("/v1/chat/completions", complete_chat(service, body, request))

    @app.post("/v1/completions", responses=REPLIES)
    async def completions(body: CompletionBody, request: Request) -> Response:
        """Text that goes on."""
        _check_model(service, body.model)
        return await run("/v1/completions", complete(service, body, request))

    @app.post("/v1/messages", responses=REPLIES | ANTHROPIC_FAILURES)
    async def messages(body: MessagesBody, request: Request) -> Response:
        """A turn of a conversation, in Anthropic's form."""
        return await run("/v1/messages", create_message(service, body, request))

    @app.post("/v1/messages/count_tokens", responses=ANTHROPIC_FAILURES)
    async def messages_count(body: CountBody) -> Response:
        """How many tokens the prompt of such a turn has."""
        return await run("/v1/messages/count_tokens", count_tokens(service, body))


def _add_failures(app: FastAPI, service: Service) -> None:
    def answer(request: Request, failure: RequestFailure) -> Response:
        route = request.scope.get("route")
        endpoint = getattr(route, "path", "other")  # a path of the client's could hold anything
        service.metrics.requests.labels(endpoint, str(failure.status)).inc()
        return _refusal(request.url.path, failure)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(request, _validation_failure(error.errors()))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        message = str(error.detail)
        if error.status_code == 404:
            message = NOT_HERE
        elif error.status_code == 405:
            message = f"this path takes {headers.get('Allow', 'other methods')} alone"
        return answer(request, RequestFailure(error.status_code, message, headers=headers))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        return answer(request, failure_of(error))

    @app.exception_handler(RequestFailure)
    async def failed(request: Request, error: RequestFailure) -> Response:
        return answer(request, error)


def _refusal(path: str, failure: RequestFailure) -> Response:
    anthropic = path.startswith(ANTHROPIC_PATHS)
    body = failure.anthropic() if anthropic else failure.openai()
    return json_response(body, failure.status, failure.headers)


def _validation_failure(errors: Sequence[Any]) -> RequestFailure:
    """The first thing that is wrong with a body; it names the field and never shows all of it."""
    error = errors[0]
    kind, place = error["type"], [part for part in error["loc"] if part != "body"]
    if kind == "json_invalid":
        return bad_request(f"the body is not JSON: {error['ctx']['error']}")
    message = str(error["msg"]).removeprefix("Value error, ")
    if not place:
        if not isinstance(error.get("input"), dict):
            return bad_request(
                "the body: expected a JSON object, with Content-Type: application/json"
            )
        name = message.partition(":")[0]
        return bad_request(message, name if name.isidentifier() else None)
    field = str(place[0])
    name = field + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in place[1:]
    )
    if kind == "extra_forbidden":
        return bad_request(
            f"{name}: unknown or unsupported parameter; leave it out", field, "unknown_parameter"
        )
    if kind == "missing":
        return bad_request(f"{name}: missing", field, "missing_parameter")
    given = repr(error.get("input"))
    shown = given if len(given) <= LONGEST_INPUT else given[:LONGEST_INPUT] + "..."
    return bad_request(f"{name}: {message[:1].lower()}{message[1:]}; got {shown}", field)


def _check_model(service: Service, name: str) -> None:
    if name != service.settings.model_name:
        raise _no_model(service, name)


def _no_model(service: Service, name: str) -> RequestFailure:
    return RequestFailure(
        404,
        f"model: got {name[:LONGEST_INPUT]!r}, and this server runs "
        f"{service.settings.model_name!r}",
        param="model",
        code="model_not_found",
    )


def _model_card(service: Service) -> dict[str, Any]:
    name = service.settings.model_name
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "bytebound",
        "type": "model",
        "display_name": name,
        "created_at": _iso(service.created),
        "max_model_len": service.engine.max_len,
    }


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
