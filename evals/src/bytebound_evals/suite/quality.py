"""Quality of every form against the 16 bits: perplexity, KL, top-1, word problems, bits.

The reference runs side by side with each form, on the same windows of the same text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
from bytebound_evals.results import Metric
from bytebound_evals.suite.forms import BF16, Form, bits_per_weight


@dataclass(frozen=True, slots=True)
class QualitySettings:
    """What the forms are judged by."""

    text: TextSettings = field(default_factory=lambda: TextSettings(window=1024, max_tokens=16_384))
    problems: str = "arithmetic"
    problem_limit: int | None = 100
    reply_tokens: int = 256
    backend: str = "auto"
    device: str | None = None
    dtype: str | None = None


def measure_quality(
    model: str,
    forms: Sequence[Form],
    settings: QualitySettings,
    say: Callable[[str], object] = lambda text: None,
) -> dict[str, Metric]:
    """All metrics of the model's 16 bits and of every form.

    Raises:
        EvalError, ByteboundError: what the measurements refuse.
    """
    window = settings.text.window
    reference = _run(model, settings, draft="none").open()
    cut = settings.text.cut(reference.tokenizer)
    chat = reference.tokenizer.hf.chat_template is not None
    ask = AskSettings(
        mode="chat" if chat else "completion",
        max_tokens=settings.reply_tokens,
        instruction="",
    )
    problems = load_problems(
        settings.problems, shots=0 if chat else 8, limit=settings.problem_limit
    )
    base = Path(model).name
    metrics: dict[str, Metric] = {}
    for form in (Form(BF16, model), *forms):
        run = _run(form.model, settings, draft="mtp")
        run.check_length("window", window)
        engine = run.open()
        if form.name == BF16:
            say(f"{form.name}: perplexity")
            found = measure_perplexity(engine, cut)
            metrics |= perplexity_metrics(form.name, base, cut, found)
        else:
            say(f"{form.name}: KL against {BF16} and perplexity")
            judged = measure_divergence(engine, LiveReference(reference, cut), cut)
            metrics |= divergence_metrics(form.name, base, BF16, cut, judged)
        say(f"{form.name}: {len(problems.problems)} problems of {problems.name}")
        right = measure_accuracy(engine, problems, ask)
        metrics |= accuracy_metrics(form.name, base, problems, ask, right)
        bits = bits_per_weight(form.model)
        case = {"model": base, "weights": "decoder"}
        metrics[f"{form.name}.bits_per_weight"] = Metric("bit", "lower", (bits,), case)
    return metrics


def form_rows(metrics: Mapping[str, Metric]) -> dict[str, tuple[float | None, ...]]:
    """By form: bits, perplexity, KL, top-1, and the share of problems answered right."""

    def median(name: str | None) -> float | None:
        metric = None if name is None else metrics.get(name)
        return None if metric is None else metric.median

    rows = {}
    for name in metrics:
        form, _, field = name.rpartition(".")
        if field == "bits_per_weight":
            accuracy = next((n for n in metrics if n.endswith(f".{form}.accuracy")), None)
            names = (name, f"{form}.ppl", f"{form}.kl", f"{form}.top1", accuracy)
            rows[form] = tuple(map(median, names))
    return rows


def _run(model: str, settings: QualitySettings, *, draft: str) -> ModelRun:
    return ModelRun(
        model, settings.backend, settings.device, settings.dtype, max_len=None, draft=draft
    )
