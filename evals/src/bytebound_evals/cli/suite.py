"""``bytebound-evals suite``: speed, quality of the forms, and a report, in one run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bytebound_evals.cli import options as opt
from bytebound_evals.cli import speed_table
from bytebound_evals.cli.errors import OK
from bytebound_evals.cli.outputs import check_folder, folder_path
from bytebound_evals.cli.throughput import chosen_depths, chosen_prompts, default_drafts

if TYPE_CHECKING:
    from bytebound_evals.results import Result

_QUALITY, _SPEED = "Quality", "Speed"
SPEED_FILE = "speed"


def suite(
    model: opt.Model,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", parser=folder_path, help="Where results, forms and the report go."
        ),
    ],
    backend: opt.Backend = "auto",
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    engine: opt.Engine = "graph",
    form: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER",
            help="A 4-bit form that is there already; may be repeated.",
            rich_help_panel=_QUALITY,
        ),
    ] = None,
    make: Annotated[
        list[str] | None,
        typer.Option(
            metavar="rtn|gptq_mse|none",
            help="Forms to make from the model; may be repeated. Default: both.",
            rich_help_panel=_QUALITY,
        ),
    ] = None,
    calib: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE",
            help="Calibration text of GPTQ, as bytebound-quant takes it. Default: the "
            "interpreter's own library.",
            rich_help_panel=_QUALITY,
        ),
    ] = None,
    calib_samples: Annotated[
        int, typer.Option(metavar="N", help="Calibration windows.", rich_help_panel=_QUALITY)
    ] = 64,
    calib_window: Annotated[
        int, typer.Option(metavar="N", help="Tokens of one.", rich_help_panel=_QUALITY)
    ] = 512,
    text: Annotated[
        str, typer.Option(metavar="SOURCE", help="Text to score.", rich_help_panel=_QUALITY)
    ] = "heldout",
    text_tokens: Annotated[
        int, typer.Option(metavar="N", help="Tokens of it.", rich_help_panel=_QUALITY)
    ] = 16_384,
    window: Annotated[
        int, typer.Option(metavar="N", help="Tokens of a window.", rich_help_panel=_QUALITY)
    ] = 1024,
    problems: Annotated[
        str,
        typer.Option(metavar="SOURCE", help="Word problems.", rich_help_panel=_QUALITY),
    ] = "arithmetic",
    problem_limit: Annotated[
        int, typer.Option(metavar="N", help="How many of them.", rich_help_panel=_QUALITY)
    ] = 100,
    quality: Annotated[
        bool, typer.Option("--quality/--no-quality", rich_help_panel=_QUALITY)
    ] = True,
    draft: Annotated[
        list[str] | None,
        typer.Option(metavar="SPEC", help="As for throughput.", rich_help_panel=_SPEED),
    ] = None,
    depth: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="As for throughput.", rich_help_panel=_SPEED),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="As for throughput.", rich_help_panel=_SPEED),
    ] = None,
    tokens: Annotated[
        int, typer.Option(metavar="N", help="New tokens of a run.", rich_help_panel=_SPEED)
    ] = 64,
    samples: Annotated[
        int, typer.Option(metavar="N", help="Runs that count.", rich_help_panel=_SPEED)
    ] = 5,
    read_gb_s: Annotated[
        float | None,
        typer.Option(metavar="X", help="As for throughput.", rich_help_panel=_SPEED),
    ] = None,
    card: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="As for throughput.", rich_help_panel=_SPEED),
    ] = None,
    speed: Annotated[bool, typer.Option("--speed/--no-speed", rich_help_panel=_SPEED)] = True,
    result: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Result file of another run or rival to report; may be repeated."
        ),
    ] = None,
    commit: opt.Commit = None,
    json_: opt.Json = False,
) -> int:
    """Run the whole set on one model and write results and a report into one folder.

    Speed over eight prompts and several depths with every draft; perplexity, KL, top-1 and word
    problems of the 16 bits and of each 4-bit form; then report.md, report.html and plots. Forms
    that an earlier run made in the folder of the same weights and settings are used again, others
    are refused. --engine is that of the speed and of the 4-bit forms; what they are judged by runs
    on graph. Simple mistakes are found before anything is loaded.
    """
    from bytebound.cli.output import emit, emit_json, remark

    from bytebound_evals.measured_text import TextSettings
    from bytebound_evals.report.build import read_sources
    from bytebound_evals.speed.drafts import DraftSpec
    from bytebound_evals.speed.limits import read_bandwidth
    from bytebound_evals.speed.settings import Settings
    from bytebound_evals.suite.forms import Calibration, given_forms, made_forms
    from bytebound_evals.suite.quality import QualitySettings
    from bytebound_evals.suite.run import Suite

    check_folder("--out", out)
    speed_settings = Settings(
        model=model,
        backend=backend,
        device=device,
        dtype=dtype,
        drafts=tuple(map(DraftSpec.parse, draft or default_drafts(model))),
        prompts=chosen_prompts(prompt),
        depths=chosen_depths(depth),
        new_tokens=tokens,
        samples=samples,
        engine=engine,
    )
    quality_settings = QualitySettings(
        text=TextSettings(text=text, window=window, max_tokens=text_tokens),
        problems=problems,
        problem_limit=problem_limit,
        backend=backend,
        device=device,
        dtype=dtype,
        engine=engine,
    )
    whole = Suite(
        model=model,
        folder=out,
        speed=speed_settings if speed else None,
        quality=quality_settings if quality and not speed_settings.is_random else None,
        forms=tuple(given_forms(form)),
        made=made_forms(make),
        calibration=Calibration(tuple(calib or ()), calib_samples, calib_window),
        commit=commit,
    )
    others = read_sources(result or [])
    keys = whole.check()
    read = read_bandwidth(read_gb_s, card, on_gpu=speed and speed_settings.on_gpu)
    results = whole.run(keys, read, remark)
    written = whole.report(results, others)
    if json_:
        emit_json(
            {
                "written": [str(path) for path in written],
                "results": {name: one.as_dict() for name, one in results.items()},
            }
        )
        return OK
    for name, one in results.items():
        speed_table.show(one) if name == SPEED_FILE else emit(quality_lines(one))
    emit("".join(f"{path}\n" for path in written))
    return OK


def quality_lines(result: "Result") -> str:
    """A line a form: bits, perplexity, KL, top-1 and the problems' share."""
    from bytebound_evals.report.build import number
    from bytebound_evals.suite.table import form_rows

    rows: list[tuple[str, ...]] = [("form", "bits", "ppl", "KL, nat", "top-1", "problems")]
    for form, values in form_rows(result.metrics).items():
        rows.append((form, *("" if value is None else number(value) for value in values)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        "  ".join(
            word.ljust(width) if i == 0 else word.rjust(width)
            for i, (word, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "".join(f"{line.rstrip()}\n" for line in lines) + "\n"
