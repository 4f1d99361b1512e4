"""``bytebound-evals throughput``: prefill and decode, at depths and per prompt, for every draft."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bytebound_evals.cli import options as opt
from bytebound_evals.cli.errors import OK
from bytebound_evals.cli.outputs import check_file
from bytebound_evals.speed.drafts import DraftSpec

if TYPE_CHECKING:
    from bytebound_evals.speed.prompts import Prompt

DEFAULT_DRAFTS = ("none", "ngram:4", "mtp:4")
DEFAULT_RANDOM_DRAFTS = ("none", "mtp:4", "forced:4@0.5", "forced:4@0.7", "forced:4@0.9")
DEFAULT_DEPTHS = (512, 2048)


def throughput(
    model: opt.Model,
    backend: opt.Backend = "auto",
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    kv_dtype: Annotated[
        str, typer.Option(metavar="auto|bfloat16|fp8", help="Kind of KV cache; fp8: cuda only.")
    ] = "auto",
    engine: opt.Engine = "graph",
    max_len: Annotated[
        int | None, typer.Option(metavar="N", help="Context. Default: what the depths need.")
    ] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC",
            help="none, ngram:K, mtp:K or forced:K@RATE (replays the plain reply with errors); may "
            "be repeated. Default: none, ngram:4 and mtp:4; with random weights none, mtp:4 and "
            "three forced rates.",
        ),
    ] = None,
    depth: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N",
            help="Length of a prompt to prefill and to decode behind; may be repeated, 0 for none. "
            "Default: 512 and 2048.",
        ),
    ] = None,
    draft_depth: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N",
            help="One of the depths, for drafts to be measured at; may be repeated, 0 for none. "
            "Default: all.",
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Prompt of the suite: prose, code, explain, code2, math, chat, summary, json; may "
            "be repeated, 'none' for none. Default: all.",
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(metavar="N", help="New tokens of a run.")] = 128,
    samples: Annotated[
        int, typer.Option(metavar="N", help="Runs that count, after one that warms up.")
    ] = 5,
    stop_at_end: Annotated[
        bool,
        typer.Option("--stop-at-end", help="End a reply where the model ends it, not at N tokens."),
    ] = False,
    read_gb_s: Annotated[
        float | None,
        typer.Option(metavar="X", help="Read bandwidth of the card, for percent of the limit."),
    ] = None,
    card: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="card.json to take it from. Default: measured, on a GPU."
        ),
    ] = None,
    commit: opt.Commit = None,
    out: opt.Out = None,
    json_: opt.Json = False,
) -> int:
    """Measure prefill and decode speed at several depths and on eight prompts, for every draft.

    Greedy. Every run is printed and kept; the table shows medians.
    """
    from bytebound.cli.output import emit_json, remark

    from bytebound_evals.results import write_result
    from bytebound_evals.speed.limits import read_bandwidth
    from bytebound_evals.speed.record import speed_result
    from bytebound_evals.speed.settings import Settings
    from bytebound_evals.speed.throughput import Throughput

    check_file("--out", out)
    settings = Settings(
        model=model,
        backend=backend,
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype,
        max_len=max_len,
        drafts=tuple(map(DraftSpec.parse, draft or default_drafts(model))),
        prompts=chosen_prompts(prompt),
        depths=chosen_depths(depth),
        draft_depths=None if draft_depth is None else chosen_depths(draft_depth),
        new_tokens=tokens,
        samples=samples,
        stop_at_end=stop_at_end,
        engine=engine,
    )
    run = Throughput(settings, report=lambda stem, sample: remark(f"{stem}: {sample.line()}"))
    run.read = read_bandwidth(read_gb_s, card, on_gpu=settings.on_gpu)
    result = speed_result(run.run(), settings, run.read, commit)
    if out is not None:
        write_result(out, result)
    if json_:
        emit_json(result.as_dict())
    else:
        from bytebound_evals.cli.speed_table import show

        show(result)
    return OK


def chosen_prompts(names: list[str] | None) -> "tuple[Prompt, ...]":
    """All prompts by default; "none" alone is none."""
    from bytebound_evals.speed.prompts import speed_prompts

    return () if names == ["none"] else tuple(speed_prompts(names))


def chosen_depths(depths: list[int] | None) -> tuple[int, ...]:
    """The usual ones by default; 0 alone is none."""
    return () if depths == [0] else tuple(DEFAULT_DEPTHS if depths is None else depths)


def default_drafts(model: str) -> tuple[str, ...]:
    """Plain and every draft that a model can have; guesses mean nothing to random weights."""
    from bytebound_evals.speed.settings import RANDOM

    if model.startswith(RANDOM):
        return DEFAULT_RANDOM_DRAFTS
    from bytebound.checkpoint import read_headers
    from bytebound.loading import find_model

    folder, config = find_model(model)
    with_mtp = folder is not None and read_headers(folder, config).with_mtp
    return DEFAULT_DRAFTS if with_mtp else DEFAULT_DRAFTS[:2]
