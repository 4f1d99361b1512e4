"""Reading a packed 27B model from the page cache, and the memory plan against what was taken.

    python bench/load.py --json FILE [--samples 5]

``packed_27b.s``: a file of the packed cache, as large as that of a 27B model with noise in place of
weights, is written and then read into the GPU's memory, every block checked, again and again. It is
in the page cache, so this is what a load waits for on a machine that has loaded the model before.

``peak_vram_over_plan``: the most that the process took of the card while it made an engine with
random weights and answered a prompt, over what the plan had said before. Each context is measured
in a process of its own; outside PyTorch's allocator nothing is given back before one ends.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from bytebound import Engine, SamplingParams
from bytebound.cuda.packed_file import PackedFile, open_packed, write_packed
from bytebound.vram import GIB, measured_peak
from bytebound_kernels import devices
from decode import metric, some_prompt, write

PARTS, PART_BYTES = 800, 20 << 20  # 16.8 GB, what packed weights of the 27B shape take
CONTEXTS = {"8192": 8000, "100000": 3000}  # max_len: ids of the prompt
NOTE = "Random weights, or noise in their place: right for time and memory."


def read_times(folder: Path, parts: int, samples: int) -> list[float]:
    """Seconds from the opened file to all its tensors on the GPU."""
    device = torch.device("cuda", torch.cuda.current_device())
    block = torch.randint(0, 255, (PART_BYTES,), dtype=torch.uint8, device=device)
    content: dict[str, Any] = {f"part {i}": ({"i": i}, [block + i]) for i in range(parts)}
    path = folder / "packed.bin"
    write_packed(path, "key", content, lambda done, total: None)
    del content
    torch.cuda.empty_cache()
    found = open_packed(path)
    if found is None or found.num_bytes != parts * PART_BYTES:
        raise RuntimeError("the file is not what was written")
    read_once(found, device, block)
    return [read_once(found, device, block) for _ in range(samples)]


def read_once(found: PackedFile, device: torch.device, block: torch.Tensor) -> float:
    """Seconds of one reading; what it read is then held against what was written."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    tensors = [(part.meta["i"], one) for part, (one,) in found.read(device, lambda done: None)]
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    for i, one in tensors[:: max(1, len(tensors) // 8)]:
        if not torch.equal(one, block + i):
            raise RuntimeError(f"part {i} is not what was written")
    return seconds


def peak(model: str, max_len: int, prompt: int) -> dict[str, float]:
    """GiB that were planned and taken by this process, which must not have used the GPU before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        # No states are kept: whether their budget is used up depends on the prompts.
        engine = Engine.from_pretrained(model, backend="cuda", max_len=max_len, snapshot_bytes=0)
    if engine.memory_plan is None:
        raise TypeError("expected an engine of backend='cuda'")
    for more in ({}, {"temperature": 0.8, "seed": 1, "logprobs": 5}):
        params = SamplingParams(max_tokens=40, ignore_eos=True, **more)
        engine.generate(some_prompt(prompt), params)
    torch.cuda.synchronize()
    device = torch.device("cuda", torch.cuda.current_device())
    return {
        "plan": engine.memory_plan.total / GIB,
        "peak": measured_peak(device) / GIB,
        "reserved": torch.cuda.max_memory_reserved(device) / GIB,
        "planned_context": engine.memory_plan.cuda_context / GIB,
        "planned_graphs": engine.memory_plan.graphs / GIB,
    }


def peak_in_a_process(model: str, max_len: int, prompt: int) -> dict[str, float]:
    """``peak`` of a process of its own."""
    words = [sys.executable, __file__, "--peak", model, str(max_len), str(prompt)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"max_len {max_len}: {done.stderr.strip().splitlines()[-1:]}")
    return dict(json.loads(done.stdout))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All metrics by name; memory first, while nothing of this process is on the card."""
    ratios, cases = list[float](), dict[str, Any]()
    for max_len, prompt in CONTEXTS.items():
        found = peak_in_a_process(arguments.model, int(max_len), prompt)
        ratios.append(found["peak"] / found["plan"])
        cases[max_len] = {name: round(value, 3) for name, value in found.items()}
        print(f"max_len {max_len}: {cases[max_len]}", file=sys.stderr)
    metrics = {
        "peak_vram_over_plan": metric(
            "ratio",
            "lower",
            ratios,
            {"model": arguments.model, "samples": " and ".join(CONTEXTS), "gib": cases},
        )
    }
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        times = read_times(Path(folder), arguments.parts, arguments.samples)
    case = {
        "bytes_gb": arguments.parts * PART_BYTES / 1e9,
        "from": "page cache",
        "cpus": os.cpu_count(),
        "device": devices()[0].name,
    }
    metrics["packed_27b.s"] = metric("s", "lower", times, case)
    return metrics


def main(argv: list[str] | None = None) -> int:
    """Measure, write the file, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--model", default="random:qwen3.5-27b")
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--parts", type=int, default=PARTS, help=f"of {PART_BYTES >> 20} MiB")
    parser.add_argument("--folder", type=Path, help="for the file; default: the temporary one")
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.peak:
        model, max_len, prompt = arguments.peak
        print(json.dumps(peak(model, int(max_len), int(prompt))))
        return 0
    if arguments.json is None:
        parser.error("--json FILE is needed")
    write(arguments.json, "load", measure(arguments), arguments.commit, argv, NOTE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
