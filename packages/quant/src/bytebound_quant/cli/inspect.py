"""``bytebound-quant inspect``: what a folder stores and how, from the file headers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from bytebound.cli.output import emit, emit_json
from bytebound.cli.tables import size

from bytebound_quant.cli.errors import one_line

if TYPE_CHECKING:
    from bytebound_quant.inspection import InspectedTensor, Inspection


def inspect(
    folder: Annotated[Path, typer.Argument(help="The folder to look at, 4-bit or 16-bit.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what is stored how: per tensor, bits per weight, sizes, and what stays unpacked and why.

    Exit codes: 0 done, 2 the folder cannot be read.
    """
    from bytebound.names import resolve_model

    from bytebound_quant.inspection import inspect as look

    found = look(resolve_model(str(folder)))
    if as_json:
        emit_json(found.as_dict())
    else:
        emit(_readable(found))


def _readable(found: "Inspection") -> str:
    lines = [
        f"folder       {one_line(found.folder)}",
        f"layout       {found.layout or 'not quantized'}",
        *(
            f"{name:<12} {found.metadata[name]}"
            for name in ("method", "tool")
            if name in found.metadata
        ),
        f"MTP head     {'yes' if found.mtp else 'no'}",
        f"output head  {'tied to the embedding' if found.tied_head else 'own'}",
        f"draft ids    {_draft_line(found.draft_vocab)}",
        f"files        {len(found.files)}",
        "",
    ]
    width = max(len(one.name) for one in found.tensors)
    lines.append(f"{'tensor':<{width}}  {'shape':<16}  {'stored':<30}  {'bits':>6}  {'size':>10}")
    for one in found.tensors:
        reason = f"  {one_line(one.reason)}" if one.reason else ""
        shape = "x".join(map(str, one.shape))
        lines.append(
            f"{one_line(one.name):<{width}}  {shape:<16}  {_stored(one):<30}  "
            f"{one.bits_per_weight:>6.3f}  {size(one.num_bytes):>10}{reason}"
        )
    lines += [
        "",
        f"{'kind':<16}  {'tensors':>7}  {'packed':>6}  {'weights':>15}  {'bits':>6}  {'size':>10}",
    ]
    for row in found.totals():
        lines.append(
            f"{row['kind']:<16}  {row['tensors']:>7}  {row['packed']:>6}  {row['weights']:>15,}  "
            f"{row['bits_per_weight']:>6.3f}  {size(row['bytes']):>10}"
        )
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _stored(one: "InspectedTensor") -> str:
    if one.layout is None:
        return one.dtype
    return f"{one.dtype} {one.layout} g{one.group_size} {'sym' if one.symmetric else 'asym'}"


def _draft_line(draft: dict[str, Any] | None) -> str:
    if draft is None:
        return "no draft vocabulary"
    if "problem" in draft:
        return f"not usable: {one_line(draft['problem'])}"
    covered = "" if draft["coverage"] is None else f", {draft['coverage']:.2%} of its corpus"
    return f"{draft['ids']:,} of {draft['vocab_size']:,}{covered}"
