"""Quality of the shipped model in 16 bit and in every 4-bit form, on one yardstick.

    python bench/tiny_quality.py --work DIR --json FILE [--corpus train.jsonl] [--samples 256]

Quantizes the model "tiny" with the command ``bytebound-quant`` into DIR (finished folders there are
used again), then measures all of them with the reference backend in float32. ``bytebound-evals
suite`` does the same with two of the forms and any model; here are eight, and the MTP head:

- ``<form>.ppl``, ``<form>.kl`` and ``<form>.top1``: as ``bytebound-evals kl`` measures them, on the
  held-out text in windows of 1,024 tokens that do not overlap.
- ``arithmetic.<form>.accuracy``: as ``bytebound-evals gsm8k`` does, thinking off.
- ``mtp.<form>.acceptance_depth1``: how often the MTP head's guess is the target's own choice.

Calibration text: pieces of the training corpus (``--corpus``, the train.jsonl that
tools/tiny/corpus.py builds), else the interpreter's standard library and language reference; and
generated problems from seeds that the held-out problems do not use.
"""

import argparse
import importlib.util
import json
import pydoc_data.topics
import random
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bytebound
import torch
from bytebound.reference.executor import ReferenceExecutor
from bytebound.reference.model import forward, logits
from bytebound.reference.mtp import mtp_forward
from bytebound.reference.rows import Rows
from bytebound.reference.state import KvCache, SequenceState
from bytebound_evals.conditions import commit_record, machine_record
from bytebound_evals.data import arithmetic_problems
from bytebound_evals.divergence import LiveReference, measure_divergence
from bytebound_evals.gsm8k import AskSettings, measure_accuracy
from bytebound_evals.measured_text import TextSettings
from bytebound_evals.model_run import ModelRun
from bytebound_evals.perplexity import measure_perplexity
from bytebound_evals.problems import load_problems
from bytebound_evals.quality_metrics import (
    accuracy_metrics,
    divergence_metrics,
    perplexity_metrics,
)
from bytebound_evals.results import Metric, Result, write_result
from bytebound_evals.windows import CutText
from bytebound_quant.heldout import HeldoutDetector

WINDOW = 1024
FORMS = {
    "rtn": ("rtn",),
    "rtn_mse": ("rtn", "--mse"),
    "gptq": ("gptq", "--no-mse"),
    "gptq_mse": ("gptq", "--mse"),
    "rtn_asym": ("rtn", "--asymmetric"),
    "rtn_mse_asym": ("rtn", "--mse", "--asymmetric"),
    "gptq_asym": ("gptq", "--no-mse", "--asymmetric"),
    "gptq_mse_asym": ("gptq", "--mse", "--asymmetric"),
}
WITH_ARITHMETIC = ("bf16", "gptq_mse")
CALIBRATION_PROBLEMS = 2000
MAX_SOURCE_BYTES = 100_000
SAMPLE_BYTES = 1_000_000
PIECE = 4000  # characters of one piece of a document


def write_calibration(folder: Path, corpus: Path | None) -> tuple[Path, Path]:
    """Text and conversations to calibrate on; what holds held-out passages is left out."""
    text, chats = folder / "calibration.txt", folder / "calibration.jsonl"
    parts = _library() if corpus is None else _sample(corpus)
    text.write_text("\n\n".join(filter(_is_unseen, parts)), encoding="utf-8")
    problems = _load_tool("problems")
    held_out = {problem.question for problem in arithmetic_problems()}
    with chats.open("w", encoding="utf-8") as file:
        for seed in range(CALIBRATION_PROBLEMS):
            item = problems.problem(random.Random(f"calibration {seed}"))
            if item.question not in held_out:
                messages = problems.conversation(item, thinking=seed % 2 == 1)
                file.write(json.dumps({"messages": messages}) + "\n")
    return text, chats


def _library() -> list[str]:
    """The interpreter's own library and language reference."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    sources = [file for file in files if file.stat().st_size <= MAX_SOURCE_BYTES]
    topics = [str(topic) for topic in pydoc_data.topics.topics.values()]
    return topics + [file.read_text(encoding="utf-8", errors="replace") for file in sources]


def _sample(corpus: Path) -> list[str]:
    """Pieces of documents of the training corpus, as many bytes of each kind."""
    kinds: dict[str, list[str]] = {}
    with corpus.open(encoding="utf-8") as file:
        for line in file:
            document = json.loads(line)
            kinds.setdefault(document["kind"], []).append(document["text"])
    draw = random.Random(0)
    parts: list[str] = []
    for _, documents in sorted(kinds.items()):
        taken = 0
        while taken < SAMPLE_BYTES:
            document = draw.choice(documents)
            start = draw.randrange(max(1, len(document) - PIECE))
            parts.append(document[start : start + PIECE])
            taken += len(parts[-1])
    draw.shuffle(parts)
    return parts


def _is_unseen(text: str) -> bool:
    detector = HeldoutDetector()
    detector.feed(text)
    return not detector.found


def _load_tool(name: str) -> Any:
    path = Path(__file__).parents[1] / "tools" / "tiny" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def quantize(name: str, work: Path, samples: int, window: int) -> Path:
    """Make the folder of one form, unless it is there already."""
    target = work / name
    if target.exists():
        return target
    method, *options = FORMS[name]
    command = [
        str(Path(sys.executable).with_name("bytebound-quant")),
        method,
        "tiny",
        str(target),
        *options,
    ]
    if method == "gptq":
        text, chats = work / "calibration.txt", work / "calibration.jsonl"
        command += ["--calib", f"text:{text}=0.7", "--calib", f"jsonl:{chats}#messages=0.3"]
        command += ["--chat-template", "--samples", str(samples), "--window", str(window)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return target


def acceptance(engine: bytebound.Engine, text: CutText) -> float:
    """Share of the MTP head's guesses, teacher-forced, that are the target's own choice."""
    executor = engine.executor
    mtp = executor.weights.mtp if isinstance(executor, ReferenceExecutor) else None
    if not isinstance(executor, ReferenceExecutor) or mtp is None:
        raise RuntimeError("this measurement needs the reference backend and an MTP head")
    config, weights = executor.config, executor.weights
    agreed = chances = 0
    for window in text.windows:
        state = SequenceState.empty(config, WINDOW, executor.dtype, executor.device)
        kv = KvCache.empty(config, WINDOW, executor.dtype, executor.device)
        with torch.inference_mode():
            rows = Rows(0, len(window.ids), wide=True)
            hidden = forward(torch.tensor(window.ids), weights, config, state, rows)[:-1]
            following = torch.tensor(window.ids[1:])
            out = mtp_forward(following, hidden, weights, mtp, config, kv, 0)
            own, head = logits(hidden, weights).argmax(-1), logits(out, weights).argmax(-1)
        # Row p of the head guesses the token that the target chooses at p + 1.
        agreed += int((head[:-1] == own[1:]).sum())
        chances += len(own) - 1
    return agreed / chances


def measure_all(folder_of: Mapping[str, str], max_tokens: int | None) -> dict[str, Metric]:
    """All metrics of all forms."""
    reference = ModelRun("tiny", device="cpu", dtype="float32").open()
    text = TextSettings(window=WINDOW, max_tokens=max_tokens).cut(reference.tokenizer)
    problems = load_problems("arithmetic")
    ask = AskSettings(max_tokens=160, instruction="")
    metrics: dict[str, Metric] = {}
    for form in ("bf16", *FORMS):
        run = ModelRun(folder_of[form], device="cpu", dtype="float32", draft="mtp")
        engine = run.open()
        if form == "bf16":
            found = perplexity_metrics(form, "tiny", text, measure_perplexity(engine, text))
        else:
            judged = measure_divergence(engine, LiveReference(reference, text), text)
            found = divergence_metrics(form, "tiny", "bf16", text, judged)
        name = "mtp.acceptance_depth1" if form == "bf16" else f"mtp.{form}.acceptance_depth1"
        case = {"model": "tiny", **text.as_dict()}
        found[name] = Metric("share", "higher", (acceptance(engine, text),), case)
        if form in WITH_ARITHMETIC:
            right = measure_accuracy(engine, problems, ask)
            found |= accuracy_metrics(form, "tiny", problems, ask, right)
        for metric, value in found.items():
            print(f"{metric:36} {value.median:.5g}", flush=True)
        metrics |= found
    return metrics


def main() -> int:
    """Quantize, measure, write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--corpus", type=Path, metavar="FILE")
    parser.add_argument("--tokens", type=int, help="of the held-out text")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--window", type=int, default=512)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    write_calibration(arguments.work, arguments.corpus)
    folders = {"bf16": "tiny"}
    for form in FORMS:
        made = quantize(form, arguments.work, arguments.samples, arguments.window)
        folders[form] = str(made)
    result = Result(
        machine=machine_record("cpu"),
        commit=commit_record(),
        command="python bench/tiny_quality.py --work DIR --json FILE "
        + ("--corpus train.jsonl " if arguments.corpus else "")
        + f"--samples {arguments.samples} --window {arguments.window}",
        note="KL(16 bit || 4 bit) in nats; acceptance is teacher-forced; computed in float32.",
        metrics=measure_all(folders, arguments.tokens),
    )
    write_result(arguments.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
