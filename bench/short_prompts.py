"""Time to the first token of a few new ids behind a long conversation that is resident.

    python bench/short_prompts.py --json FILE [--model random:qwen3.5-27b] [--samples 5]
                                  [--new 1 8 16 47 128 512] [--profile FILE]

``new_N.ms`` is the host's time, from the ids to the first token, and ``new_N.engine_ms`` the
engine's part of it. Up to ``--both-ways`` new ids, samples alternate with the way that the engine
does not take for so many (``new_N.other_way.engine_ms``): recorded steps of eight rows, or a wide
pass. ``--profile`` writes where the time of a prompt of ``--profile-new`` ids goes, either way, and
says how long the device was busy meanwhile. Random weights are right for speed and say nothing of
quality.
"""

import argparse
import cProfile
import pstats
import statistics
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch
from bytebound import Engine, SamplingParams
from bytebound.cuda.executor import CudaExecutor
from decode import metric, some_prompt, write
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

TURNS = range(1000, 2000)  # begin the new ids, as a turn of a chat begins; not in ``some_prompt``
ONE_TOKEN = SamplingParams(max_tokens=1, ignore_eos=True)
TOP = 25  # rows of a table
# Calls that wait for the device: the host has nothing to do meanwhile.
WAITS = ("cudaEventQuery", "cudaEventSynchronize", "cudaStreamSynchronize", "cudaDeviceSynchronize")


class Conversation:
    """A conversation that is resident, and prompts that go on from its end."""

    def __init__(self, engine: Engine, length: int) -> None:
        self.engine = engine
        self.ids = some_prompt(length)
        self._asked = 0
        engine.reader.turn_starts = frozenset(TURNS)
        self.engine.generate([*self.ids, *self.new_ids(1)], ONE_TOKEN)

    def new_ids(self, count: int) -> list[int]:
        """Ids that no prompt has had there: the state behind an earlier one must not serve."""
        self._asked += 1
        return [TURNS[self._asked % len(TURNS)], *some_prompt(count - 1)]

    def ask(self, count: int) -> tuple[float, float]:
        """Milliseconds to the first token of ``count`` new ids: the host's, and the engine's."""
        prompt = [*self.ids, *self.new_ids(count)]
        begun = time.perf_counter()
        stats = self.engine.generate(prompt, ONE_TOKEN).stats
        total = time.perf_counter() - begun
        if stats.cached_tokens != len(self.ids):
            raise RuntimeError(f"{stats.cached_tokens} ids were cached, expected {len(self.ids)}")
        return 1e3 * total, 1e3 * stats.prefill_s


def load(arguments: argparse.Namespace) -> Engine:
    """The engine, with room for the longest prompt."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the weights are random
        return Engine.from_pretrained(
            arguments.model,
            backend=arguments.backend,
            draft=arguments.draft,
            max_len=arguments.prompt_tokens + max(*arguments.new, arguments.profile_new) + 8,
        )


def measure(arguments: argparse.Namespace, talk: Conversation) -> dict[str, Any]:
    """All metrics by name."""
    executor = talk.engine.executor
    common = {
        "model": arguments.model,
        "backend": talk.engine.backend,
        "draft": arguments.draft,
        "cached_tokens": len(talk.ids),
    }
    metrics = dict[str, Any]()
    for count in arguments.new:
        ways = ways_of(executor, count, arguments.both_ways)
        times: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for sample in range(arguments.samples + 1):  # the first warms up
            for name, few_rows in ways.items():
                found = asked_with(talk, count, few_rows)
                if sample:
                    times[name].append(found)
        for name, pairs in times.items():
            case = {**common, "new_tokens": count, "way": way(executor, count, ways[name])}
            totals, engines = (list(one) for one in zip(*pairs, strict=True))
            if not name:
                metrics[f"new_{count}.ms"] = metric("ms", "lower", totals, case)
            metrics[f"new_{count}{name}.engine_ms"] = metric("ms", "lower", engines, case)
    return metrics


def ways_of(executor: object, count: int, most: int) -> dict[str, int | None]:
    """``few_rows`` by the part of a metric's name; None leaves it."""
    ways: dict[str, int | None] = {"": None}
    if isinstance(executor, CudaExecutor) and count <= most:
        ways[".other_way"] = 0 if count <= executor.few_rows else count
    return ways


def way(executor: object, count: int, few_rows: int | None) -> str:
    """What is then done with ``count`` rows."""
    if not isinstance(executor, CudaExecutor):
        return "wide"
    few_rows = executor.few_rows if few_rows is None else few_rows
    return "steps" if count <= few_rows else "wide"


def asked_with(talk: Conversation, count: int, few_rows: int | None) -> tuple[float, float]:
    """``ask`` with another ``few_rows``."""
    executor = talk.engine.executor
    if few_rows is None or not isinstance(executor, CudaExecutor):
        return talk.ask(count)
    kept, executor.few_rows = executor.few_rows, few_rows
    try:
        return talk.ask(count)
    finally:
        executor.few_rows = kept


def write_profiles(talk: Conversation, arguments: argparse.Namespace) -> None:
    """Either way: one prompt under the profiler of PyTorch, another one under that of Python."""
    count, executor = arguments.profile_new, talk.engine.executor
    arguments.profile.parent.mkdir(parents=True, exist_ok=True)
    with arguments.profile.open("w", encoding="utf-8") as file:
        for few_rows in ways_of(executor, count, arguments.both_ways).values():
            write_profile(talk, count, few_rows, file)


def write_profile(talk: Conversation, count: int, few_rows: int | None, file: TextIO) -> None:
    """One way."""

    def ask() -> float:
        return asked_with(talk, count, few_rows)[0]

    plain = statistics.median(ask() for _ in range(3))
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiled:
        watched = ask()
    events = profiled.events() or []
    kernels = [one for one in events if one.device_type == DeviceType.CUDA]
    on_host = [one for one in events if one.device_type == DeviceType.CPU]
    spans = [(one.time_range.start, one.time_range.end) for one in kernels]
    busy = busy_us(spans) / 1e3
    summed = sum(end - start for start, end in spans) / 1e3
    launches = sum("Launch" in one.name for one in on_host)
    host = sum(one.self_cpu_time_total for one in on_host if one.name not in WAITS) / 1e3
    bound = "device" if busy > 0.8 * plain else "host"
    lines = [
        f"{count} new ids behind {len(talk.ids)}, {way(talk.engine.executor, count, few_rows)}: "
        f"{plain:.2f} ms, {watched:.2f} ms when profiled",
        f"CUDA: {len(kernels)} kernels and copies, {summed:.2f} ms in all; busy for {busy:.2f} ms "
        f"of {plain:.2f}: {bound}-bound",
        f"CPU:  {launches} launches; {host:.2f} ms in operators and the CUDA runtime, waits apart",
        *table("by CUDA time", kernels, lambda one: one.time_range.elapsed_us()),
        *table("by CPU time, of its own", on_host, lambda one: one.self_cpu_time_total),
    ]
    print("\n".join(["", *lines[:3]]))
    print("\n".join(lines), file=file)
    python = cProfile.Profile()
    python.runcall(ask)
    print("\nPython's functions, by their own time:", file=file)
    pstats.Stats(python, stream=file).strip_dirs().sort_stats("tottime").print_stats(TOP)


def busy_us(spans: Iterable[tuple[float, float]]) -> float:
    """Microseconds in which at least one of the spans runs."""
    busy, done = 0.0, float("-inf")
    for start, end in sorted(spans):
        busy += max(0.0, end - max(start, done))
        done = max(done, end)
    return busy


def table(title: str, events: Sequence[Any], cost: Any) -> list[str]:
    """The most expensive names, as lines."""
    costs: dict[str, list[float]] = defaultdict(list)
    for one in events:
        costs[one.name].append(cost(one))
    rows = sorted(costs.items(), key=lambda item: -sum(item[1]))[:TOP]
    return ["", f"{title}: ms, calls, us each", *(
        f"{sum(values) / 1e3:9.3f} {len(values):6} {sum(values) / len(values):9.2f}  {name[:90]}"
        for name, values in rows
    )]  # fmt: skip


def print_table(metrics: dict[str, Any]) -> None:
    """A line for each number of new ids."""
    print(f"\n{'new ids':>7} {'way':>6} {'ms':>8} {'engine ms':>18} {'the other way':>22}")
    counts = {one["case"]["new_tokens"]: one["case"]["way"] for name, one in metrics.items()
              if name.endswith(".ms")}  # fmt: skip
    for count, own in counts.items():
        total, engine = metrics[f"new_{count}.ms"], metrics[f"new_{count}.engine_ms"]
        low, high = min(engine["samples"]), max(engine["samples"])
        line = f"{count:7} {own:>6} {total['median']:8.2f} {engine['median']:8.2f}"
        line += f" ({low:.1f}-{high:.1f})".rjust(14)
        other = metrics.get(f"new_{count}.other_way.engine_ms")
        if other is not None:
            line += f"{other['case']['way']:>10} {other['median']:8.2f}"
        print(line)


def main(argv: list[str] | None = None) -> int:
    """Measure, write the files, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--model", default="random:qwen3.5-27b")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--draft", default="mtp")
    parser.add_argument("--prompt-tokens", type=int, default=8192)
    parser.add_argument("--new", type=int, nargs="+", default=[1, 8, 16, 47, 128, 512])
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--both-ways", type=int, default=64, metavar="ROWS")
    parser.add_argument("--profile", type=Path, metavar="FILE")
    parser.add_argument("--profile-new", type=int, default=47, metavar="COUNT")
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    arguments = parser.parse_args(argv)
    talk = Conversation(load(arguments), arguments.prompt_tokens)
    metrics = measure(arguments, talk)
    write(arguments.json, "short_prompts", metrics, arguments.commit, argv)
    print_table(metrics)
    if arguments.profile is not None:
        write_profiles(talk, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
