"""``bytebound-quant draft-vocab``: choose the head rows that drafts score; show coverage."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from bytebound.cli.output import emit, emit_json

from bytebound_quant.cli.errors import UsageError, one_line

if TYPE_CHECKING:
    import torch

SPECIFICATION = (
    "a .txt or .jsonl file, or KIND:PATH[@[CONFIG/]SPLIT][#FIELD], KIND being text, jsonl or "
    "datasets; repeatable"
)
PLOT_SUFFIXES = (".png", ".svg", ".pdf")
TABLE_SIZES = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000)


def draft_vocab(
    model: Annotated[str, typer.Argument(help="Model folder, or the name of a shipped model.")],
    corpus: Annotated[list[str], typer.Option("--corpus", help=f"Text to count: {SPECIFICATION}.")],
    size: Annotated[int, typer.Option("--size", help="How many ids the draft vocabulary has.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="File to write; by default draft_vocab.safetensors in MODEL if that is a folder.",
        ),
    ] = None,
    chat_template: Annotated[
        bool, typer.Option("--chat-template", help="Rows are conversations; render them.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the coverage curve: .png, .svg or .pdf.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Choose the N rows of the output head that drafts score, by token counts over a corpus.

    Control tokens, single bytes and digits are always among them. Exit codes: 0 done, 2 wrong use.
    """
    if plot is not None and plot.suffix not in PLOT_SUFFIXES:
        raise UsageError(f"--plot {plot}: expected a name that ends in {', '.join(PLOT_SUFFIXES)}")
    from bytebound.config import ModelConfig
    from bytebound.names import KNOWN_NAMES, resolve_model

    from bytebound_quant import draft_vocab as vocabularies
    from bytebound_quant.cli.running import text_sources
    from bytebound_quant.vocabulary import matching_tokenizer

    if out is None and model in KNOWN_NAMES:
        raise UsageError(
            f"{model!r} names a shipped model, whose folder belongs to the installed package; say "
            "with -o/--out which file to write"
        )
    folder = resolve_model(model)
    config = ModelConfig.from_folder(folder)
    tokenizer = matching_tokenizer(folder, config.vocab_size)
    if tokenizer is None:
        raise UsageError(f"{folder} holds no tokenizer; a draft vocabulary is counted in its ids")
    sources = text_sources(corpus)
    counts = vocabularies.count_tokens(
        sources, tokenizer, vocab_size=config.vocab_size, chat_template=chat_template
    )
    kept = vocabularies.always_kept(tokenizer, config.vocab_size)
    chosen = vocabularies.choose(counts, kept, size)
    curve = vocabularies.coverage_curve(counts, kept)
    path = folder / vocabularies.DRAFT_VOCAB_FILE if out is None else out
    vocabularies.save_draft_vocab(chosen, path, tokenizer)
    if plot is not None:
        _draw(curve, size, len(kept), plot)
    report: dict[str, Any] = {
        "file": str(path),
        "size": size,
        "always_kept": len(kept),
        "vocab_size": config.vocab_size,
        "coverage": chosen.coverage,
        "corpus_tokens": counts.total,
        "corpus_sha256": counts.sha256,
        "tokenizer_sha256": vocabularies.tokenizer_sha256(tokenizer),
        "sources": counts.sources,
        "curve": _points(curve, size, len(kept)),
        "plot": None if plot is None else str(plot),
    }
    if as_json:
        emit_json(report)
    else:
        emit(_readable(report))


def _points(curve: "torch.Tensor", size: int, kept: int) -> list[dict[str, Any]]:
    sizes = {one for one in TABLE_SIZES if kept < one < curve.numel()}
    sizes |= {max(kept, 1), size, curve.numel()}
    return [{"ids": one, "coverage": float(curve[one - 1])} for one in sorted(sizes)]


def _readable(report: dict[str, Any]) -> str:
    lines = [
        f"{one_line(report['file'])}: {report['size']:,} of {report['vocab_size']:,} ids, "
        f"{report['always_kept']:,} of them always kept",
        f"corpus: {report['corpus_tokens']:,} tokens",
        "",
        f"{'ids':>10}  {'coverage':>9}",
    ]
    for point in report["curve"]:
        mark = "  <- chosen" if point["ids"] == report["size"] else ""
        lines.append(f"{point['ids']:>10,}  {point['coverage']:>8.3%}{mark}")
    return "\n".join(lines) + "\n"


def _draw(curve: "torch.Tensor", size: int, kept: int, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    sizes = range(max(kept, 1), curve.numel() + 1)
    axes.plot(list(sizes), curve[sizes.start - 1 :].tolist(), color="#2a6f97")
    axes.axvline(size, color="#bc4749", linewidth=1)
    axes.annotate(
        f"{size:,} ids: {float(curve[size - 1]):.2%}",
        (size, float(curve[size - 1])),
        xytext=(8, -14),
        textcoords="offset points",
    )
    axes.set_xscale("log")
    axes.set_xlabel("ids in the draft vocabulary")
    axes.set_ylabel("share of the corpus's tokens")
    axes.grid(alpha=0.3)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UsageError(f"--plot {path} cannot be written: {error.strerror or error}") from error
