"""How long a long conversation waits for its next first token: cold, repeated, and a turn later.

    python bench/server_latency.py --json FILE [--model random:qwen3.5-27b] [--prompt-tokens 8192]

Each sample is a conversation of its own, through HTTP and streamed: a prompt that the server has
not seen, the same prompt again, and that conversation with the reply and a short new turn behind
it. A time is the client's, from sending the request to the first event of the reply, which comes
with the first token; ``engine_s`` is the engine's part of it. Needs no network. A model without a
tokenizer is served with the shipped model's.
"""

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import bytebound
import torch
from bytebound import Engine, TokenizerMissingError
from bytebound.text.tokenizer import Tokenizer, load_tokenizer
from bytebound_evals.conditions import (
    command_record,
    commit_record,
    machine_record,
    wheel_record,
)
from bytebound_evals.data import heldout_text
from bytebound_evals.results import Metric, Result, write_result
from served_engine import Client, served

NEW_TURN = "And what does that mean for the rest of it? Answer in one sentence."
ROOM = 512  # positions behind the long prompt: the template, a reply, the new turn, its reply


def load(arguments: argparse.Namespace) -> Engine:
    """The engine; where the model has no tokenizer, with the shipped one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the weights are random
        engine = Engine.from_pretrained(
            arguments.model,
            backend=arguments.backend,
            draft=arguments.draft,
            max_len=arguments.prompt_tokens + ROOM,
        )
    try:
        engine.tokenizer  # noqa: B018 - asks whether there is one
    except TokenizerMissingError:
        tokenizer = load_tokenizer(Path(bytebound.__file__).parent / "models" / "tiny")
        engine._tokenizer = tokenizer
        # Where states are kept depends on where turns begin.
        engine.decoder.reader.turn_starts = tokenizer.turn_start_ids
    return engine


def long_text(tokenizer: Tokenizer, count: int, sample: int) -> str:
    """About ``count`` tokens of prose that begin otherwise in each sample."""
    opening = f"Case {1000 + sample}. "
    ids = tokenizer.encode(heldout_text())
    ids *= -(-count // len(ids))
    return opening + tokenizer.decode(ids[: count - len(tokenizer.encode(opening))])


def ask(client: Client, messages: list[dict[str, str]], reply_tokens: int) -> dict[str, Any]:
    """Seconds to the first token, counts, and the reply's text."""
    body = {"model": "bench", "max_tokens": reply_tokens, "messages": messages, "stream": True}
    lines = client.post("/v1/messages", body)["lines"]
    events = [
        (when, json.loads(line.removeprefix("data: ")))
        for when, line in lines
        if line.startswith("data: {")
    ]
    first_s, first = events[0]
    text = "".join(
        one["delta"].get("text", "") for _, one in events if one["type"] == "content_block_delta"
    )
    usage = first["message"]["usage"]
    cached = usage["cache_read_input_tokens"]
    (report,) = [one["x_bytebound"] for _, one in events if one["type"] == "message_delta"]
    return {
        "s": first_s,
        "engine_s": report["prefill_s"],
        "tokens": cached + usage["input_tokens"],
        "cached": cached,
        "text": text,
    }


def measure(arguments: argparse.Namespace) -> dict[str, Metric]:
    """All metrics by name."""
    engine = load(arguments)
    times: dict[str, list[float]] = {"cold": [], "repeat": [], "warm": []}
    engine_times: dict[str, list[float]] = {name: [] for name in times}
    counts: dict[str, tuple[int, int]] = {}
    with served(engine) as client:
        for sample in range(arguments.samples + 1):  # the first warms up
            prompt = long_text(engine.tokenizer, arguments.prompt_tokens, sample)
            messages = [{"role": "user", "content": prompt}]
            turn = {"cold": ask(client, messages, arguments.reply_tokens)}
            turn["repeat"] = ask(client, messages, arguments.reply_tokens)
            reply = turn["repeat"]["text"] or "Yes."
            messages += [{"role": "assistant", "content": reply}]
            messages += [{"role": "user", "content": NEW_TURN}]
            turn["warm"] = ask(client, messages, arguments.reply_tokens)
            if turn["cold"]["cached"]:
                raise RuntimeError("a prompt that is new was found in the cache")
            for name, found in turn.items() if sample else ():
                times[name].append(found["s"])
                engine_times[name].append(found["engine_s"])
                counts[name] = (found["tokens"], found["cached"])
    count = arguments.prompt_tokens
    size = f"{count // 1024}k" if count >= 1024 else str(count)
    common = {"model": arguments.model, "backend": engine.backend, "draft": arguments.draft}

    def case(name: str) -> dict[str, Any]:
        tokens, cached = counts[name]
        return {**common, "prompt_tokens": tokens, "cached_tokens": cached}

    metrics = {
        f"{name}_{size}.s": Metric("s", "lower", tuple(values), case(name))
        for name, values in times.items()
    }
    metrics |= {
        f"{name}_{size}.engine_s": Metric("s", "lower", tuple(values), case(name))
        for name, values in engine_times.items()
    }
    for name in ("repeat", "warm"):
        pairs = zip(times[name], times["cold"], strict=True)
        ratios = tuple(one / cold for one, cold in pairs)
        metrics[f"{name}_{size}_over_cold"] = Metric("ratio", "lower", ratios, case(name))
    return metrics


def main(argv: list[str] | None = None) -> int:
    """Measure, write the file, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", "--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--model", default="random:qwen3.5-27b")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--draft", default="mtp")
    parser.add_argument("--prompt-tokens", type=int, default=8192)
    parser.add_argument("--reply-tokens", type=int, default=32)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    arguments = parser.parse_args(argv)
    metrics = measure(arguments)
    words = sys.argv[1:] if argv is None else argv
    result = Result(
        machine=machine_record("cuda" if torch.cuda.is_available() else "cpu"),
        commit=commit_record(arguments.commit),
        command=command_record("python", ["bench/server_latency.py", *words]),
        metrics=metrics,
        note="Through HTTP on loopback, to the first event of the streamed reply.",
        wheel=wheel_record(),
    )
    write_result(arguments.json, result)
    for name, metric in metrics.items():
        print(f"{name:24} {metric.median:9.4f} {metric.unit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
