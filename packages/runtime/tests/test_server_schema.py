"""Schemathesis over the server's OpenAPI document: thousands of odd requests, none of them a fault.

The names of models, and most conversations, are made right, or nothing would reach the engine.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from bytebound.text.tokenizer import Tokenizer
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from .server_runs import MODEL, Served, script, served

REPLY = "the quick brown fox"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    unsupported_method,
]
OPERATIONS = [
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
]
PROBE = {"model": MODEL, "prompt": "hello", "max_tokens": 9}


@pytest.fixture(scope="module")
def api(tokenizer: Tokenizer) -> Iterator[Served]:
    with served(script(tokenizer, REPLY), max_queue=64) as found:
        yield found
        answer = found.post("/v1/completions", {**PROBE, "max_tokens": 40}).json()
        assert answer["choices"][0]["text"] == REPLY
        with found.http as client:
            assert 'status="500"' not in client.get("/metrics").text


@pytest.fixture(scope="module")
def document(api: Served) -> Any:
    return schemathesis.openapi.from_url(f"{api.url}/openapi.json")


def answered(api: Served, path: str) -> float:
    """Requests to ``path`` so far that were no mistake."""
    with api.http as client:
        metrics = client.get("/metrics").text
    wanted = f'bytebound_requests_total{{endpoint="{path}",status="200"}} '
    lines = [line for line in metrics.splitlines() if line.startswith(wanted)]
    return sum(float(line.removeprefix(wanted)) for line in lines)


def made_right(body: Any) -> Any:
    """The same body for the model that is there, with messages that the template takes."""
    if not isinstance(body, dict):
        return body
    if isinstance(body.get("model"), str):
        body["model"] = MODEL
    if isinstance(body.get("messages"), list) and len(body["messages"]) % 3:
        body["messages"] = [{"role": "user", "content": f"hello {len(body)}"}]
    return body


def test_the_list_of_operations_is_complete(document: Any) -> None:
    found = [operation.ok() for operation in document.get_all_operations()]
    assert {(one.method.upper(), one.path) for one in found} == set(OPERATIONS)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=str)
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_request_is_a_fault(
    api: Served, document: Any, method: str, path: str, mode: GenerationMode
) -> None:
    operation = document[path][method]
    if mode is GenerationMode.NEGATIVE and not operation.body:
        pytest.skip("takes nothing that could be wrong: any text may be the name of a model")

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=40,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        case.body = made_right(case.body)
        case.call_and_validate(checks=CHECKS, timeout=30)

    ask()
    if mode is GenerationMode.POSITIVE and method == "POST":
        assert answered(api, path) >= 5  # so the checks saw replies too
    assert api.post("/v1/completions", PROBE).status_code == 200
