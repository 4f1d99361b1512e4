"""``bytebound-quant gptq``: 4 bits by GPTQ, calibrated on text."""

from typing import Annotated

import typer

from bytebound_quant.cli import options as opt
from bytebound_quant.cli.errors import UsageError

DTYPES = ("auto", "bfloat16", "float32")


def gptq(
    source: opt.Source,
    destination: opt.Destination,
    calib: Annotated[
        list[str],
        typer.Option(
            metavar="FILE",
            help="A .txt or .jsonl file, or KIND:PATH[@[CONFIG/]SPLIT][#FIELD][=WEIGHT] with KIND "
            "text, jsonl or datasets; repeat to mix by weight.",
        ),
    ],
    samples: Annotated[int, typer.Option(metavar="N", help="Calibration windows.")] = 256,
    window: Annotated[int, typer.Option(metavar="N", help="Tokens of a window.")] = 2048,
    chat_template: Annotated[
        bool, typer.Option("--chat-template", help="Read conversations through the template.")
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the choice of windows.")] = 0,
    mse: Annotated[
        bool,
        typer.Option("--mse/--no-mse", help="Search each group's range for the least error."),
    ] = True,
    act_order: Annotated[
        bool, typer.Option("--act-order", help="Take columns by the size of their inputs.")
    ] = False,
    damping: Annotated[
        float, typer.Option(metavar="X", help="First try, as a part of the Hessian's diagonal.")
    ] = 0.01,
    compensate: Annotated[
        bool,
        typer.Option(
            "--compensate/--no-compensate",
            help="Run the 16-bit model beside the quantized one and make up for what earlier "
            "matrices changed; holds twice the hidden states.",
        ),
    ] = True,
    weigh_head: Annotated[
        bool,
        typer.Option(
            "--weigh-head/--no-weigh-head",
            help="For the output head, let a position count by how open its next token is.",
        ),
    ] = True,
    asymmetric: opt.Asymmetric = False,
    group_size: opt.GroupSize = 128,
    keep_head: opt.KeepHead = False,
    mtp_bits: opt.MtpBits = 4,
    device: opt.Device = None,
    dtype: Annotated[
        str,
        typer.Option(
            metavar="|".join(DTYPES),
            help="Of hidden states; auto: float32 on a CPU, else the checkpoint's own.",
        ),
    ] = "auto",
    tensors: opt.Tensors = False,
    json_: opt.Json = False,
) -> int:
    """Quantize a checkpoint by GPTQ, layer after layer.

    Killed at any point, the same command continues. Until it is done the folder is called
    DST.partial and does not load.
    """
    if dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype!r}: expected one of {', '.join(DTYPES)}")
    from bytebound.settings import check_device, check_dtype

    from bytebound_quant.calibration import load_calibration
    from bytebound_quant.cli.running import run_job, text_sources
    from bytebound_quant.errors import SourceError
    from bytebound_quant.gptq_job import CalibrationWindows, GptqMethod
    from bytebound_quant.grid import Scheme
    from bytebound_quant.job import Job
    from bytebound_quant.matrices import GptqOptions
    from bytebound_quant.plan import PlanOptions, make_plan
    from bytebound_quant.source import open_source

    scheme = Scheme(symmetric=not asymmetric, group_size=group_size)
    choices = GptqOptions(
        mse=mse,
        act_order=act_order,
        damping=damping,
        compensate=compensate,
        weigh_head=weigh_head,
    )
    where = check_device(device)
    opened = open_source(source)
    plan = make_plan(opened, PlanOptions(scheme, keep_head=keep_head, mtp_bits=mtp_bits))
    kind = check_dtype(None if dtype == "auto" else dtype, opened.config, where)
    if opened.tokenizer is None:
        raise SourceError(
            f"{opened.folder} holds no tokenizer, which calibration needs; add tokenizer.json, or "
            "use 'bytebound-quant rtn'"
        )
    calibration = load_calibration(
        text_sources(calib),
        opened.tokenizer,
        window=window,
        samples=samples,
        seed=seed,
        chat_template=chat_template,
        vocab_size=opened.config.vocab_size,
    )
    windows = CalibrationWindows(calibration.windows, calibration.summary)
    method = GptqMethod(opened, plan, windows, choices, device=where, dtype=kind)
    return run_job(Job(opened, plan, method, destination), json_=json_, every_tensor=tensors)
