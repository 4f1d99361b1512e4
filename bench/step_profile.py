"""Where the time of a plain step, or of a speculative cycle, goes: kernel by kernel.

    python bench/step_profile.py --json FILE [--model random:qwen3.5-27b] [--position 1024]

Replays the recorded turn under the profiler of PyTorch. Kernels of a turn overlap, since each may
start while the one before it runs; so a kernel is charged with the time from the end of all before
it to its own end. What is charged adds up to the time of the turn, gaps included: a gap is charged
as `idle`. The profiler itself costs something: compare shares, not times, with other results.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from bytebound import Engine, SamplingParams
from bytebound.cuda.cycle import Form
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.sampling import Choice
from decode import some_prompt, write

TURNS = 10
FORMS = {
    "plain": Form.of(Choice(0), 0),
    "verify5": Form.of(Choice(4), 4),
    "cycle4": Form.of(Choice(4), 4, by_head=True),
    "plain_sampled": Form.of(Choice(0, sampled=True), 0),
}


def kernel_events(decoder: CudaDecoder, form: Form) -> list[dict[str, Any]]:
    """Kernels of ``TURNS`` turns in the order of their starts; times in microseconds."""
    decoder._run("turn", form)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(TURNS):
            decoder._run("turn", form)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    on_device = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    return sorted(on_device, key=lambda event: event["ts"])


def charges(events: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """(name, microseconds) of every kernel, and of the gaps before it."""
    done = events[0]["ts"]
    for event in events:
        start, end = event["ts"], event["ts"] + event["dur"]
        if start > done:
            yield "idle", start - done
            done = start
        yield short_name(event["name"], event), max(0.0, end - done)
        done = max(done, end)


def short_name(name: str, event: dict[str, Any]) -> str:
    """The kernel's own name, and the grid."""
    plain = re.sub(r"^void |\(anonymous namespace\)::|[<(].*", "", name).split("::")[-1]
    return f"{plain} {'x'.join(map(str, event.get('args', {}).get('grid', [])))}"


def main(argv: list[str] | None = None) -> int:
    """Measure, write the file, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--model", default="random:qwen3.5-27b")
    parser.add_argument("--position", type=int, default=1024)
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    arguments = parser.parse_args(argv)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        engine = Engine.from_pretrained(
            arguments.model, backend="cuda", draft="mtp", max_len=arguments.position + 1024
        )
    decoder, metrics = engine.decoder, dict[str, Any]()
    if not isinstance(decoder, CudaDecoder):
        raise TypeError("the engine does not run on the device")
    for form_name, form in FORMS.items():
        params = SamplingParams(max_tokens=2, ignore_eos=True)
        engine.generate(some_prompt(arguments.position), params)
        events = kernel_events(decoder, form)
        times: dict[str, list[float]] = defaultdict(list)
        for name, microseconds in charges(events):
            times[name].append(microseconds)
        span = (events[-1]["ts"] + events[-1]["dur"] - events[0]["ts"]) / TURNS
        print(f"\n{form_name}: {span:.0f} us a turn, {len(events) / TURNS:.0f} kernels")
        for name, values in sorted(times.items(), key=lambda item: -sum(item[1])):
            total, count = sum(values) / TURNS, len(values) / TURNS
            print(f"{name[:60]:60} {count:7.1f} x {total / count:8.2f} = {total:8.1f} us")
            metrics[f"{form_name}.{name.replace(' ', '.')}.us"] = {
                "unit": "us", "better": "lower", "median": total, "samples": [total],
                "case": {"form": form_name, "per_turn": count, "each": statistics.median(values)},
            }  # fmt: skip
    write(arguments.json, "step_profile", metrics, arguments.commit, argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
