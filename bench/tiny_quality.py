"""Quality of the shipped model in 16 bit and in every 4-bit form, on one yardstick.

    python bench/tiny_quality.py --work DIR --json FILE [--corpus train.jsonl] [--samples 256]

Quantizes the model "tiny" with the command ``bytebound-quant`` into DIR (finished folders there are
used again), then measures all of them with the reference backend in float32:

- ``<form>.ppl``: perplexity of the held-out text in windows of 1,024 tokens that do not overlap,
  each from an empty state; the first token of a window is context only.
- ``<form>.kl``: mean over the same positions of KL(16 bit || form), in nats over the whole
  vocabulary in float64, and ``<form>.top1``, how often both have the same likeliest token.
- ``arithmetic.<form>.accuracy``: greedy answers to the held-out problems, thinking off.
- ``mtp.<form>.acceptance_depth1``: how often the MTP head's guess is the target's own choice.

Calibration text: pieces of the training corpus (``--corpus``, the train.jsonl that
tools/tiny/corpus.py builds), else the interpreter's standard library and language reference; and
generated problems from seeds that the held-out problems do not use.
"""

import argparse
import importlib.util
import json
import math
import pydoc_data.topics
import random
import re
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bytebound
import torch
from bytebound.reference.executor import ReferenceExecutor
from bytebound.reference.model import forward, logits
from bytebound.reference.mtp import mtp_forward
from bytebound.reference.rows import Rows
from bytebound.reference.state import KvCache, SequenceState
from bytebound_evals.data import arithmetic_problems, heldout_text
from bytebound_quant.heldout import HeldoutDetector
from tiny_decode import commit, machine

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


class Yardstick:
    """The held-out windows and what the 16-bit model says of them."""

    def __init__(self, engine: bytebound.Engine, tokens: int) -> None:
        ids = engine.tokenizer.encode(heldout_text())[:tokens]
        self.windows = [ids[i : i + WINDOW] for i in range(0, len(ids) - 1, WINDOW)]
        self.reference = engine

    def measure(self, engine: bytebound.Engine) -> dict[str, float]:
        """Perplexity, KL and agreement of one engine."""
        loss, kl, same, drafted, positions = 0.0, 0.0, 0, 0, 0
        for ids, own, head in self._rows(engine):
            expected = torch.log_softmax(self.reference.score(ids)[:-1].double(), -1)
            target = torch.tensor(ids[1:])
            loss -= float(own.gather(1, target[:, None]).sum())
            kl += float((expected.exp() * (expected - own)).sum())
            same += int((expected.argmax(-1) == own.argmax(-1)).sum())
            # Row p of the head guesses the token that the target chooses at p + 1.
            drafted += int((head[:-1] == own.argmax(-1)[1:]).sum())
            positions += len(target)
        chances = positions - len(self.windows)
        return {
            "ppl": math.exp(loss / positions),
            "kl": kl / positions,
            "top1": same / positions,
            "acceptance_depth1": drafted / chances,
        }

    def _rows(
        self, engine: bytebound.Engine
    ) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor]]:
        """Per window: ids, log-probabilities [T-1, vocab] in float64, the head's guesses [T-1]."""
        executor = engine.executor
        if not isinstance(executor, ReferenceExecutor) or executor.weights.mtp is None:
            raise RuntimeError("this yardstick needs the reference backend and an MTP head")
        config, weights = executor.config, executor.weights
        for ids in self.windows:
            state = SequenceState.empty(config, WINDOW, executor.dtype, executor.device)
            kv = KvCache.empty(config, WINDOW, executor.dtype, executor.device)
            with torch.inference_mode():
                rows = Rows(0, len(ids), wide=True)
                hidden = forward(torch.tensor(ids), weights, config, state, rows)[:-1]
                following = torch.tensor(ids[1:])
                out = mtp_forward(following, hidden, weights, weights.mtp, config, kv, 0)
                own = torch.log_softmax(logits(hidden, weights).double(), -1)
                yield ids, own, logits(out, weights).argmax(-1)


def arithmetic(engine: bytebound.Engine) -> float:
    """Share of the held-out problems whose number after ``####`` is right."""
    right, problems = 0, arithmetic_problems()
    params = bytebound.SamplingParams(max_tokens=160)
    for problem in problems:
        messages = [{"role": "user", "content": problem.question}]
        ids = engine.tokenizer.apply_chat_template(messages, enable_thinking=False)
        right += _answer(engine.generate(ids, params).text) == _answer(problem.answer)
    return right / len(problems)


def _answer(text: str) -> str | None:
    found = re.findall(r"#### *(-?[\d,]+)", text)
    return found[-1].replace(",", "") if found else None


def measure_all(yardstick: Yardstick, folder_of: Callable[[str], Path | str]) -> Any:
    """All metrics of all forms."""
    metrics: dict[str, Any] = {}

    def add(name: str, value: float, unit: str, case: dict[str, Any], better: str) -> None:
        print(f"{name:36} {value:.5g}", flush=True)
        metrics[name] = {
            "unit": unit,
            "better": better,
            "median": statistics.median([value]),
            "samples": [value],
            "case": {"model": "tiny", **case},
        }

    text = {"text": "heldout.txt", "tokens": sum(map(len, yardstick.windows)), "window": WINDOW}
    for form in ("bf16", *FORMS):
        engine = bytebound.Engine.from_pretrained(folder_of(form), device="cpu", dtype="float32")
        got = yardstick.measure(engine)
        add(f"{form}.ppl", got["ppl"], "ppl", text, "lower")
        if form != "bf16":
            add(f"{form}.kl", got["kl"], "nat", text, "lower")
            add(f"{form}.top1", got["top1"], "share", text, "higher")
        name = "mtp.acceptance_depth1" if form == "bf16" else f"mtp.{form}.acceptance_depth1"
        add(name, got["acceptance_depth1"], "share", text, "higher")
        if form in WITH_ARITHMETIC:
            case = {"problems": len(arithmetic_problems()), "thinking": "off"}
            add(f"arithmetic.{form}.accuracy", arithmetic(engine), "share", case, "higher")
    return metrics


def main() -> int:
    """Quantize, measure, write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--corpus", type=Path, metavar="FILE")
    parser.add_argument("--tokens", type=int, default=10**9, help="of the held-out text")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--window", type=int, default=512)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    write_calibration(arguments.work, arguments.corpus)
    folders: dict[str, Path | str] = {"bf16": "tiny"}
    for form in FORMS:
        folders[form] = quantize(form, arguments.work, arguments.samples, arguments.window)
    reference = bytebound.Engine.from_pretrained("tiny", device="cpu", dtype="float32")
    yardstick = Yardstick(reference, arguments.tokens)
    metrics = measure_all(yardstick, folders.__getitem__)
    content = {
        "schema": 1,
        "machine": machine(torch.device("cpu")),
        "commit": commit(),
        "command": "python bench/tiny_quality.py --work DIR --json FILE "
        + ("--corpus train.jsonl " if arguments.corpus else "")
        + f"--samples {arguments.samples} --window {arguments.window}",
        "note": "KL(16 bit || 4 bit) in nats; acceptance is teacher-forced; computed in float32.",
        "metrics": metrics,
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
