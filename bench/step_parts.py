"""What each op of a step costs: the time of a turn with and without it.

    python bench/step_parts.py --json FILE [--model random:qwen3.5-27b] [--position 1024] [--rows 1]

An op is taken out of the recorded turn, and the turn is timed again, by turns with the whole one.
What a turn gains is what the op costs in its place, hand-over to its neighbours included; a kernel
timed alone does not show that. The values that flow then are wrong, which no kernel's time minds.
"""

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import bytebound_kernels as bk
import torch
from bytebound import Engine, SamplingParams
from bytebound.cuda.cycle import Form
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.matrices import DenseMatrix, PackedMatrix
from bytebound.cuda.sampling import Choice, DeviceSampler
from bytebound.cuda.weights import GatedDeltaWeights, ModelWeights
from decode import some_prompt, write

TURNS, ROUNDS = 20, 5

Variant = Callable[[], AbstractContextManager[Any]]
"""Changes what is recorded within."""


def nothing(*args: Any, **options: Any) -> Any:
    """Stands in for an op."""
    return options.get("out")


@contextmanager
def without_matrices(chosen: Callable[[Any], bool]) -> Iterator[None]:
    """Leave out the products of some matrices."""
    kept = {kind: kind.matvec for kind in (DenseMatrix, PackedMatrix)}

    def instead(kind: type) -> Callable[..., None]:
        return lambda self, *rest, **more: None if chosen(self) else kept[kind](self, *rest, **more)

    with (
        patch.object(DenseMatrix, "matvec", instead(DenseMatrix)),
        patch.object(PackedMatrix, "matvec", instead(PackedMatrix)),
    ):
        yield


def without_gates() -> AbstractContextManager[Any]:
    """Leave out the small products beside others."""
    real = bk.w4_matvec

    def instead(
        *args: Any, beside_weight: Any = None, beside_out: Any = None, **options: Any
    ) -> Any:
        return real(*args, **options)

    return patch.object(bk, "w4_matvec", instead)


def parts(weights: ModelWeights) -> dict[str, Any]:
    """Context managers that take an op out, by its name."""
    groups: dict[str, set[int]] = {}
    for layer in weights.layers:
        mixer = layer.mixer
        named = {"gate_up": layer.mlp.gate_up, "down_proj": layer.mlp.down_proj}
        if isinstance(mixer, GatedDeltaWeights):
            named |= {"in_proj": mixer.in_proj, "out_proj": mixer.out_proj}
        else:
            named |= {"qkv": mixer.qkv, "o_proj": mixer.o_proj}
        for name, matrix in named.items():
            groups.setdefault(name, set()).add(id(matrix))
    groups["lm_head"] = {id(weights.lm_head)}
    found = {
        name: lambda ids=ids: without_matrices(lambda matrix: id(matrix) in ids)
        for name, ids in groups.items()
    }
    everything = set().union(*groups.values())
    found["all_products"] = lambda: without_matrices(lambda matrix: id(matrix) in everything)
    for op in (
        "rms_norm", "rms_norm_project", "gdn_step", "attention_decode", "embedding_gather",
    ):  # fmt: skip
        found[op] = lambda op=op: patch.object(bk, op, nothing)
    found["gates"] = without_gates
    found["choose"] = lambda: patch.object(DeviceSampler, "choose", nothing)
    return found


def turn_times(
    engine: Engine, form: Form, position: int, variants: Mapping[str, Variant]
) -> dict[str, list[float]]:
    """Microseconds of a turn as recorded under each variant, by turns; ``ROUNDS`` samples each."""
    executor = engine.executor
    decoders, times = {}, {name: list[float]() for name in variants}
    for name, variant in variants.items():
        decoder = decoders[name] = CudaDecoder(executor, None, 1)
        buffers = executor.step.buffers
        decoder.cycle.begin(buffers.logits[0], buffers.hidden[:1], position)
        with variant(), torch.inference_mode():
            decoder._run("turn", form)
    for turn in range(ROUNDS + 1):
        for name, decoder in decoders.items():
            executor.state.position.fill_(position)
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(TURNS):
                decoder._run("turn", form)
            torch.cuda.synchronize()
            if turn > 0:
                times[name].append(1e6 * (time.perf_counter() - begun) / TURNS)
    return times


def main(argv: list[str] | None = None) -> int:
    """Measure, write the file, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--model", default="random:qwen3.5-27b")
    parser.add_argument("--position", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    arguments = parser.parse_args(argv)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        engine = Engine.from_pretrained(
            arguments.model, backend="cuda", draft="none", max_len=arguments.position + 4096
        )
    executor, form = engine.executor, Form.of(Choice(arguments.rows - 1), arguments.rows - 1)
    engine.generate(some_prompt(arguments.position), SamplingParams(max_tokens=1))
    found = {"nothing": nullcontext, **parts(executor.weights)}
    times = turn_times(engine, form, arguments.position, found)
    whole, metrics = statistics.median(times["nothing"]), dict[str, Any]()
    for name, values in times.items():
        cost = [whole - value for value in values] if name != "nothing" else values
        metrics[f"{name if name != 'nothing' else 'whole'}.us"] = {
            "unit": "us", "better": "lower", "median": statistics.median(cost), "samples": cost,
            "case": {"rows": arguments.rows, "position": arguments.position},
        }  # fmt: skip
    write(arguments.json, "step_parts", metrics, arguments.commit, argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
