"""The heat map of a needle run: depth over length, the share found as a colour and a number."""

from pathlib import Path

from bytebound_evals.errors import SettingError
from bytebound_evals.needle import NeedleTable

FORMATS = (".png", ".svg")


def check_plot_path(path: Path) -> None:
    """Refuse a file whose ending is no known format, before anything is measured."""
    if path.suffix.lower() not in FORMATS:
        raise SettingError(f"{path}: expected a file that ends in {' or '.join(FORMATS)}")


def draw_needle_map(table: NeedleTable, path: Path, *, title: str) -> None:
    """Write the heat map to ``path``.

    Raises:
        SettingError: the file cannot be written, or its ending is no known format.
    """
    check_plot_path(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lengths, depths = table.lengths, table.depths
    shares = [[table.share(length, depth) for length in lengths] for depth in depths]
    figure = Figure(figsize=(2 + 0.8 * len(lengths), 1.6 + 0.5 * len(depths)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    # From red to green through yellow, and legible without colour by the numbers.
    image = axes.imshow(shares, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
    axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths], rotation=45)
    axes.set_yticks(range(len(depths)), [f"{depth:.0%}" for depth in depths])
    axes.set_xlabel("length (tokens)")
    axes.set_ylabel("depth of the needle")
    axes.set_title(title)
    for row, line in enumerate(shares):
        for column, share in enumerate(line):
            shade = "white" if abs(share - 0.5) > 0.35 else "black"  # the ends are dark
            axes.text(
                column, row, f"{share:.0%}", ha="center", va="center", fontsize=8, color=shade
            )
    figure.colorbar(image, label="share found")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror or error}") from error
