"""Decode speed of the shipped model on the reference backend, for every draft, in turns.

    python bench/tiny_decode.py --json FILE [--device cpu] [--dtype float32] [--rounds 5]

Writes all samples in the form that bench/README.md describes. Speed on a model this small says
what the Python loop costs, not what a card can read.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import bytebound
import torch

PROMPTS = {
    "prose": "In the beginning of the story, the old man",
    "docs": "The Python standard library provides",
    "code": "def main(argv=None):\n    parser = argparse.ArgumentParser(",
}
NEW_TOKENS = 200
DRAFTS = ("none", "mtp", "ngram")
NOTE = (
    "Greedy text of these prompts repeats itself, so drafts are accepted more often than in varied "
    "text; tokens_per_step is in each case."
)


def machine(device: torch.device) -> dict[str, Any]:
    """What decides the numbers: processor or card, threads, versions."""
    common = {"torch": torch.__version__, "python": platform.python_version()}
    if device.type == "cuda":
        return {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda, **common}
    return {"cpu": _cpu_name(), "threads": torch.get_num_threads(), **common}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def commit() -> str:
    """The commit of the working tree."""
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def measure(device: str, dtype: str, rounds: int) -> tuple[dict[str, Any], torch.device]:
    """Metrics by name: tokens a second and tokens a step, per prompt and draft."""
    engines = {
        draft: bytebound.Engine.from_pretrained(
            "tiny", backend="reference", device=device, dtype=dtype, draft=draft
        )
        for draft in DRAFTS
    }
    params = bytebound.SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
    samples: dict[tuple[str, str], list[float]] = {}
    gained: dict[tuple[str, str], float] = {}
    for turn in range(rounds + 1):  # the first warms up
        for name, prompt in PROMPTS.items():
            for draft, engine in engines.items():
                result = engine.generate(engine.tokenizer.encode(prompt), params)
                gained[name, draft] = result.stats.mean_accepted_len
                if turn > 0:
                    samples.setdefault((name, draft), []).append(result.stats.tok_per_s)
    metrics: dict[str, Any] = {}
    for (name, draft), values in samples.items():
        case = {
            "model": "tiny",
            "backend": "reference",
            "dtype": dtype,
            "prompt": name,
            "draft": draft,
            "new_tokens": NEW_TOKENS,
            "temperature": 0,
            "tokens_per_step": round(gained[name, draft], 3),
        }
        metrics[f"{name}.{draft}.tok_s"] = {
            "unit": "tok/s",
            "better": "higher",
            "median": statistics.median(values),
            "samples": values,
            "case": case,
        }
    return metrics, engines["none"].executor.device  # type: ignore[attr-defined]


def main() -> int:
    """Measure, write the file, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    metrics, device = measure(arguments.device, arguments.dtype, arguments.rounds)
    content = {
        "schema": 1,
        "machine": machine(device),
        "commit": commit(),
        "command": " ".join(["python", "bench/tiny_decode.py", *sys.argv[1:]]),
        "note": NOTE,
        "metrics": metrics,
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    for name, metric in metrics.items():
        print(f"{name:16} {metric['median']:8.1f} tok/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
