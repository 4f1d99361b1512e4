"""Perplexity of another engine by the rules of ours: same ids, same windows, same arithmetic."""

import math
from collections.abc import Callable

from bytebound_evals.intervals import bootstrap_mean
from bytebound_evals.perplexity import Perplexity, summarize
from bytebound_evals.results import Metric
from bytebound_evals.rivals.http import Server
from bytebound_evals.rivals.logits_file import LogitsFile
from bytebound_evals.rivals.prompt_logprobs import DIALECTS
from bytebound_evals.windows import CutText


def served_perplexity(
    server: Server,
    model: str,
    dialect: str,
    text: CutText,
    tick: Callable[[int], object] = lambda count: None,
) -> Perplexity:
    """Score every window of ``text`` by the server's prompt logprobs.

    ``dialect`` is one of ``DIALECTS``. A window starts from an empty state, as with our engine.

    Raises:
        RivalError: the server does not score prompts, or says what cannot be right.
    """
    sums = []
    for window in text.windows:
        values = DIALECTS[dialect](server, model, window.ids)  # value t - 1 is that of id t
        sums.append(-math.fsum(values[window.first - 1 :]))
        tick(len(window.targets))
    return summarize(sums, text)


def file_metrics(name: str, file: LogitsFile) -> dict[str, Metric]:
    """``<name>.ppl`` of a file of ``llama-perplexity``, over the rows that it holds.

    Its rule is its own: of every window only the second half is scored.
    """
    losses = [-value for value in file.target_logprobs()]
    per_chunk = [
        math.fsum(losses[i : i + file.rows_per_chunk])
        for i in range(0, len(losses), file.rows_per_chunk)
    ]
    counts = [file.rows_per_chunk] * len(per_chunk)
    interval = bootstrap_mean(per_chunk, counts)
    case: dict[str, object] = {
        "rule": "llama-perplexity: the second half of every window",
        "window": file.context,
        "windows": len(per_chunk),
        "scored": len(losses),
        "values": "rounded to 16 bits",
    }
    if interval is not None:
        case["interval"] = [math.exp(bound) for bound in interval]
    ppl = math.exp(math.fsum(losses) / len(losses))
    return {f"{name}.ppl": Metric("ppl", "lower", (ppl,), case)}
