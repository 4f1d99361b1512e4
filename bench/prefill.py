"""Prompt speed and loading of the CUDA engine at the 27B shape, on this machine's GPU.

    python bench/prefill.py --json FILE [--model random:qwen3.5-27b] [--samples 5]

A prompt's time is the host's, from the ids to the first token. Random weights are right for speed
and say nothing of quality.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from bytebound import Engine, SamplingParams
from bytebound.cuda.executor import CudaExecutor
from decode import metric, some_prompt, write

LENGTHS = {"512": 512, "1k": 1024, "2k": 2048, "8k": 8192, "32k": 32768}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All metrics by name."""
    torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        engine = Engine.from_pretrained(
            arguments.model, backend="cuda", draft="mtp", max_len=max(LENGTHS.values()) + 64
        )
    torch.cuda.synchronize()
    load = time.perf_counter() - begun
    if arguments.chunk and isinstance(engine.executor, CudaExecutor):
        engine.executor.prefill_chunk = arguments.chunk
    case = {"model": arguments.model, "chunk": getattr(engine.executor, "prefill_chunk", 0)}
    metrics = {"load.s": metric("s", "lower", [load], case)}
    for name, length in LENGTHS.items():
        prompt, samples = some_prompt(length), list[float]()
        for turn in range(arguments.samples + 1):
            # Another first id, so that no state of the prompt before fits.
            ids = [turn + 1001, *prompt[1:]]
            stats = engine.generate(ids, SamplingParams(max_tokens=1)).stats
            if stats.cached_tokens:
                raise RuntimeError("a prompt was found in the cache")
            if turn > 0:
                samples.append(stats.prompt_tokens / stats.prefill_s)
        metrics[f"prompt_{name}.tok_s"] = metric(
            "tok/s", "higher", samples, {**case, "prompt_tokens": length}
        )
    free, total = torch.cuda.mem_get_info()
    peak = [torch.cuda.max_memory_reserved() / 2**30]
    plan = engine.memory_plan.total / 2**30 if engine.memory_plan else 0.0
    metrics["peak_reserved.gib"] = metric("GiB", "lower", peak, {**case, "plan_gib": plan})
    used = [(total - free) / 2**30]
    metrics["device_used.gib"] = metric("GiB", "lower", used, {**case, "plan_gib": plan})
    return metrics


def main(argv: list[str] | None = None) -> int:
    """Measure, write the file, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--model", default="random:qwen3.5-27b")
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--chunk", type=int, help="rows of a pass; default: the engine's own")
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    arguments = parser.parse_args(argv)
    write(arguments.json, "prefill", measure(arguments), arguments.commit, argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
