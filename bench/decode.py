"""Decoding speed of the CUDA engine at the 27B shape, one stream, on this machine's GPU.

    python bench/decode.py --json FILE [--model random:qwen3.5-27b] [--tokens 128] [--samples 5]

Random weights are right for speed and say nothing of quality or of how many guesses stand. So with
drafts the acceptance is forced: the logits of a pass are raised at the first guesses, which then
stand, and the rest falls; each metric says how many. The clock is the host's, over the decode loop
as a caller sees it. Writes all samples in the form that bench/README.md describes.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bytebound import Engine, SamplingParams
from bytebound.cuda.cycle import Cycle, Form
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.sampling import Choice
from bytebound.draft_vocab import FORMAT, FORMAT_VERSION
from bytebound.loading import find_model
from bytebound_kernels import devices
from bytebound_kernels.bench.cases import measure_read_bandwidth
from bytebound_kernels.bench.memory import find_backend
from quant_layer import card
from safetensors.torch import save_file

SHORT, LONG = 1024, 32 * 1024
VERIFY_ROWS = (1, 2, 3, 5, 8)
DEPTHS = (1, 2, 3, 4, 5, 6, 7)
TURNS = 30
NOTE = "Random weights: right for speed, not for quality or acceptance."


class ForcedCycle(Cycle):
    """A turn in which the first ``stand`` guesses stand, whatever the weights think of them."""

    stand = 0

    def _choose(self, choice: Choice) -> None:
        if choice.num_drafts and self.stand:
            logits = self.executor.step.buffers.logits[: self.stand]
            logits.scatter_(1, self.ids[1 : 1 + self.stand, None].long().clamp(min=0), 1e9)
        super()._choose(choice)


def forced(engine: Engine, num_drafts: int, stand: int) -> CudaDecoder:
    """A decoder with the MTP head whose turns emit ``stand + 1`` tokens each."""
    decoder = CudaDecoder(engine.executor, engine.draft, num_drafts)
    decoder.cycle.__class__ = ForcedCycle
    decoder.cycle.stand = stand
    decoder.warm_up()
    return decoder


def speed(engine: Engine, prompt: list[int], tokens: int, samples: int) -> list[float]:
    """Tokens a second of greedy decoding behind the prompt."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    stats = [engine.generate(prompt, params).stats for _ in range(samples + 1)][1:]
    return [one.tok_per_s for one in stats]


def turn_times(engine: Engine, forms: dict[str, Form], samples: int) -> dict[str, list[float]]:
    """Milliseconds of a turn of each form, enqueued back to back behind the short prompt."""
    decoder = engine.decoder
    assert isinstance(decoder, CudaDecoder)
    times: dict[str, list[float]] = {name: [] for name in forms}
    for turn in range(samples + 1):
        for name, form in forms.items():
            engine.generate(some_prompt(SHORT), SamplingParams(max_tokens=2, ignore_eos=True))
            decoder._run("turn", form)
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(TURNS):
                decoder._run("turn", form)
            torch.cuda.synchronize()
            if turn > 0:
                times[name].append(1e3 * (time.perf_counter() - begun) / TURNS)
    return times


def some_prompt(length: int) -> list[int]:
    """Ids of no meaning."""
    return [(17 * i) % 1000 for i in range(length)]


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All metrics by name."""
    samples = arguments.samples
    read = measure_read_bandwidth(find_backend(), samples).median
    engine = load(arguments, draft="mtp", num_draft_tokens=4)
    per_token = engine.bytes_per_token or 0.0
    case = {
        "model": arguments.model,
        "engine": arguments.engine,
        "new_tokens": arguments.tokens,
        "device": devices()[0].name,
        **context_of(engine),
    }
    limit = {"bytes_per_token": per_token, "read_gb_s": read}
    metrics: dict[str, Any] = {}

    def record(name: str, unit: str, better: str, values: list[float], **more: Any) -> None:
        metrics[name] = metric(unit, better, values, {**case, **more})

    forms = {f"pass_rows{rows}_1k.ms": Form.of(Choice(rows - 1), rows - 1) for rows in VERIFY_ROWS}
    forms |= {
        "pass_sampled_1k.ms": Form.of(Choice(0, sampled=True), 0),
        "cycle4_1k.ms": Form.of(Choice(4), 4, by_head=True),
        "cycle4_sampled_1k.ms": Form.of(
            Choice(4, sampled=True, drawn_drafts=True), 4, by_head=True
        ),
    }
    times = turn_times(engine, forms, samples)
    for name, values in times.items():
        record(name, "ms", "lower", values, prompt_tokens=SHORT, back_to_back=True)
    plain = times["pass_rows1_1k.ms"]
    for name, other in (("verify5_over_plain", "pass_rows5_1k.ms"),):
        ratio = [one / base for one, base in zip(times[other], plain, strict=True)]
        record(name, "ratio", "lower", ratio, prompt_tokens=SHORT)

    engine.decoder = CudaDecoder(engine.executor, None, 4)
    engine.decoder.warm_up()
    short = speed(engine, some_prompt(SHORT), arguments.tokens, samples)
    record("plain_1k.tok_s", "tok/s", "higher", short, prompt_tokens=SHORT, draft="none")
    share = [100 * one * per_token / (read * 1e9) for one in short]
    record("plain_1k.percent_of_limit", "%", "higher", share, prompt_tokens=SHORT, **limit)
    plain_ms = [1e3 / one for one in short]

    for depth in DEPTHS if arguments.depths else (4,):
        for stand in range(depth + 1) if depth == 4 else (depth,):
            engine.decoder = forced(engine, depth, stand)
            values = speed(engine, some_prompt(SHORT), arguments.tokens * (1 + stand), samples)
            details = {"prompt_tokens": SHORT, "draft": "mtp", "num_draft_tokens": depth}
            details |= {"acceptance": f"forced: {stand} of {depth} guesses stand in every turn"}
            record(f"cycle{depth}_accept{stand}.tok_s", "tok/s", "higher", values, **details)
            if depth == stand == 4:
                record("cycle4_all_accepted.tok_s", "tok/s", "higher", values, **details)
                turns = [1e3 * (1 + stand) / one for one in values]
                ratio = [one / base for one, base in zip(turns, plain_ms, strict=True)]
                record("cycle4_over_plain", "ratio", "lower", ratio, **details)
    del engine
    for name, kv_dtype in (("32k", "auto"), ("32k_fp8", "fp8")):
        free()
        engine = load(arguments, draft="none", max_len=LONG + 1024, kv_dtype=kv_dtype)
        long = speed(engine, some_prompt(LONG), arguments.tokens, samples)
        about = {"prompt_tokens": LONG, "draft": "none", **context_of(engine)}
        record(f"plain_{name}.tok_s", "tok/s", "higher", long, **about)
        ratio = [one / base for one, base in zip(long, short, strict=True)]
        record(f"plain_{name}_over_1k", "ratio", "higher", ratio, **about)
        del engine
    if arguments.draft_ids:
        free()
        measure_draft_vocab(arguments, record)
    return metrics


def load(arguments: argparse.Namespace, **settings: Any) -> Engine:
    """The model as it is by default, but for these settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return Engine.from_pretrained(
            arguments.model, backend="cuda", engine=arguments.engine, **settings
        )


def free() -> None:
    """Give back what an engine held that is gone."""
    gc.collect()
    torch.cuda.empty_cache()


def context_of(engine: Engine) -> dict[str, Any]:
    """What an engine has room for, and in what."""
    plan = engine.memory_plan
    return {"max_len": engine.max_len, "kv_dtype": plan.kv_dtype if plan else ""}


def measure_draft_vocab(arguments: argparse.Namespace, record: Callable[..., None]) -> None:
    """A cycle whose guesses come from the first ids alone, as a draft vocabulary keeps them."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        path = Path(folder, "vocab.safetensors")
        ids = torch.arange(arguments.draft_ids, dtype=torch.int32)
        about = {"format": FORMAT, "format_version": FORMAT_VERSION}
        about["vocab_size"] = str(find_model(arguments.model)[1].vocab_size)
        save_file({"ids": ids}, path, metadata=about)
        engine = load(arguments, num_draft_tokens=4, max_len=4096, draft_vocab=path)
    forms = {"cycle4_draft_vocab_1k.ms": Form.of(Choice(4), 4, by_head=True)}
    about = {"prompt_tokens": SHORT, "draft_ids": arguments.draft_ids, **context_of(engine)}
    for name, values in turn_times(engine, forms, arguments.samples).items():
        record(name, "ms", "lower", values, **about)


def main(argv: list[str] | None = None) -> int:
    """Measure, write the file, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--model", default="random:qwen3.5-27b")
    parser.add_argument("--engine", choices=("graph", "stream"), default="graph")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--depths", action="store_true", help="all depths, not 4 alone")
    parser.add_argument("--draft-ids", type=int, help="also with a draft vocabulary of so many ids")
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    arguments = parser.parse_args(argv)
    write(arguments.json, "decode", measure(arguments), arguments.commit, argv)
    return 0


def metric(unit: str, better: str, samples: list[float], case: dict[str, Any]) -> dict[str, Any]:
    """One metric of a result file."""
    return {
        "unit": unit,
        "better": better,
        "median": statistics.median(samples),
        "samples": samples,
        "case": case,
    }


def write(
    path: Path,
    script: str,
    metrics: dict[str, Any],
    commit: str | None,
    argv: list[str] | None,
    note: str = NOTE,
) -> None:
    """Write the result file and print the medians."""
    content = {
        "schema": 1,
        "machine": {
            **card(torch.device("cuda:0")),
            "cuda": torch.version.cuda,
            "torch": torch.__version__,
        },
        "commit": commit or _commit(),
        "command": f"python bench/{script}.py {_arguments(argv or sys.argv[1:])}",
        "note": note,
        "metrics": metrics,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    for name, one in metrics.items():
        print(f"{name:32} {one['median']:10.3f} {one['unit']}")


def _arguments(argv: list[str]) -> str:
    """The command line as a result file records it: without the folders of one machine."""
    return " ".join(Path(word).name if "/" in word else word for word in argv)


def _commit() -> str:
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
