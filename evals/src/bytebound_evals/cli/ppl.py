"""``bytebound-evals ppl``: perplexity of one model on one text."""

from bytebound_evals.cli import options as opt
from bytebound_evals.cli import quality_options as quality_opt
from bytebound_evals.cli import text_options as text_opt
from bytebound_evals.cli.errors import OK
from bytebound_evals.cli.outputs import check_file

NOTE = "Perplexity in fixed windows, each from an empty state; float64 over the whole vocabulary."


def ppl(
    model: opt.Model,
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
    """Measure perplexity: exp of the mean of -log p over the scored tokens.

    No token is scored twice. Every document starts from an empty state.
    """
    from bytebound_quant.cli.progress import JobProgress

    from bytebound_evals.cli import measuring
    from bytebound_evals.measured_text import TextSettings
    from bytebound_evals.model_run import ModelRun, tokenizer_of
    from bytebound_evals.perplexity import measure_perplexity
    from bytebound_evals.quality_metrics import perplexity_metrics

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
    loaded = measuring.open_model(run)
    with JobProgress(cut.scored) as bar:
        found = measure_perplexity(loaded, cut, lambda count: bar.tick(count, "windows"))
    called, folder = measuring.model_name(model, name), measuring.model_name(model)
    measuring.keep(out, perplexity_metrics(called, folder, cut, found), run, commit, NOTE)
    measuring.show(
        [
            ("model", model),
            *measuring.text_lines(cut),
            ("perplexity", measuring.with_interval(found.ppl, found.ppl_interval)),
            ("loss", f"{found.loss:.6f} nat a token"),
        ],
        {"model": model, **run.record(), **cut.as_dict(), **found.as_dict()},
        as_json=json_,
    )
    return OK
