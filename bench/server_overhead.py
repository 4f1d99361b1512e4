"""What the server costs a token: a stream over HTTP against the bare engine's, in turns.

    python bench/server_overhead.py --json FILE [--tok-s 300] [--tokens 600] [--rounds 9]

The engine follows a script at ``--tok-s`` tokens a second, one token a pass, as a 27B model does
on a GPU: a pass leaves the processor free, and the next one is under way before it is read. The
client is another process. Both are timed from their first token to their last one.

``in_turn`` is the same with passes that are started only once the token before was handed over, as
without a GPU: there whatever the server does in between counts.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bytebound
import torch
from bytebound import Engine, SamplingParams
from bytebound.scripted import ScriptedExecutor
from bytebound.text.tokenizer import Tokenizer, load_tokenizer
from bytebound_evals.conditions import (
    command_record,
    commit_record,
    machine_record,
    wheel_record,
)
from bytebound_evals.data import heldout_text
from bytebound_evals.results import Metric, Result, write_result
from served_engine import MODEL, Client, served

QUESTION = [{"role": "user", "content": "Go on. /no_think"}]
NOTE = (
    "A scripted engine in place of a model: a pass sleeps until its time is over. in_turn: no pass "
    "is under way before the token before it was handed over, as without a GPU. "
    "overhead_percent is of each round's own bare run, above 0 where HTTP is slower."
)


def scripted_engine(tokens: int) -> Engine:
    """An engine that answers any prompt with ``tokens`` tokens of prose."""
    tokenizer = load_tokenizer(Path(bytebound.__file__).parent / "models" / "tiny")
    if not isinstance(tokenizer, Tokenizer):
        raise RuntimeError("the shipped model has no tokenizer")
    (end,) = tokenizer.encode("<|im_end|>", parse_control=True)
    ids = tokenizer.encode(heldout_text())[: tokens - 1]
    executor = ScriptedExecutor([ids], tokenizer.vocab_size, end_id=end, max_len=tokens + 512)
    return Engine(executor, tokenizer=tokenizer, end_ids=[end])


def pace(engine: Engine, tokens: int, tok_s: float, *, runs_ahead: bool) -> None:
    """Let the bare engine reach ``tok_s``."""
    executor = engine.executor
    if not isinstance(executor, ScriptedExecutor):
        raise TypeError("only a script can be paced")
    executor.runs_ahead, executor.pass_s = runs_ahead, 1 / tok_s
    for _ in range(0 if runs_ahead else 4):  # the loop around a pass is part of a token's time
        executor.pass_s = max(0.0, executor.pass_s + 1 / tok_s - 1 / bare(engine, tokens))


def bare(engine: Engine, tokens: int) -> float:
    """Tokens a second of the engine by itself."""
    prompt = engine.tokenizer.apply_chat_template(QUESTION)
    times = []
    for event in engine.stream(prompt, SamplingParams(max_tokens=tokens)):
        times += [time.perf_counter()] * len(event.token_ids)
    return _rate(times[0], times[-1], len(times), tokens)


def _rate(first: float, last: float, got: int, tokens: int) -> float:
    if got != tokens:
        raise RuntimeError(f"got {got} tokens, expected {tokens}")
    return (tokens - 1) / (last - first)


def chat(client: Client, tokens: int) -> float:
    """Tokens a second of ``/v1/chat/completions``."""
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": tokens, "stream": True}
    body["stream_options"] = {"include_usage": True}
    events = _data(client.post("/v1/chat/completions", body))
    (end,) = [when for when, one in events if any(c["finish_reason"] for c in one["choices"])]
    begun = [when for when, one in events if any(c["delta"].get("content") for c in one["choices"])]
    return _rate(begun[0], end, events[-1][1]["usage"]["completion_tokens"], tokens)


def completions(client: Client, tokens: int) -> float:
    """Tokens a second of ``/v1/completions``."""
    body = {"model": MODEL, "prompt": "Go on.", "max_tokens": tokens, "stream": True}
    body["stream_options"] = {"include_usage": True}
    events = _data(client.post("/v1/completions", body))
    (end,) = [when for when, one in events if any(c["finish_reason"] for c in one["choices"])]
    return _rate(events[0][0], end, events[-1][1]["usage"]["completion_tokens"], tokens)


def messages(client: Client, tokens: int) -> float:
    """Tokens a second of ``/v1/messages``."""
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": tokens, "stream": True}
    events = _data(client.post("/v1/messages", body))
    begun = [when for when, one in events if one["type"] == "content_block_delta"]
    (end,) = [(when, one) for when, one in events if one["type"] == "message_delta"]
    return _rate(begun[0], end[0], end[1]["usage"]["output_tokens"], tokens)


PROTOCOLS: dict[str, Callable[[Client, int], float]] = {
    "chat": chat,
    "completions": completions,
    "messages": messages,
}


def _data(answer: dict[str, Any]) -> list[tuple[float, Any]]:
    return [
        (when, json.loads(line.removeprefix("data: ")))
        for when, line in answer["lines"]
        if line.startswith("data: {")
    ]


def measure(tok_s: float, tokens: int, rounds: int) -> dict[str, Metric]:
    """All metrics by name."""
    engine = scripted_engine(tokens)
    metrics = {}
    with served(engine) as client:
        for prefix, runs_ahead in (("", True), ("in_turn.", False)):
            pace(engine, tokens, tok_s, runs_ahead=runs_ahead)
            speeds: dict[str, list[float]] = {name: [] for name in ("bare", *PROTOCOLS)}
            for turn in range(rounds + 1):
                round_of = {"bare": bare(engine, tokens)}
                round_of |= {name: ask(client, tokens) for name, ask in PROTOCOLS.items()}
                for name, value in round_of.items() if turn else ():  # the first warms up
                    speeds[name].append(value)
            case = {"model": "scripted", "tok_s": tok_s, "new_tokens": tokens}
            case |= {"tokens_per_pass": 1, "runs_ahead": runs_ahead}
            for name, values in speeds.items():
                metrics[f"{prefix}{name}.tok_s"] = Metric("tok/s", "higher", tuple(values), case)
            for name in PROTOCOLS:
                pairs = zip(speeds["bare"], speeds[name], strict=True)
                percents = tuple(100 * (own / http - 1) for own, http in pairs)
                metrics[f"{prefix}{name}.overhead_percent"] = Metric("%", "lower", percents, case)
    return metrics


def main(argv: list[str] | None = None) -> int:
    """Measure, write the file, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", "--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--tok-s", type=float, default=300.0)
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    parser.add_argument("--note", help="what else a reader must know")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    metrics = measure(arguments.tok_s, arguments.tokens, arguments.rounds)
    words = sys.argv[1:] if argv is None else argv
    result = Result(
        machine=machine_record("cpu"),
        commit=commit_record(arguments.commit),
        command=command_record("python", ["bench/server_overhead.py", *words]),
        metrics=metrics,
        note=f"{NOTE} {arguments.note}" if arguments.note else NOTE,
        wheel=wheel_record(),
    )
    write_result(arguments.json, result)
    for name, metric in metrics.items():
        print(f"{name:36} {metric.median:8.2f} {metric.unit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
