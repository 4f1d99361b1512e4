"""Log-probabilities of a prompt's own tokens from another engine's server: quality, one yardstick.

A server is asked to score ids, never to generate. Each dialect's answer is checked as a whole:
one value for every id but the first, which nothing predicts, none of them above 0, and not all 0.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bytebound_evals.errors import RivalError
from bytebound_evals.rivals.completions import COMPLETIONS
from bytebound_evals.rivals.http import Server

GENERATE = "/generate"


def score_vllm(server: Server, model: str, ids: Sequence[int]) -> list[float]:
    """By ``prompt_logprobs``: natural logs of p(ids[t] | ids[:t]) for t = 1 .. T - 1.

    Raises:
        RivalError: the server does not have the field, or what it says cannot be right.
    """
    body = {
        "model": model,
        "prompt": list(ids),
        "max_tokens": 1,  # none is refused by some versions; the new token is not looked at
        "temperature": 0,
        "prompt_logprobs": 0,
    }
    answer = server.post(COMPLETIONS, body)
    rows = _field(server, answer, "choices", 0, "prompt_logprobs")
    values: list[Any] = []
    for token, row in zip(ids, rows, strict=False):
        entry = row.get(str(token)) if isinstance(row, Mapping) else None
        values.append(None if entry is None else entry.get("logprob"))
    return _checked(server, ids, values, len(rows))


def score_echo(server: Server, model: str, ids: Sequence[int]) -> list[float]:
    """By ``echo`` with ``logprobs``, the OpenAI form; otherwise as ``score_vllm``."""
    body = {
        "model": model,
        "prompt": list(ids),
        "max_tokens": 1,
        "temperature": 0,
        "echo": True,
        "logprobs": 1,
    }
    answer = server.post(COMPLETIONS, body)
    values = _field(server, answer, "choices", 0, "logprobs", "token_logprobs")
    # With the one new token, or without it where the server honours none.
    extra = len(values) - len(ids)
    return _checked(server, ids, values[: len(ids)], len(values) - (1 if extra == 1 else 0))


def score_sglang(server: Server, model: str, ids: Sequence[int]) -> list[float]:
    """By SGLang's own ``/generate``; otherwise as ``score_vllm``."""
    body = {
        "input_ids": list(ids),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    answer = server.post(GENERATE, body)
    rows = _field(server, answer, "meta_info", "input_token_logprobs")
    for token, row in zip(ids, rows, strict=False):
        if row[1] != token:
            raise RivalError(f"{server.url}: scored id {row[1]} where {token} was sent")
    return _checked(server, ids, [row[0] for row in rows], len(rows))


DIALECTS: Mapping[str, Callable[[Server, str, Sequence[int]], list[float]]] = {
    "vllm": score_vllm,
    "echo": score_echo,
    "sglang": score_sglang,
}


def _field(server: Server, answer: Any, *path: str | int) -> Any:
    found = answer
    for key in path:
        try:
            found = found[key]
        except (KeyError, IndexError, TypeError):
            found = None
        if found is None:
            where = ".".join(map(str, path))
            raise RivalError(
                f"{server.url}: the answer has no {where}: it does not score prompts in this form"
            )
    if not isinstance(found, list):
        raise RivalError(f"{server.url}: {path[-1]} is no list")
    return found


def _checked(server: Server, ids: Sequence[int], values: list[Any], count: int) -> list[float]:
    if count != len(ids) or len(values) != len(ids):
        raise RivalError(f"{server.url}: {count} values for {len(ids)} ids")
    if values[0] is not None:
        raise RivalError(
            f"{server.url}: the first id has the value {values[0]!r}; nothing predicts it, so the "
            "server put a token before the prompt, or its values are off by one"
        )
    for i, value in enumerate(values[1:], start=1):
        if not isinstance(value, int | float) or not math.isfinite(value) or value > 0:
            raise RivalError(f"{server.url}: value {i} is {value!r}, expected a log-probability")
    found = [float(value) for value in values[1:]]
    if found and not any(found):
        raise RivalError(f"{server.url}: every value is 0: these are no log-probabilities")
    return found
