"""``bytebound-evals needle``: does a model find a sentence in a long text, wherever it stands."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bytebound_evals.cli import options as opt
from bytebound_evals.cli import quality_options as quality_opt
from bytebound_evals.cli.errors import OK, UsageError
from bytebound_evals.cli.outputs import check_file

if TYPE_CHECKING:
    from bytebound_evals.needle import NeedleTable

NOTE = "A made-up number in one sentence of a long text, asked for at its end; greedy."
THINKING_TOKENS = 2048


def needle(
    model: opt.Model,
    text: Annotated[
        str,
        typer.Option(
            metavar="SOURCE", help="The haystack, as for ppl; repeated where it is too short."
        ),
    ] = "heldout",
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Tokens of prompt and answer together, as 4096 or 4k. Default: powers of two from "
            "1k, and the model's limit.",
        ),
    ] = None,
    depths: Annotated[
        str,
        typer.Option(metavar="X,X,...", help="Where the needle stands, from 0 to 1."),
    ] = "0,0.25,0.5,0.75,1",
    trials: Annotated[
        int, typer.Option(metavar="N", help="Needles for each length and depth.")
    ] = 1,
    mode: quality_opt.Mode = "chat",
    thinking: quality_opt.Thinking = False,
    max_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Longest answer. Default: 48, with --thinking 2048."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the heat map: a .png or .svg file."),
    ] = None,
    backend: opt.Backend = "auto",
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    engine: opt.Engine = "graph",
    kv_dtype: quality_opt.KvDtype = "auto",
    draft: quality_opt.Draft = "mtp",
    name: quality_opt.Name = None,
    commit: opt.Commit = None,
    out: opt.Out = None,
    json_: opt.Json = False,
) -> int:
    """Hide a sentence with a number at several depths of texts of several lengths; ask for it.

    What is found is printed as a table, depth by length.
    """
    from bytebound_quant.cli.progress import JobProgress

    from bytebound_evals.cli import measuring
    from bytebound_evals.model_run import ModelRun
    from bytebound_evals.needle import (
        ANSWER_TOKENS,
        NeedleSettings,
        default_lengths,
        lengths_of,
        measure_needles,
    )
    from bytebound_evals.needle_plot import check_plot_path, draw_needle_map
    from bytebound_evals.quality_metrics import needle_metrics
    from bytebound_evals.texts import find_text

    check_file("--out", out)
    check_file("--plot", plot)
    if plot is not None:
        check_plot_path(plot)
    if max_tokens is None:
        max_tokens = THINKING_TOKENS if thinking else ANSWER_TOKENS
    limit = ModelRun(model).limit
    wanted = default_lengths(limit) if lengths is None else lengths_of(lengths.split(","))
    settings = NeedleSettings(
        lengths=wanted,
        depths=_numbers(depths),
        trials=trials,
        mode=mode,
        thinking=thinking,
        max_tokens=max_tokens,
    )
    run = ModelRun(model, backend, device, dtype, kv_dtype, max(wanted), draft, engine=engine)
    run.check_length("length", max(wanted))
    haystack = "\n\n".join(find_text(text).documents())
    loaded = measuring.open_model(run)
    with JobProgress(len(wanted) * len(settings.depths) * trials) as bar:
        found = measure_needles(
            loaded, haystack, settings, lambda find: bar.tick(1, f"{find.length:,} tokens")
        )
    called, folder = measuring.model_name(model, name), measuring.model_name(model)
    measuring.keep(out, needle_metrics(called, folder, settings, found), run, commit, NOTE)
    if plot is not None:
        draw_needle_map(found, plot, title=f"{called}: needles found")
    measuring.show(
        [
            ("model", model),
            ("haystack", text),
            ("needles", f"{len(found.finds)}, found {found.share():.1%}"),
            ("", ""),
            *_table(found),
        ],
        {
            "model": model,
            "text": text,
            "mode": mode,
            "thinking": thinking,
            "trials": trials,
            "max_tokens": settings.max_tokens,
            **run.record(),
            **found.as_dict(),
        },
        as_json=json_,
    )
    return OK


def _numbers(words: str) -> tuple[float, ...]:
    try:
        return tuple(dict.fromkeys(float(word) for word in words.split(",")))
    except ValueError:
        raise UsageError(
            f"--depths {words!r}: expected numbers from 0 to 1 with commas between"
        ) from None


def _table(found: "NeedleTable") -> Sequence[tuple[str, str]]:
    """Depth by length: the share found."""
    lengths = found.lengths
    rows = [("depth \\ length", "".join(f"{length:>10,}" for length in lengths))]
    for depth in found.depths:
        cells = "".join(f"{found.share(length, depth):>10.0%}" for length in lengths)
        rows.append((f"{depth:.0%}", cells))
    return rows
