"""llama.cpp's own bench tool: prefill and plain decode at depths, in our result file.

    python bench/baselines/llama_bench.py --model FILE.gguf --out FILE [--depth 512 8192 32768]

Random ids of its own, not our prompts: it says what the kernels do, without a server around them.
Not installed: the file says so, and the exit code is 0.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from bytebound.cli.errors import UsageError
from bytebound_evals.cli.outputs import check_file
from bytebound_evals.conditions import command_record, commit_record, machine_record
from bytebound_evals.errors import EvalError, RivalError
from bytebound_evals.results import Metric, Result, write_result
from bytebound_evals.rivals.process import found_program
from bytebound_evals.rivals.runner import not_measured, split_words
from bytebound_evals.speed.samples import SPEED_TOLERANCE_PCT, depth_label

NAME = "llama_bench"
PROGRAM = ("llama-bench",)


def metrics_of(records: Sequence[dict[str, Any]], model: str) -> dict[str, Metric]:
    """Metrics by our names: ``prompt_<depth>.tok_s`` and ``plain_<depth>.tok_s``.

    Raises:
        RivalError: a record lacks a field, or measures prompt and reply at once.
    """
    found = {}
    for record in records:
        try:
            prompt, new, depth = record["n_prompt"], record["n_gen"], record["n_depth"]
            samples = tuple(map(float, record["samples_ts"]))
        except (KeyError, TypeError, ValueError) as error:
            raise RivalError(
                f"{NAME}: a record without n_prompt, n_gen, n_depth or samples_ts: {error}"
            ) from error
        if bool(prompt) == bool(new) or not samples:
            raise RivalError(f"{NAME}: got n_prompt {prompt} and n_gen {new}, expected one of them")
        case: dict[str, Any] = {"engine": NAME, "model": model, "ids": "its own"}
        if prompt:
            stem, case = f"prompt_{depth_label(prompt)}", {**case, "prompt_tokens": prompt}
        else:
            stem = f"plain_{depth_label(depth)}"
            case |= {"prompt_tokens": depth, "new_tokens": new, "draft": "none"}
        found[f"{stem}.tok_s"] = Metric("tok/s", "higher", samples, case, SPEED_TOLERANCE_PCT)
    return found


def bench(program: Sequence[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the tool once for prefill and once for decode.

    Raises:
        RivalError: it fails, or prints something else than JSON.
    """
    depths = ",".join(map(str, options.depth))
    common = [*program, "-m", options.model, "-ngl", "999", "-fa", "1", "-o", "json"]
    common += ["-r", str(options.samples), *split_words("--extra", options.extra)]
    records: list[dict[str, Any]] = []
    for words in (["-p", depths, "-n", "0"], ["-p", "0", "-n", str(options.tokens), "-d", depths]):
        try:
            done = subprocess.run([*common, *words], capture_output=True, text=True, check=False)
        except OSError as error:  # no program, though its file says so
            raise RivalError(f"{program[0]} cannot be run: {error.strerror or error}") from error
        if done.returncode != 0:
            raise RivalError(f"{NAME} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        try:
            records += json.loads(done.stdout)
        except ValueError as error:
            raise RivalError(f"{NAME}: not JSON: {done.stdout.strip()[:300]}") from error
    return records


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--command", default="", help=f"default: {PROGRAM[0]}")
    parser.add_argument("--depth", type=int, nargs="+", default=[512, 8192, 32768])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--extra", default="", metavar="WORDS")
    parser.add_argument("--commit")
    options = parser.parse_args(argv)
    recorded = command_record(f"bench/baselines/{NAME}.py", sys.argv[1:] if argv is None else argv)
    try:
        check_file("--out", options.out)
        program = split_words("--command", options.command) or PROGRAM
        if not found_program(program):
            reason = f"{program[0]} is not installed here; give --command"
            return not_measured(NAME, reason, recorded, options.out, options.commit)
        records = bench(program, options)
        metrics = metrics_of(records, Path(options.model).name)
        build = records[0].get("build_commit")
        result = Result(
            machine=machine_record("cuda" if torch.cuda.is_available() else "cpu"),
            commit=commit_record(options.commit),
            command=recorded,
            wheel={"llama.cpp": str(build)} if build else None,
            note="By llama-bench: one stream, its own random ids, no server.",
            metrics=metrics,
        )
        write_result(options.out, result)
    except (EvalError, UsageError) as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 1 if isinstance(error, RivalError) else 2
    for name, metric in metrics.items():
        print(f"{name:24} {metric.median:10.2f} {metric.unit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
