"""What the number format of activations costs in quality: the shipped model, in 4 bits, by RTN.

    python bench/fixed_point.py --work DIR --json FILE [--tokens N]

The reference backend computes in float32 and, before each product with a matrix in 4 bits, rounds
the activations as a kernel takes them:

- ``bfloat16``, ``float16``: the type alone, as the kernels for many rows do;
- ``fixed_point``: float16, then 15 bits and a sign under the largest of each group of 128 columns,
  as ``w4_matvec`` does.

Each is compared with the same model whose activations stay in float32: ``<format>.kl``,
``<format>.top1`` and ``<format>.ppl`` as ``bytebound-evals kl`` measures them on the held-out text.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bytebound
import torch
from bytebound.reference.executor import ReferenceExecutor
from bytebound.weights import iter_tensors
from bytebound_evals.conditions import commit_record, machine_record
from bytebound_evals.divergence import LiveReference, measure_divergence
from bytebound_evals.measured_text import TextSettings
from bytebound_evals.model_run import ModelRun
from bytebound_evals.quality_metrics import divergence_metrics
from bytebound_evals.results import Metric, Result, write_result
from bytebound_kernels.ops.w4_matvec.reference import fixed_point_reference
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

WINDOW = 1024
GATES = ("in_proj_a", "in_proj_b")  # stay in 16 bits
FORMATS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bfloat16": lambda x: x.bfloat16().float(),
    "float16": lambda x: x.half().float(),
    "fixed_point": lambda x: fixed_point_reference(x.half()).float(),
}


class Rounded(TorchFunctionMode):
    """Rounds what products with some matrices get."""

    def __init__(self, matrices: Iterable[torch.Tensor], form: str) -> None:
        super().__init__()
        self._ids = {id(matrix) for matrix in matrices}
        self._round = FORMATS[form]
        self.num_products = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is linear and id(args[1]) in self._ids:
            self.num_products += 1
            return linear(self._round(args[0]), args[1])
        return func(*args, **(kwargs or {}))


def matrices_of(engine: bytebound.Engine) -> Iterator[torch.Tensor]:
    """The matrices that are in 4 bits on a GPU."""
    executor = engine.executor
    if not isinstance(executor, ReferenceExecutor):
        raise RuntimeError("this measurement needs the reference backend")
    yield executor.weights.lm_head
    for layer in executor.weights.layers:
        for path, tensor in iter_tensors(layer):
            if tensor.dim() == 2 and path.rpartition(".")[2] not in GATES:
                yield tensor


@contextmanager
def rounded(engine: bytebound.Engine, form: str) -> Iterator[None]:
    """Compute in that format; without a single product in it something is wrong."""
    with Rounded(matrices_of(engine), form) as mode:
        yield
    if not mode.num_products:
        raise RuntimeError("no product with a matrix of this engine was found")


def measure(folder: Path, max_tokens: int | None) -> dict[str, Metric]:
    """All formats, against float32."""
    exact, engine = (ModelRun(str(folder), device="cpu", dtype="float32").open() for _ in range(2))
    text = TextSettings(window=WINDOW, max_tokens=max_tokens).cut(exact.tokenizer)
    metrics: dict[str, Metric] = {}
    for form in FORMATS:
        with rounded(engine, form):
            judged = measure_divergence(engine, LiveReference(exact, text), text)
        found = divergence_metrics(form, "tiny", "float32 activations", text, judged)
        for name, value in found.items():
            print(f"{name:36} {value.median:.5g}", flush=True)
        metrics |= found
    return metrics


def main() -> int:
    """Quantize, measure, write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--tokens", type=int, help="of the held-out text; all without it")
    arguments = parser.parse_args()
    folder = arguments.work / "rtn"
    if not folder.exists():
        arguments.work.mkdir(parents=True, exist_ok=True)
        quant = str(Path(sys.executable).with_name("bytebound-quant"))
        subprocess.run([quant, "rtn", "tiny", str(folder)], check=True, stdout=subprocess.DEVNULL)
    result = Result(
        machine=machine_record("cpu"),
        commit=commit_record(),
        command="python bench/fixed_point.py --work DIR --json FILE"
        + (f" --tokens {arguments.tokens}" if arguments.tokens else ""),
        note="KL(float32 activations || format) in nats; weights in 4 bits (RTN) in both.",
        metrics=measure(folder, arguments.tokens),
    )
    write_result(arguments.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
