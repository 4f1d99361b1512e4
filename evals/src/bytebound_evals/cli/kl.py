"""``bytebound-evals kl``: how far a model is from its reference, position by position."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bytebound_evals.cli import options as opt
from bytebound_evals.cli import quality_options as quality_opt
from bytebound_evals.cli import text_options as text_opt
from bytebound_evals.cli.errors import OK, UsageError
from bytebound_evals.cli.outputs import check_file, check_folder

if TYPE_CHECKING:
    from bytebound_evals.divergence import Reference
    from bytebound_evals.model_run import ModelRun
    from bytebound_evals.windows import CutText

GIGABYTE = 10**9
NOTE = (
    "KL(reference || model) in nats over the whole vocabulary in float64; the reference's logits "
    "in float32."
)
_REFERENCE = "Reference"


def kl(
    model: opt.Model,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|NAME",
            help="The model in 16 bits. Runs side by side, or once with --cache.",
            rich_help_panel=_REFERENCE,
        ),
    ] = None,
    reference_logits: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Instead of --reference: its logits, as --cache wrote them.",
            rich_help_panel=_REFERENCE,
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Keep the reference's logits here, and use them if they are here.",
            rich_help_panel=_REFERENCE,
        ),
    ] = None,
    cache_limit: Annotated[
        float,
        typer.Option(
            metavar="GB",
            help="The most that the cache takes; what was not used for longest makes room.",
            rich_help_panel=_REFERENCE,
        ),
    ] = 32.0,
    reference_backend: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Default: the model's own.", rich_help_panel=_REFERENCE),
    ] = None,
    reference_device: Annotated[
        str | None,
        typer.Option(
            metavar="cpu|cuda", help="Default: the model's own.", rich_help_panel=_REFERENCE
        ),
    ] = None,
    reference_dtype: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Default: the model's own.", rich_help_panel=_REFERENCE),
    ] = None,
    text: text_opt.Text = "heldout",
    join: text_opt.Join = None,
    window: text_opt.Window = 2048,
    stride: text_opt.Stride = None,
    prefix: text_opt.Prefix = "none",
    prefix_id: text_opt.PrefixId = None,
    max_tokens: text_opt.MaxTokens = None,
    backend: opt.Backend = "auto",
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    engine: opt.Engine = "graph",
    kv_dtype: quality_opt.KvDtype = "auto",
    name: quality_opt.Name = None,
    commit: opt.Commit = None,
    out: opt.Out = None,
    json_: opt.Json = False,
) -> int:
    """Measure KL(reference || model), top-1 agreement and both perplexities on the same windows.

    The direction says what the model loses where the reference is the truth. Full distributions,
    never rounded to 16 bits. The reference runs on the graph engine.
    """
    from bytebound_quant.cli.progress import JobProgress

    from bytebound_evals.cli import measuring
    from bytebound_evals.divergence import measure_divergence
    from bytebound_evals.measured_text import TextSettings
    from bytebound_evals.model_run import ModelRun, tokenizer_of
    from bytebound_evals.quality_metrics import divergence_metrics

    if (reference is None) == (reference_logits is None):
        raise UsageError("expected either --reference or --reference-logits")
    if cache is not None and reference is None:
        raise UsageError("--cache keeps the logits of a --reference; name one")
    if not 0 < cache_limit < math.inf:
        raise UsageError(f"--cache-limit {cache_limit:g}: expected a size above 0")
    if cache is not None:
        check_folder("--cache", cache.expanduser())
    check_file("--out", out)
    settings = TextSettings(
        text=text,
        join=text_opt.unescaped(join),
        window=window,
        stride=stride,
        prefix=prefix,
        prefix_id=prefix_id,
        max_tokens=max_tokens,
    )
    run = ModelRun(model, backend, device, dtype, kv_dtype, max_len=window, engine=engine)
    run.check_length("window", window)
    cut = settings.cut(tokenizer_of(model))
    judge: Reference
    if reference is None:
        judge, described = _stored(reference_logits, model, cut)
    else:
        other = ModelRun(
            reference,
            reference_backend or backend,
            reference_device or device,
            reference_dtype or dtype,
            max_len=window,
        )
        judge = _computed(other, run, cut, cache, cache_limit)
        described = measuring.model_name(reference)
    loaded = measuring.open_model(run)
    with JobProgress(cut.scored) as bar:
        found = measure_divergence(loaded, judge, cut, lambda count: bar.tick(count, "windows"))
    called, folder = measuring.model_name(model, name), measuring.model_name(model)
    metrics = divergence_metrics(called, folder, described, cut, found)
    measuring.keep(out, metrics, run, commit, NOTE)
    quantiles = ", ".join(f"{share:g}: {value:.4g}" for share, value in found.kl_quantiles.items())
    by_position = ", ".join(
        f"from {start:,}: {value:.4g}" for start, value in found.kl_by_position.items()
    )
    measuring.show(
        [
            ("model", model),
            ("reference", described),
            *measuring.text_lines(cut),
            ("KL(ref || model)", measuring.with_interval(found.kl, found.kl_interval) + " nat"),
            ("KL quantiles", f"{quantiles}; largest {found.kl_max:.4g}"),
            ("KL by position", by_position),
            ("top-1", measuring.with_interval(found.top1, found.top1_interval)),
            ("perplexity", measuring.with_interval(found.model.ppl, found.model.ppl_interval)),
            (
                "  of reference",
                measuring.with_interval(found.reference.ppl, found.reference.ppl_interval),
            ),
        ],
        {
            "model": model,
            "reference": described,
            **run.record(),
            **cut.as_dict(),
            **found.as_dict(),
        },
        as_json=json_,
    )
    return OK


def _stored(folder: Path | None, model: str, cut: "CutText") -> "tuple[Reference, str]":
    """Logits that were written before, by whomever."""
    from bytebound_evals.identity import text_digest, tokenizer_digest
    from bytebound_evals.model_run import tokenizer_of
    from bytebound_evals.reference_logits import StoredReference

    if folder is None:
        raise UsageError("expected --reference-logits")
    found = StoredReference(folder, cut, tokenizer_digest(tokenizer_of(model)), text_digest(cut))
    return found, f"logits {folder.name} of weights {found.record['key']['model'][:12]}"


def _computed(
    reference: "ModelRun", run: "ModelRun", cut: "CutText", cache: Path | None, limit_gb: float
) -> "Reference":
    """Logits of a reference that is here: side by side, or from the cache."""
    from bytebound.cli.output import remark
    from bytebound.loading import find_model
    from bytebound_quant.cli.progress import JobProgress

    from bytebound_evals.cli.measuring import open_model
    from bytebound_evals.divergence import LiveReference, check_same_vocabulary
    from bytebound_evals.identity import model_digest, text_digest, tokenizer_digest
    from bytebound_evals.model_run import tokenizer_of
    from bytebound_evals.reference_logits import ReferenceCache, ReferenceKey

    tokenizer = tokenizer_digest(tokenizer_of(run.model))
    vocab_size = find_model(reference.model)[1].vocab_size
    check_same_vocabulary(
        tokenizer_digest(tokenizer_of(reference.model)),
        tokenizer,
        vocab_size,
        find_model(run.model)[1].vocab_size,
    )
    if cache is None:
        return LiveReference(open_model(reference, "loading the reference"), cut)
    key = ReferenceKey(
        model_digest(reference.model), tokenizer, text_digest(cut), vocab_size, reference.record()
    )
    with JobProgress(cut.scored) as bar:
        return ReferenceCache(cache.expanduser(), round(limit_gb * GIGABYTE)).get(
            key,
            cut,
            lambda: open_model(reference, "loading the reference"),
            announce=remark,
            tick=lambda count: bar.tick(count, "reference"),
        )
