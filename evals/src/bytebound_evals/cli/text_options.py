"""The options of ``ppl`` and ``kl`` that say which text is measured on and how it is cut."""

from typing import Annotated

import typer

from bytebound_evals.cli.errors import UsageError

_TEXT = "Text"

Text = Annotated[
    str,
    typer.Option(
        metavar="SOURCE",
        help="heldout (shipped); wikitext2 or wikitext103, also wikitext2:FOLDER for a local copy; "
        "a text or .jsonl file; or KIND:PATH[@[CONFIG/]SPLIT][#COLUMN] with KIND text, jsonl or "
        "datasets.",
        rich_help_panel=_TEXT,
    ),
]
Join = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help=r"Make one document of all rows, with this between two; \n is a line end. Default: "
        "each row is a document of its own; wikitext2 is joined by an empty line.",
        rich_help_panel=_TEXT,
    ),
]
Window = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Tokens that the model reads at once, from an empty state.",
        rich_help_panel=_TEXT,
    ),
]
Stride = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="From one window's beginning to the next. Default: the window; less gives context.",
        rich_help_panel=_TEXT,
    ),
]
Prefix = Annotated[
    str,
    typer.Option(
        metavar="none|document|window",
        help="What a prefix token stands in front of. none: the first token of each window is "
        "context only.",
        rich_help_panel=_TEXT,
    ),
]
PrefixId = Annotated[
    int | None,
    typer.Option(
        metavar="ID",
        help="The prefix token. Default: <|endoftext|>, else the tokenizer's end token.",
        rich_help_panel=_TEXT,
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(metavar="N", help="Measure on the first N tokens only.", rich_help_panel=_TEXT),
]


def unescaped(join: str | None) -> str | None:
    r"""``--join`` with ``\n``, ``\t`` and ``\\`` read as in a program."""
    if join is None:
        return None
    text, rest = "", join
    while rest:
        before, slash, rest = rest.partition("\\")
        text += before
        if slash:
            known = {"n": "\n", "t": "\t", "\\": "\\"}.get(rest[:1])
            if known is None:
                raise UsageError(f"--join {join!r}: expected \\n, \\t or \\\\ behind a backslash")
            text, rest = text + known, rest[1:]
    return text
