"""Decoding speed of the CUDA engine at the 27B shape, one stream, on this machine's GPU.

    python bench/decode.py --json FILE [--model random:qwen3.5-27b] [--tokens 128] [--samples 5]

Random weights are right for speed and say nothing of quality or of how many guesses stand: with
drafts the time of a pass is reported, never tokens per second. The clock is the host's, from one
token to the next as a caller sees them, so that everything between two passes counts. Writes all
samples in the form that bench/README.md describes.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from bytebound import Engine, SamplingParams
from bytebound_kernels import devices
from bytebound_kernels.bench.cases import measure_read_bandwidth
from bytebound_kernels.bench.memory import find_backend
from quant_layer import card

PROMPT_TOKENS = 1024
VERIFY_ROWS = (1, 2, 5, 8)
VERIFY_PASSES = 30


def plain_speed(engine: Engine, tokens: int, samples: int) -> tuple[list[float], list[float]]:
    """Tokens a second of greedy decoding behind the prompt, and the prompt's tokens a second."""
    prompt = [(17 * i) % 1000 for i in range(PROMPT_TOKENS)]
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    engine.generate(prompt, params)
    stats = [engine.generate(prompt, params).stats for _ in range(samples)]
    prefill = [s.prompt_tokens / s.prefill_s for s in stats]
    return [s.tok_per_s for s in stats], prefill


def pass_times(engine: Engine, samples: int) -> dict[int, list[float]]:
    """Seconds of a pass of each number of rows, one accepted each time, enqueued back to back."""
    executor = engine.executor
    executor.reset()
    executor.prefill([(17 * i) % 1000 for i in range(PROMPT_TOKENS)])
    times: dict[int, list[float]] = {rows: [] for rows in VERIFY_ROWS}
    for turn in range(samples + 1):
        for rows in VERIFY_ROWS:
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(VERIFY_PASSES):
                executor.verify(list(range(rows)))
                executor.commit(1)
            torch.cuda.synchronize()
            if turn > 0:
                times[rows].append((time.perf_counter() - begun) / VERIFY_PASSES)
    return times


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All metrics by name."""
    backend = find_backend()
    read = measure_read_bandwidth(backend, arguments.samples).median
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        engine = Engine.from_pretrained(
            arguments.model,
            backend="cuda",
            draft="ngram",  # so that passes of up to eight rows are recorded
            num_draft_tokens=max(VERIFY_ROWS) - 1,
            max_len=arguments.max_len,
        )
    engine.draft = None
    load = time.perf_counter() - begun
    case = {
        "model": arguments.model,
        "engine": "graph",
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": arguments.tokens,
        "draft": "none",
        "device": devices()[0].name,
    }
    speed, prefill = plain_speed(engine, arguments.tokens, arguments.samples)
    per_token = engine.bytes_per_token or 0.0
    passes = pass_times(engine, arguments.samples)
    metrics = {
        "plain_1k.tok_s": _metric("tok/s", "higher", speed, case),
        "plain_1k.percent_of_limit": _metric(
            "%",
            "higher",
            [100 * s * per_token / (read * 1e9) for s in speed],
            {**case, "bytes_per_token": per_token, "read_gb_s": read},
        ),
        "prompt_1k.tok_s": _metric("tok/s", "higher", prefill, case),
        "load.s": _metric("s", "lower", [load], case),
    }
    for rows, seconds in passes.items():
        name = f"pass_rows{rows}_1k.ms"
        metrics[name] = _metric("ms", "lower", [1e3 * s for s in seconds], {**case, "rows": rows})
    ratio = [five / one for five, one in zip(passes[5], passes[1], strict=True)]
    metrics["verify5_over_plain"] = _metric("ratio", "lower", ratio, case)
    return metrics


def main(argv: list[str] | None = None) -> int:
    """Measure, write the file, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--model", default="random:qwen3.5-27b")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--max-len", type=int, default=4096)
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    arguments = parser.parse_args(argv)
    metrics = measure(arguments)
    content = {
        "schema": 1,
        "machine": {
            **card(torch.device("cuda:0")),
            "cuda": torch.version.cuda,
            "torch": torch.__version__,
        },
        "commit": arguments.commit or _commit(),
        "command": f"python bench/decode.py {_arguments(argv or sys.argv[1:])}",
        "note": "Random weights: right for speed, not for quality or acceptance.",
        "metrics": metrics,
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    for name, metric in metrics.items():
        print(f"{name:28} {metric['median']:10.2f} {metric['unit']}")
    return 0


def _metric(unit: str, better: str, samples: list[float], case: dict[str, Any]) -> dict[str, Any]:
    return {
        "unit": unit,
        "better": better,
        "median": statistics.median(samples),
        "samples": samples,
        "case": case,
    }


def _arguments(argv: list[str]) -> str:
    """The command line as a result file records it: without the folders of one machine."""
    return " ".join(Path(word).name if "/" in word else word for word in argv)


def _commit() -> str:
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
