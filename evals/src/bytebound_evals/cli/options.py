"""The options that several commands share, with their help."""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Write JSON to stdout, and nothing else there.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Keep the result as a file of bench/README.md."),
]
Commit = Annotated[
    str | None,
    typer.Option(metavar="ID", help="What is measured. Default: the commit of the work tree."),
]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="FOLDER|NAME",
        help="Model folder in Hugging Face form, or a name: tiny, random:qwen3.5-27b.",
    ),
]
Backend = Annotated[str, typer.Option(metavar="auto|reference|cuda", help="Executor.")]
Device = Annotated[
    str | None, typer.Option(metavar="cpu|cuda", help="Default: the GPU if there is one.")
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="graph|stream",
        help="How cuda runs a pass: a kernel for each op, or a few long ones.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="float32|bfloat16", help="Default: float32 on a CPU, else the checkpoint's own."
    ),
]
