r"""Perplexity of another engine on our yardstick, by its server's prompt logprobs or a logits file.

    python bench/baselines/quality.py --url http://127.0.0.1:8000 --dialect vllm --name vllm \
        --tokenizer FOLDER --text heldout --window 2048 --out FILE
    python bench/baselines/quality.py --logits-file FILE --name llama_cpp --out FILE

The server scores exactly the windows that ``bytebound-evals ppl`` scores with the same options. A
file of ``llama-perplexity --kl-divergence-base`` has its own rule, which the result names.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from bytebound.cli.errors import UsageError
from bytebound.errors import ByteboundError
from bytebound_evals.cli.outputs import check_file
from bytebound_evals.conditions import command_record, commit_record, machine_record
from bytebound_evals.errors import EvalError, RivalError
from bytebound_evals.measured_text import TextSettings
from bytebound_evals.quality_metrics import perplexity_metrics
from bytebound_evals.results import Metric, Result, write_result
from bytebound_evals.rivals.http import Server
from bytebound_evals.rivals.logits_file import open_logits_file
from bytebound_evals.rivals.prompt_logprobs import DIALECTS
from bytebound_evals.rivals.quality import file_metrics, served_perplexity
from bytebound_evals.rivals.runner import open_tokenizer


def measure(options: argparse.Namespace) -> dict[str, Metric]:
    """The metrics of the server or of the file."""
    if options.logits_file is not None:
        return file_metrics(options.name, open_logits_file(options.logits_file))
    if options.url is None or options.tokenizer is None:
        raise UsageError("expected --logits-file, or --url and --tokenizer")
    settings = TextSettings(text=options.text, window=options.window, max_tokens=options.max_tokens)
    cut = settings.cut(open_tokenizer(options.tokenizer))
    server = Server(options.url, options.timeout)
    found = served_perplexity(server, options.model_name, options.dialect, cut)
    model = Path(options.tokenizer).name
    return perplexity_metrics(options.name, model, cut, found)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--name", required=True, help="what metrics call the engine, e.g. vllm")
    add("--out", type=Path, required=True, metavar="FILE")
    add("--url", help="where its server listens")
    add("--dialect", choices=tuple(DIALECTS), default="echo")
    add("--model-name", default="model", help="what the server calls the model")
    add("--tokenizer", metavar="FOLDER|NAME", help="the model's tokenizer")
    add("--text", default="heldout", metavar="SOURCE", help="as bytebound-evals ppl takes it")
    add("--window", type=int, default=2048, metavar="N")
    add("--max-tokens", type=int, metavar="N")
    add("--timeout", type=float, default=600.0, metavar="S")
    add("--logits-file", type=Path, metavar="FILE", help="of llama-perplexity")
    add("--commit")
    options = parser.parse_args(argv)
    words = sys.argv[1:] if argv is None else argv
    try:
        check_file("--out", options.out)
        metrics = measure(options)
        result = Result(
            machine=machine_record("cuda" if torch.cuda.is_available() else "cpu"),
            commit=commit_record(options.commit),
            command=command_record("bench/baselines/quality.py", words),
            metrics=metrics,
        )
        write_result(options.out, result)
    except (EvalError, ByteboundError, UsageError) as error:
        print(f"quality: error: {error}", file=sys.stderr)
        return 1 if isinstance(error, RivalError) else 2
    for name, metric in metrics.items():
        print(f"{name:24} {metric.median:.5g} {metric.unit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
