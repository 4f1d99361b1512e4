"""``bytebound-evals report``: result files as a document with plots."""

from pathlib import Path
from typing import Annotated

import typer

from bytebound_evals.cli import options as opt
from bytebound_evals.cli.errors import OK, UsageError
from bytebound_evals.cli.outputs import check_folder, folder_path


def report(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Result files, or folders that hold some."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            parser=folder_path,
            help="Where report.md, report.html and plots go.",
        ),
    ],
    title: Annotated[str, typer.Option(metavar="TEXT", help="Its heading.")] = "Measurements",
    json_: opt.Json = False,
) -> int:
    """Write a Markdown and an HTML report over result files, with plots of what they hold.

    Decode speed by context, speed by engine and prompt, KL divergence against bits per weight, and
    plain decoding against the memory-bandwidth limit; then every number with its conditions.
    """
    from bytebound.cli.output import emit, emit_json

    from bytebound_evals.report.build import read_sources, write_report

    check_folder("--out", out)
    written = write_report(read_sources(result_files(files)), out, title)
    names = [str(path) for path in written]
    if json_:
        emit_json({"written": names})
    else:
        emit("".join(f"{name}\n" for name in names))
    return OK


def result_files(paths: list[Path]) -> list[Path]:
    """Files as given, folders as the JSON files right in them.

    Raises:
        UsageError: a folder holds none.
    """
    files = []
    for path in paths:
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"{path} holds no result file, *.json")
        files += inside
    return files
