"""Options that ``rtn`` and ``gptq`` share."""

from pathlib import Path
from typing import Annotated

import typer

Source = Annotated[
    str, typer.Argument(metavar="SRC", help="Folder of the 16-bit checkpoint, or 'tiny'.")
]
Destination = Annotated[
    Path, typer.Argument(metavar="DST", help="Folder to be made; it must not exist or be empty.")
]
Asymmetric = Annotated[
    bool, typer.Option("--asymmetric", help="Store a zero point per group as well.")
]
GroupSize = Annotated[int, typer.Option(metavar="N", help="Weights that share a scale.")]
KeepHead = Annotated[bool, typer.Option("--keep-head", help="Leave the output head at 16 bit.")]
MtpBits = Annotated[int, typer.Option(metavar="4|16", help="Bits of the MTP head's matrices.")]
Device = Annotated[
    str | None, typer.Option(metavar="cuda|cpu", help="Where to compute; default: a GPU if any.")
]
Tensors = Annotated[bool, typer.Option("--tensors", help="Show the errors of every tensor.")]
Json = Annotated[bool, typer.Option("--json", help="Print the report as one line of JSON.")]
