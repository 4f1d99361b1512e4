"""Quantization of one layer of each kind at the 27B shape: time, memory, and RTN's speed.

    python bench/quant_layer.py --json FILE [--device cuda] [--repeats 5] [--limit-s SECONDS]

GPTQ runs the job's own layer code with the command's default options on random weights and random
hidden states, those of the quantized and those of the 16-bit run, which lie in host memory as in a
real run. One ``LayerJob`` serves all layers, as there. Random values are right for time and memory
and say nothing of quality.

``gptq_layer.s`` is the slower kind of layer; the case of ``gptq_layer.<kind>.s`` says how the
median sample came about, matrix by matrix. GPU memory is what torch took from the card, unused
blocks included. The file holds all samples in the form that bench/README.md describes and is whole
after every layer, so that a run which is cut short leaves what it has measured. ``--shape small``
is for trying it.
"""

import argparse
import json
import math
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bytebound import tensor_names as names
from bytebound.config import LayerType, ModelConfig
from bytebound_quant.grid import Scheme
from bytebound_quant.hessian import Hessian
from bytebound_quant.layer_job import LayerJob
from bytebound_quant.layers import build_layer, converted, field_tails
from bytebound_quant.matrices import GptqOptions, block_rows, fit_matrix, round_matrix
from bytebound_quant.packing import unpack
from bytebound_quant.plan import LAYER_MATRICES

_SMI_FIELDS = (
    "name",
    "driver_version",
    "power.limit",
    "clocks.current.sm",
    "clocks.current.memory",
)

KINDS: dict[str, LayerType] = {"attention": "full_attention", "gated_delta": "linear_attention"}

SHAPES: dict[str, dict[str, Any]] = {
    "27b": {
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
    "small": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
    },
}


def config_of(shape: str) -> ModelConfig:
    """A model of that shape with one layer of each kind."""
    return ModelConfig(
        vocab_size=256,
        num_hidden_layers=2,
        layer_types=("linear_attention", "full_attention"),
        linear_conv_kernel_dim=4,
        rms_norm_eps=1e-6,
        rope_theta=1e7,
        partial_rotary_factor=0.25,
        max_position_embeddings=1 << 20,
        tie_word_embeddings=False,
        **SHAPES[shape],
    )


def random_layer(
    config: ModelConfig, kind: LayerType, device: torch.device
) -> dict[str, torch.Tensor]:
    """The stored tensors of one layer by the tail of their names, bfloat16 on the host."""
    draw = torch.Generator(device).manual_seed(0)
    tensors = {}
    for tail, shape in names.layer_shapes(config, kind).items():
        values = torch.randn(shape, generator=draw, device=device)
        if len(shape) == 2:
            values *= shape[1] ** -0.5
        elif tail.endswith(names.GATED_DELTA["norm"]):
            values = 1 + 0.1 * values
        elif len(shape) == 1:
            values *= 0.1
        tensors[tail] = values.to(torch.bfloat16).cpu()
    return tensors


class Clock:
    """Where the time of one layer goes: moments, solving, and all else (forward passes, copies)."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: list[tuple[Any, Any]] = []
        self._last = self._now()
        self.begun = self._last
        self.rows: list[str] = []

    def add(self, moment: Hessian, *given: Any) -> None:
        """``Hessian.add``, timed on the device without waiting for it."""
        start = self._mark()
        _ADD(moment, *given)
        self._spans.append((start, self._mark()))

    def solved(self, field: str, begun: float) -> None:
        """A matrix is done; ``begun`` is when its inputs were all seen."""
        now = self._now()
        moments = sum(self._between(*span) for span in self._spans)
        self._note(field, moments, now - begun, begun - self._last - moments)
        self._last, self._spans = now, []

    def done(self) -> float:
        """Seconds of the whole layer."""
        now = self._now()
        self._note("rest", 0, 0, now - self._last)
        return now - self.begun

    def now(self) -> float:
        """The time when the device is done with all that it was given."""
        return self._now()

    def _note(self, field: str, moments: float, solve: float, forward: float) -> None:
        self.rows.append(f"{field} {moments:.2f} + {solve:.2f} + {forward:.2f}")
        _say(f"  {self.rows[-1]}", self.begun)

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _between(self, start: Any, end: Any) -> float:
        if self._device.type != "cuda":
            return float(end - start)
        return float(start.elapsed_time(end)) / 1e3


_ADD = Hessian.add


def gptq_layer(
    job: LayerJob, kind: LayerType, tensors: dict[str, torch.Tensor], device: torch.device
) -> tuple[float, str]:
    """Seconds for all matrices of the layer and the way of the states through it, and where."""
    scheme, dtype = Scheme(), job.states.dtype
    tails = {
        field: tail for field, tail in field_tails(kind).items() if tail.endswith(LAYER_MATRICES)
    }
    clock = Clock(device)

    def solve(field: str, moment: Hessian) -> torch.Tensor:
        begun = clock.now()
        weight = tensors[tails[field]]
        blocks = weight.split(block_rows(weight.shape[1]))  # type: ignore[no-untyped-call]
        packed = fit_matrix(blocks, moment, scheme, GptqOptions(), device).packed
        moved = {
            tail: tensor if tail == "weight_shape" else tensor.to(device)
            for tail, tensor in packed.items()
        }
        matrix = unpack(moved, scheme).dequantize(dtype)
        clock.solved(field, begun)
        return matrix

    layer = build_layer(lambda name: converted(name, tensors[name], dtype, device), "", kind)
    Hessian.add = lambda moment, *given: clock.add(moment, *given)  # type: ignore[method-assign]
    try:
        job.quantize(layer, tails, solve)
    finally:
        Hessian.add = _ADD  # type: ignore[method-assign]
    return clock.done(), "; ".join(clock.rows)


def rtn_speed(matrices: list[torch.Tensor], device: torch.device) -> float:
    """Gigabytes of bfloat16 weights a second, from host memory to packed tensors in it."""
    _synchronize(device)
    begun = time.perf_counter()
    for weight in matrices:
        blocks = weight.split(block_rows(weight.shape[1]))  # type: ignore[no-untyped-call]
        round_matrix(blocks, Scheme(), mse=False, device=device)
    _synchronize(device)
    seconds = time.perf_counter() - begun
    return sum(weight.numel() * weight.element_size() for weight in matrices) / seconds / 1e9


class Runs:
    """What the layers of each kind took so far, and the metrics that it makes."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.metrics: dict[str, Any] = {}
        self._layers: dict[str, list[tuple[float, str]]] = {label: [] for label in KINDS}
        self._reserved: list[float] = []
        self._allocated: list[float] = []

    def add(self, label: str, seconds: float, parts: str, device: torch.device) -> None:
        """Take one layer in."""
        self._layers[label].append((seconds, parts))
        if device.type == "cuda":
            self._reserved.append(torch.cuda.max_memory_reserved(device) / 2**30)
            self._allocated.append(torch.cuda.max_memory_allocated(device) / 2**30)
            self.metrics["gptq_peak_vram_gib"] = self._metric("GiB", self._reserved)
            self.metrics["gptq_peak_allocated_gib"] = self._metric("GiB", self._allocated)
        for one, samples in self._layers.items():
            if samples:
                middle = sorted(samples)[(len(samples) - 1) // 2][1]
                more = {"layer": one, "moments + solve + forward": middle}
                times = [time for time, _ in samples]
                self.metrics[f"gptq_layer.{one}.s"] = self._metric("s", times, more)
        done = [one for one, samples in self._layers.items() if samples]
        slower = max(done, key=lambda one: self.metrics[f"gptq_layer.{one}.s"]["median"])
        times = self.metrics[f"gptq_layer.{slower}.s"]["samples"]
        self.metrics["gptq_layer.s"] = self._metric("s", times, {"layer": slower})
        host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        self.metrics["gptq_peak_host_gib"] = self._metric("GiB", [host])

    def _metric(self, unit: str, samples: list[float], more: dict[str, Any] | None = None) -> Any:
        return _metric(unit, "lower", list(samples), {**self.case, **(more or {})})


def measure(
    arguments: argparse.Namespace, device: torch.device, keep: Callable[[dict[str, Any]], object]
) -> dict[str, Any]:
    """All metrics by name; ``keep`` is told of them after every layer, the kinds by turns."""
    begun = time.perf_counter()
    config = config_of(arguments.shape)
    shape = (arguments.windows, arguments.window, config.hidden_size)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    states = torch.empty(shape, dtype=dtype)
    if not GptqOptions().compensate:
        raise RuntimeError("the default has no 16-bit run; leave ideal out")
    ideal = torch.empty_like(states)
    kept = (states.nbytes + ideal.nbytes) / 2**30
    runs = Runs(
        {
            "model": f"random weights, {arguments.shape} shape",
            "windows": arguments.windows,
            "window": arguments.window,
            "scheme": Scheme().describe(),
            "dtype": str(dtype).removeprefix("torch."),
            "options": "defaults",
            "hidden states of both runs": f"{kept:.2f} GiB on the host",
        }
    )
    layers = {label: random_layer(config, kind, device) for label, kind in KINDS.items()}
    runs.metrics["rtn_gb_s"] = rtn_metric(layers, runs.case, device)
    keep(runs.metrics)
    job = LayerJob(config, states, device, ideal)
    longest, done = 0.0, 0
    for turn in range(arguments.repeats):
        for label, kind in KINDS.items():
            start = time.perf_counter()
            if turn > 0 and start - begun + longest > arguments.limit_s:
                _say(f"{done} layers in the time", begun)
                return runs.metrics
            for index in range(arguments.windows):
                values = torch.randn(shape[1:], device=device)
                ideal[index] = values
                states[index] = values + 0.05 * torch.randn_like(values)
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats(device)
            seconds, parts = gptq_layer(job, kind, layers[label], device)
            runs.add(label, seconds, parts, device)
            keep(runs.metrics)
            done, longest = done + 1, max(longest, time.perf_counter() - start)
            _say(f"{label}: {seconds:.2f} s", begun)
    return runs.metrics


def rtn_metric(
    layers: dict[str, dict[str, torch.Tensor]], case: dict[str, Any], device: torch.device
) -> dict[str, Any]:
    """Rounding of all matrices of both layers, five times after one that warms up."""
    matrices = [
        tensors[tail]
        for tensors in layers.values()
        for tail in tensors
        if tail.endswith(LAYER_MATRICES)
    ]
    rtn_speed(matrices[:1], device)
    speeds = [rtn_speed(matrices, device) for _ in range(5)]
    about = {"model": case["model"], "scheme": case["scheme"], "mse": False}
    return _metric("GB/s", "higher", speeds, about)


def main(argv: list[str] | None = None) -> int:
    """Measure, write the file after every layer, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="27b", choices=tuple(SHAPES))
    parser.add_argument("--windows", type=int, default=256)
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=5, help="layers of each kind, at most")
    parser.add_argument(
        "--limit-s", type=float, default=math.inf, metavar="S",
        help="begin no layer, after one of each kind, that would end later than this",
    )  # fmt: skip
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    arguments = parser.parse_args(argv)
    device = torch.device(arguments.device)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)

    def keep(metrics: dict[str, Any]) -> None:
        content = {
            "schema": 1,
            "machine": machine(device),
            "commit": arguments.commit or _commit(),
            "command": f"python bench/quant_layer.py {_arguments(argv or sys.argv[1:])}",
            "note": "Random weights and hidden states: right for time and memory, not for quality.",
            "metrics": metrics,
        }
        arguments.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    for name, metric in measure(arguments, device, keep).items():
        print(f"{name:28} {metric['median']:10.2f} {metric['unit']}")
    return 0


def machine(device: torch.device) -> dict[str, Any]:
    """What decides the numbers: processor or card, threads, versions."""
    common = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    if device.type == "cuda":
        return {**card(device), "cuda": torch.version.cuda, **common}
    return {"cpu": platform.processor() or platform.machine(), **common}


def card(device: torch.device) -> dict[str, str]:
    """Name, driver, power limit and clocks, as nvidia-smi has them."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_SMI_FIELDS)}"]
    command += ["--format=csv,noheader,nounits", f"--id={device.index or 0}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        row = done.stdout.strip().split(", ")
    except (OSError, subprocess.CalledProcessError):
        row = [torch.cuda.get_device_name(device)] + ["unknown"] * (len(_SMI_FIELDS) - 1)
    name, driver, power, sm, memory = row
    clocks = f"{sm} MHz SM and {memory} MHz memory after the run"
    return {"gpu": name, "driver": driver, "power_limit_w": power, "clocks": clocks}


def _metric(unit: str, better: str, samples: list[float], case: dict[str, Any]) -> dict[str, Any]:
    return {
        "unit": unit,
        "better": better,
        "median": statistics.median(samples),
        "samples": samples,
        "case": case,
    }


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _say(what: str, begun: float) -> None:
    print(f"{time.perf_counter() - begun:7.1f} s {what}", file=sys.stderr, flush=True)


def _arguments(argv: list[str]) -> str:
    """The command line as a result file records it: without the folders of one machine."""
    return " ".join(Path(word).name if "/" in word else word for word in argv)


def _commit() -> str:
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
