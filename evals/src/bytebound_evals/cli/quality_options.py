"""The options that only the quality commands share."""

from typing import Annotated

import typer

KvDtype = Annotated[
    str, typer.Option(metavar="auto|bfloat16|fp8", help="Kind of KV cache; fp8: cuda only.")
]
Name = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="What metrics call the model. Default: its folder's name."),
]
Draft = Annotated[
    str,
    typer.Option(metavar="mtp|ngram|none", help="Who guesses ahead; the replies do not change."),
]
Mode = Annotated[
    str,
    typer.Option(
        metavar="chat|completion",
        help="chat: through the model's template; completion: as plain text.",
    ),
]
Thinking = Annotated[
    bool,
    typer.Option("--thinking/--no-thinking", help="Chat: let the model think before it answers."),
]
