"""Where the time of a weight stream goes: per block of the grid, per op, as a picture.

    python bench/stream_timeline.py record --out FILE.npz [--model random:qwen3.5-27b] [--rows 1]
    python bench/stream_timeline.py draw FILE.npz --out FILE.svg
    python bench/stream_timeline.py spread FILE.npz

``record`` needs a GPU: it runs a pass a few times and keeps the clock of some ops of the last one,
as ``weight_stream(clock=...)`` writes it: for every op and block when its first warp began, had its
input (where it has items), was done with its items, and had handed over. ``draw`` needs matplotlib.
``spread`` says how far apart the blocks are done with the items of each product, and whether it is
the same blocks that are late in every product of a shape.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

STAMPS = 4
WARM_UPS = 3
COLORS = {"waiting": "#d9d9d9", "items": "#4c78a8", "handing over": "#f58518", "op": "#72b7b2"}


def record(arguments: argparse.Namespace) -> None:
    """Run one launch of the stream and keep its clock, in microseconds from its first stamp."""
    import torch
    from bytebound import Engine
    from bytebound.cuda.stream import StreamStep

    engine = Engine.from_pretrained(
        arguments.model, backend="cuda", engine="stream", draft="none", max_len=1024
    )
    step = engine.executor.step
    if not isinstance(step, StreamStep):
        raise SystemExit("error: this engine runs no weight stream")
    program = step.program
    chosen = slice(*arguments.ops)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    clock = torch.zeros(len(program.ops), STAMPS, sms, dtype=torch.int64, device="cuda")
    with torch.inference_mode():
        for _ in range(WARM_UPS):
            step.activations.mark(arguments.rows)
            program.run(rows=arguments.rows, workspace=step.workspace, clock=clock)
        torch.cuda.synchronize()
    stamps = clock[chosen].cpu().numpy().astype(np.float64) / 1e3
    began = stamps[0, 0].min()
    np.savez_compressed(
        arguments.out,
        stamps=np.where(stamps > 0, stamps - began, np.nan),
        names=[name_of(op) for op in program.ops[chosen]],
        rows=arguments.rows,
    )


def name_of(op: object) -> str:
    """An op in a word or two; a product by its shape."""
    kind = type(op).__name__.removeprefix("Stream")
    if kind != "Product":
        return {"GatedDelta": "delta"}.get(kind, kind.lower())
    weight = op.weight  # type: ignore[attr-defined]
    return f"{weight.n} x {weight.k}"


def draw(arguments: argparse.Namespace) -> None:
    """A line for every block, a bar for what it did."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with np.load(arguments.recorded) as kept:
        stamps, names = kept["stamps"], [str(name) for name in kept["names"]]
    figure, axes = plt.subplots(figsize=(16, 8))
    blocks = np.arange(stamps.shape[2])
    for i, name in enumerate(names):
        begin, there, done, end = stamps[i]
        if np.isnan(there).all():
            spans = [("op", begin, end)]
        else:
            there = np.where(np.isnan(there), done, there)
            spans = [("waiting", begin, there), ("items", there, done), ("handing over", done, end)]
        for label, left, right in spans:
            axes.barh(blocks, right - left, left=left, height=1.0, color=COLORS[label], linewidth=0)
        axes.text(np.nanmedian(begin), len(blocks) + 1, name, rotation=60, fontsize=7)
    for label, color in COLORS.items():
        axes.barh(
            [-5],
            [0],
            color=color,
            label="any other op" if label == "op" else label,
        )
    axes.set(xlabel="us", ylabel="block", xlim=(0, np.nanmax(stamps)), ylim=(0, len(blocks)))
    axes.legend(loc="lower right")
    figure.tight_layout(rect=(0, 0, 1, 0.9))
    figure.savefig(arguments.out, dpi=110)


def lateness(stamps: np.ndarray, product: int) -> np.ndarray:
    """How long after the median block each one with items of a product was done, in us [blocks]."""
    there, done = stamps[product, 1:3]
    done = done[~np.isnan(there)]
    late: np.ndarray = done - np.median(done)
    return late


def spread(arguments: argparse.Namespace) -> None:
    """Print, for each shape of a product, the spread of its blocks and how constant it is."""
    with np.load(arguments.recorded) as kept:
        stamps, names = kept["stamps"], [str(name) for name in kept["names"]]
    print(f"{'product':>14}  calls  first  last  deviation, us  of which constant  correlation")
    for name in dict.fromkeys(name for name in names if " x " in name):
        calls = np.array([lateness(stamps, i) for i, one in enumerate(names) if one == name])
        first, last = calls.min(axis=1).mean(), calls.max(axis=1).mean()
        line = f"{name:>14}  {len(calls):5}  {first:5.1f}  {last:4.1f}  {calls.std():13.2f}"
        if len(calls) > 1:
            apart = np.corrcoef(calls)[np.triu_indices(len(calls), 1)].mean()
            chance = (calls - calls.mean(axis=0)).var() * len(calls) / (len(calls) - 1)
            constant = max(calls.var() - chance, 0.0) ** 0.5
            line += f"  {constant:17.2f}  {apart:11.2f}"
        print(line)


def main(argv: list[str] | None = None) -> int:
    """Record, draw, or print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(required=True)
    recorder = commands.add_parser("record")
    recorder.add_argument("--out", type=Path, required=True, metavar="FILE.npz")
    recorder.add_argument("--model", default="random:qwen3.5-27b")
    recorder.add_argument("--rows", type=int, default=1, choices=range(1, 9))
    recorder.add_argument(
        "--ops", type=int, nargs=2, default=(34, 70), metavar=("FIRST", "END"),
        help="of the pass; as many as a picture has room for",
    )  # fmt: skip
    recorder.set_defaults(run=record)
    drawer = commands.add_parser("draw")
    drawer.add_argument("recorded", type=Path, metavar="FILE.npz")
    drawer.add_argument("--out", type=Path, required=True, metavar="FILE.svg")
    drawer.set_defaults(run=draw)
    printer = commands.add_parser("spread")
    printer.add_argument("recorded", type=Path, metavar="FILE.npz")
    printer.set_defaults(run=spread)
    arguments = parser.parse_args(argv)
    arguments.run(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
