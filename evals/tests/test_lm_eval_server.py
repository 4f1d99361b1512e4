"""lm-eval's ``local-completions`` against ``bytebound serve``: the results of the engine itself."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from bytebound.names import resolve_model
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager

from .test_lm_eval import (
    CHOICE,
    GENERATION,
    MAX_LENGTH,
    ROLLING,
    ByteboundLM,
    evaluate,
    ours,
    tasks,
)

__all__ = ["ours", "tasks"]  # fixtures
TOKEN_ROUNDING = 1e-5
"""Of a token's log-probability. lm-eval sends the last token of an answer to the server too, and
float32 rounds a pass that is one row wider in another way, by a few units of a logit's last place,
which differ from one processor to the next."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server in a process of its own."""
    options = ["--backend", "reference", "--device", "cpu", "--dtype", "float32"]
    options += ["--port", "0", "--max-len", str(MAX_LENGTH + 64)]
    command = [sys.executable, "-m", "bytebound", "serve", "--model", "tiny", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            plan, line = process.stderr.readline(), process.stderr.readline()
            assert " positions take " in plan, plan
            found = re.search(r"serving tiny on (http://\S+)", line)
            assert found, line
            for _ in range(600):
                if httpx.get(f"{found[1]}/health", trust_env=False).status_code == 200:
                    break
                time.sleep(0.1)
            yield found[1]
        finally:
            process.kill()


@pytest.fixture(scope="module")
def through_http(server: str) -> LocalCompletionsAPI:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "none")
        return LocalCompletionsAPI(
            base_url=f"{server}/v1/completions",
            model="tiny",
            tokenizer=str(resolve_model("tiny")),
            tokenizer_backend="huggingface",
            # It keeps a token for an answer, and its windows of a text one more.
            max_length=MAX_LENGTH + 2,
            num_concurrent=1,
            max_retries=1,
        )


@pytest.mark.parametrize("task", [CHOICE, ROLLING, GENERATION])
def test_a_task_has_the_same_results(
    through_http: LocalCompletionsAPI, ours: ByteboundLM, tasks: TaskManager, task: str
) -> None:
    found, wanted = (evaluate(model, tasks, task) for model in (through_http, ours))
    assert figures(found, task) == pytest.approx(figures(wanted, task), rel=1e-6)
    for one, other in zip(found["samples"][task], wanted["samples"][task], strict=True):
        assert one["doc_id"] == other["doc_id"]
        answers = zip(one["arguments"], one["resps"], other["resps"], strict=True)
        for argument, found_answer, wanted_answer in answers:
            rounding = TOKEN_ROUNDING * len(ours.tok_encode(str(argument[-1])))
            for got, want in zip(flat(found_answer), flat(wanted_answer), strict=True):
                near = pytest.approx(want, abs=rounding) if isinstance(want, float) else want
                assert got == near


def figures(results: Any, task: str) -> dict[str, float]:
    """The task's metrics by name."""
    numbers = {
        name: value
        for name, value in results["results"][task].items()
        if isinstance(value, float) and "stderr" not in name
    }
    assert numbers
    return numbers


def flat(responses: Any) -> list[Any]:
    """What the model answered: scores, whether they are the likeliest, or texts."""
    if isinstance(responses, (list, tuple)):
        return [item for one in responses for item in flat(one)]
    return [responses]
