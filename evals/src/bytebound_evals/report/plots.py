"""The plots of a report, as PNG files. A plot without data is not drawn."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bytebound_evals.report.series import (
    Series,
    Source,
    decode_by_context,
    kl_against_bits,
    roofs,
    speed_by_prompt,
)
from bytebound_evals.speed.prompts import NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOG_RANGE = 8  # where the largest token reads so many times the smallest, axes are logarithmic
SIZE = (8.0, 4.6)  # inches
DPI = 130


@dataclass(frozen=True, slots=True)
class Plot:
    """One picture and what it shows."""

    file: Path
    title: str
    text: str


def draw_all(sources: Sequence[Source], folder: Path) -> list[Plot]:
    """Draw into ``folder`` whatever the results have data for.

    Raises:
        OSError: the folder or a file cannot be written.
    """
    plots = []
    for draw in (_decode, _prompts, _kl, _roofline):
        plot = draw(sources, folder)
        if plot is not None:
            plots.append(plot)
    return plots


@contextmanager
def _figure(file: Path) -> "Iterator[Axes]":
    import matplotlib

    matplotlib.use("agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=True, alpha=0.3)
    axes.set_axisbelow(True)
    yield axes
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside upper center", ncols=4, fontsize="small")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Software": None})


def _decode(sources: Sequence[Source], folder: Path) -> Plot | None:
    series = decode_by_context(sources)
    if not series:
        return None
    file = folder / "decode_by_context.png"
    with _figure(file) as axes:
        _lines(axes, series)
        axes.set_xscale("log", base=2)
        ticks = sorted({one.x for points in series.values() for one in points})
        axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
        axes.set(xlabel="prompt, tokens", ylabel="decode, tokens/s")
        axes.set_ylim(bottom=0)
    return Plot(
        file,
        "Decode speed by context",
        "Median; the bars reach from the lowest to the highest sample.",
    )


def _prompts(sources: Sequence[Source], folder: Path) -> Plot | None:
    found = speed_by_prompt(sources)
    if not found:
        return None
    file = folder / "speed_by_prompt.png"
    present = {prompt for metrics in found.values() for prompt in metrics}
    prompts = [name for name in NAMES if name in present]
    prompts += sorted(present - set(prompts))
    width = 0.8 / len(found)
    with _figure(file) as axes:
        for index, (label, metrics) in enumerate(found.items()):
            shift = (index - (len(found) - 1) / 2) * width
            shown = [(i, metrics[name]) for i, name in enumerate(prompts) if name in metrics]
            medians = [metric.median for _, metric in shown]
            low = [metric.median - min(metric.samples) for _, metric in shown]
            high = [max(metric.samples) - metric.median for _, metric in shown]
            axes.bar(
                [i + shift for i, _ in shown],
                medians,
                width,
                yerr=[low, high],
                label=label,
                error_kw={"elinewidth": 0.8},
            )
        axes.set_xticks(range(len(prompts)), prompts)
        axes.set(ylabel="decode, tokens/s")
    return Plot(
        file,
        "Speed by engine and prompt",
        "Median; the bars' ends reach from the lowest to the highest sample.",
    )


def _kl(sources: Sequence[Source], folder: Path) -> Plot | None:
    series = kl_against_bits(sources)
    if not series:
        return None
    file = folder / "kl_against_bits.png"
    with _figure(file) as axes:
        for form, points in series.items():
            axes.plot([one.x for one in points], [one.y for one in points], "o")
            for one in points:
                axes.annotate(
                    form, (one.x, one.y), textcoords="offset points", xytext=(6, 4), fontsize=8
                )
        axes.set(xlabel="bits per weight", ylabel="KL(16 bit || form), nats a token")
        axes.margins(x=0.15, y=0.15)  # room for the names
        axes.set_ylim(bottom=0)
    return Plot(
        file,
        "KL divergence against bits per weight",
        "Mean over positions of KL(16 bit || form) over the whole vocabulary; lower is better.",
    )


def _roofline(sources: Sequence[Source], folder: Path) -> Plot | None:
    all_roofs = roofs(sources)
    if not all_roofs:
        return None
    file = folder / "roofline.png"
    sizes = [one.x for roof in all_roofs for points in roof.points.values() for one in points]
    low, high = 0.8 * min(sizes), 1.25 * max(sizes)
    steps = [low * (high / low) ** (i / 100) for i in range(101)]
    with _figure(file) as axes:
        for roof in all_roofs:
            axes.plot(
                steps,
                [roof.read_gb_s / size for size in steps],
                "--",
                label=f"limit: {roof.card}, {roof.read_gb_s:,.0f} GB/s",
            )
            _lines(axes, roof.points)
        axes.set(xlabel="bytes that a token reads, GB", ylabel="plain decode, tokens/s")
        if max(sizes) > LOG_RANGE * min(sizes):
            axes.set(xscale="log", yscale="log")
        else:
            axes.set_ylim(bottom=0)
    return Plot(
        file,
        "Roofline",
        "Plain decoding against the limit: measured read bandwidth over the bytes of a token.",
    )


def _lines(axes: "Axes", series: Series) -> None:
    draw: Callable[..., Any] = axes.errorbar
    for label, points in series.items():
        spread = [[one.y - one.low for one in points], [one.high - one.y for one in points]]
        x, y = [one.x for one in points], [one.y for one in points]
        draw(x, y, yerr=spread, marker="o", markersize=4, capsize=2, linewidth=1.2, label=label)
