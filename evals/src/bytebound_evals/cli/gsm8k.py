"""``bytebound-evals gsm8k``: the share of word problems that a model answers right."""

from pathlib import Path
from typing import Annotated

import typer

from bytebound_evals.cli import options as opt
from bytebound_evals.cli import quality_options as quality_opt
from bytebound_evals.cli.errors import FAILED, INTERRUPTED, OK, complain
from bytebound_evals.cli.outputs import check_file

DEFAULT_TOKENS = {False: 1024, True: 8192}  # by whether the model thinks first
DEFAULT_SHOTS = {"chat": 0, "completion": 8}
DEFAULT_CONTEXT = 8192
PROMPT_ROOM = 4096
NOTE = "Greedy; a reply that the token limit cut off counts as wrong."


def gsm8k(
    model: opt.Model,
    data: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="gsm8k, or gsm8k:FOLDER for a local copy; arithmetic (shipped); a .jsonl file "
            "with question and answer; or datasets:PATH@[CONFIG/]SPLIT.",
        ),
    ] = "gsm8k",
    mode: quality_opt.Mode = "chat",
    thinking: quality_opt.Thinking = False,
    shots: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Worked examples before each problem. Default: 0 in chat, 8 in completion.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Ask the first N problems only.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Longest reply. Default: 1024, with --thinking 8192."),
    ] = None,
    instruction: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Chat: stands behind each question. Default: asks for steps and a boxed answer, "
            "nothing for the shipped problems.",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Every reply, a line each; the same command goes on where a killed run stopped.",
        ),
    ] = None,
    backend: opt.Backend = "auto",
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    engine: opt.Engine = "graph",
    kv_dtype: quality_opt.KvDtype = "auto",
    max_len: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Context. Default: the longest reply and 4096 tokens, at least 8192, but not "
            "beyond the model's limit.",
        ),
    ] = None,
    draft: quality_opt.Draft = "mtp",
    name: quality_opt.Name = None,
    commit: opt.Commit = None,
    out: opt.Out = None,
    json_: opt.Json = False,
) -> int:
    """Ask word problems, greedy, and count right answers; exit code 1 where the run is invalid.

    Invalid is a run in which more than 2 % of the replies were cut off by the token limit: its
    accuracy would measure the limit, so it has none.
    """
    from bytebound.cli.output import remark
    from bytebound_quant.cli.progress import JobProgress

    from bytebound_evals.cli import measuring
    from bytebound_evals.gsm8k import INSTRUCTION, AskSettings, measure_accuracy
    from bytebound_evals.model_run import ModelRun
    from bytebound_evals.problems import ARITHMETIC, load_problems
    from bytebound_evals.quality_metrics import accuracy_metrics

    check_file("--out", out)
    check_file("--log", log)
    if instruction is None:
        instruction = "" if data == ARITHMETIC or mode != "chat" else INSTRUCTION
    settings = AskSettings(
        mode=mode,
        thinking=thinking,
        max_tokens=DEFAULT_TOKENS[thinking] if max_tokens is None else max_tokens,
        instruction=instruction,
    )
    if max_len is None:
        max_len = min(
            ModelRun(model).limit, max(DEFAULT_CONTEXT, settings.max_tokens + PROMPT_ROOM)
        )
    run = ModelRun(model, backend, device, dtype, kv_dtype, max_len, draft, engine=engine)
    run.check_length("max tokens", settings.max_tokens)
    problems = load_problems(
        data, shots=DEFAULT_SHOTS[mode] if shots is None else shots, limit=limit
    )
    identity = None if log is None else run.identity()
    loaded = measuring.open_model(run)
    try:
        with JobProgress(len(problems.problems)) as bar:
            found = measure_accuracy(
                loaded,
                problems,
                settings,
                model=identity,
                log=log,
                on_reply=lambda reply: bar.tick(1, f"problem {reply.number + 1}"),
            )
    except KeyboardInterrupt:
        remark("interrupted" + ("" if log is None else "; the same command goes on from here"))
        return INTERRUPTED
    called, folder = measuring.model_name(model, name), measuring.model_name(model)
    metrics = accuracy_metrics(called, folder, problems, settings, found)
    measuring.keep(out, metrics, run, commit, NOTE)
    lines = [
        ("model", model),
        (
            "problems",
            f"{data}: {len(found.replies):,}, {len(problems.examples)} examples "
            f"({problems.examples_from})",
        ),
        ("asked", f"{mode}, thinking {'on' if thinking else 'off'}, greedy"),
        ("cut off", f"{found.cut_share:.1%} of the replies, at {settings.max_tokens} tokens"),
    ]
    if found.accuracy is not None:
        lines.append(("accuracy", measuring.with_interval(found.accuracy, found.interval, 4)))
    measuring.show(
        lines,
        {
            "model": model,
            "data": data,
            "mode": mode,
            "thinking": thinking,
            "shots": len(problems.examples),
            "examples_from": problems.examples_from,
            "max_tokens": settings.max_tokens,
            "instruction": settings.instruction,
            **run.record(),
            **found.as_dict(),
        },
        as_json=json_,
    )
    if found.valid:
        return OK
    complain(
        f"invalid: {found.cut_share:.1%} of the replies were cut off at {settings.max_tokens} "
        "tokens, more than 2 %: the accuracy would measure the limit; raise --max-tokens or "
        "--max-len"
    )
    return FAILED
