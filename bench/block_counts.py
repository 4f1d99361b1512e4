"""How many blocks a product should have: the time of a turn for each number, by turns.

    python bench/block_counts.py --json FILE [--model random:qwen3.5-27b] [--rows 1]
        [--position 1024] [--most N] [--try ROWSxCOLUMNSxBLOCKS ...]

A grid of ``w4_matvec`` is by default a few blocks smaller than what the card runs at once, or
smaller yet where all warps then have equal shares (``matvec_blocks`` in csrc/matvec.h). Else they
differ by an item, and blocks have row blocks in common, whose sums they exchange. Tried is every
grid below the largest, down to half, whose warps all have the same number of items; and last, all
at once, the best grid of each matrix. The order of summation depends on the grid: the numbers
differ in their last bits, which no kernel's time minds.
"""

import argparse
import statistics
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import bytebound_kernels as bk
import torch
from bytebound import Engine, SamplingParams
from bytebound.cuda.cycle import Form
from bytebound.cuda.matrices import PackedMatrix
from bytebound.cuda.sampling import Choice
from bytebound.cuda.weights import iter_matrices
from decode import some_prompt, write
from step_parts import TURNS, Variant, turn_times

ITEM_ROWS, ITEM_COLUMNS, WARPS = 64, 128, 8  # csrc/cuda/w4.cuh, csrc/matvec.h
MARGIN = 10 * TURNS  # positions, of which a turn takes up to eight
LEAST_GAIN = 0.001  # of a turn, for a grid to be among the best

Kind = tuple[int, int]  # packed rows and columns
Grids = Mapping[Kind, int]


def kind_of(weight: bk.PackedW4) -> Kind:
    """Matrices of a kind have the same items."""
    return weight.n * (1 + weight.interleaved), weight.k


def name_of(kind: Kind) -> str:
    """As ``--try`` has it."""
    return f"{kind[0]}x{kind[1]}"


def even_grids(kind: Kind, most: int) -> list[int]:
    """Grids from half of ``most`` blocks up, below it, in which every warp has as many items."""
    items = -(-kind[0] // ITEM_ROWS) * (kind[1] // ITEM_COLUMNS)
    return [one for one in range(most // 2, most) if items % (one * WARPS) == 0]


@contextmanager
def grids_of(grids: Grids) -> Iterator[None]:
    """Give the products of some kinds grids of their own."""
    original = bk.w4_matvec

    def instead(x: Any, weight: bk.PackedW4, **options: Any) -> Any:
        return original(x, weight, num_blocks=grids.get(kind_of(weight)), **options)

    with patch.object(bk, "w4_matvec", instead):
        yield


def recorded(variants: Mapping[str, Grids]) -> dict[str, Variant]:
    """As ``turn_times`` takes them."""
    return {name: partial(grids_of, grids) for name, grids in variants.items()}


def best_of(times: Mapping[str, list[float]], variants: Mapping[str, Grids]) -> dict[Kind, int]:
    """Of each kind the fastest grid that gains something."""
    whole = statistics.median(times["default"])
    found: dict[Kind, int] = {}
    gains: dict[Kind, float] = {}
    for name, grids in variants.items():
        gain = 1 - statistics.median(times[name]) / whole
        for kind, grid in grids.items():
            if gain > gains.get(kind, LEAST_GAIN):
                found[kind], gains[kind] = grid, gain
    return found


def asked_for(words: Iterable[str]) -> dict[Kind, list[int]]:
    """``ROWSxCOLUMNSxBLOCKS`` as grids to try besides."""
    found: dict[Kind, list[int]] = {}
    for word in words:
        rows, columns, blocks = map(int, word.split("x"))
        found.setdefault((rows, columns), []).append(blocks)
    return found


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All metrics by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        engine = Engine.from_pretrained(
            arguments.model, backend="cuda", draft="none", max_len=arguments.position + MARGIN
        )
    engine.generate(some_prompt(arguments.position), SamplingParams(max_tokens=1))
    matrices = iter_matrices(engine.executor.weights)
    kinds = {kind_of(one.weight): None for one in matrices if isinstance(one, PackedMatrix)}
    most = arguments.most or 2 * torch.cuda.get_device_properties(0).multi_processor_count
    besides = asked_for(arguments.tried)
    variants: dict[str, dict[Kind, int]] = {"default": {}}
    for kind in kinds:
        for grid in sorted({*even_grids(kind, most), *besides.get(kind, [])}):
            variants[f"{name_of(kind)}.blocks{grid}"] = {kind: grid}
    metrics: dict[str, Any] = {}
    for rows in arguments.rows:
        form = Form.of(Choice(rows - 1), rows - 1)
        times = turn_times(engine, form, arguments.position, recorded(variants))
        best = best_of(times, variants)
        # By turns again: the best ones together, and the default beside them.
        together = {"default_again": {}, "best": best}
        times |= turn_times(engine, form, arguments.position, recorded(together))
        for name, values in times.items():
            grids = best if name == "best" else variants.get(name, {})
            case = {
                "rows": rows,
                "position": arguments.position,
                "blocks": {name_of(kind): grid for kind, grid in grids.items()},
                "blocks_of_others": "default",
                "most_blocks": most,
            }
            metrics[f"rows{rows}.{name}.us"] = {
                "unit": "us", "better": "lower", "median": statistics.median(values),
                "samples": values, "case": case,
            }  # fmt: skip
    return metrics


def main(argv: list[str] | None = None) -> int:
    """Measure, write the file, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--model", default="random:qwen3.5-27b")
    parser.add_argument("--position", type=int, default=1024)
    parser.add_argument("--rows", type=int, nargs="+", default=[1], choices=range(1, 9))
    parser.add_argument("--most", type=int, help="blocks that the card runs at once")
    parser.add_argument(
        "--try", dest="tried", nargs="+", default=[], metavar="ROWSxCOLUMNSxBLOCKS",
        help="grids to try besides",
    )  # fmt: skip
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    arguments = parser.parse_args(argv)
    write(arguments.json, "block_counts", measure(arguments), arguments.commit, argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
