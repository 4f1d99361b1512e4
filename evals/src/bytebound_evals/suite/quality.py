"""Quality of every form against the 16 bits: perplexity, KL, top-1, word problems, bits.

The reference runs side by side with each form, on the same windows of the same text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bytebound import Engine
from bytebound.loading import find_model
from bytebound.settings import BACKENDS, check_choice, check_device, check_dtype
from bytebound.text.tokenizer import Tokenizer

from bytebound_evals.divergence import LiveReference, check_same_vocabulary, measure_divergence
from bytebound_evals.gsm8k import AskSettings, measure_accuracy
from bytebound_evals.identity import tokenizer_digest
from bytebound_evals.measured_text import TextSettings
from bytebound_evals.model_run import ModelRun, engine_name, free_memory, tokenizer_of
from bytebound_evals.perplexity import measure_perplexity
from bytebound_evals.problems import ProblemSet, load_problems
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
    engine: str = "graph"
    """Of the forms; the 16 bits, which a stream does not take, run on "graph"."""


def check_quality(model: str, forms: Sequence[Form], settings: QualitySettings) -> None:
    """Find what ``measure_quality`` would refuse, before any weight is read.

    Raises:
        EvalError, ByteboundError: a text, a set of problems, a model or a setting is not usable.
    """
    _, config = find_model(model)
    check_dtype(settings.dtype, config, check_device(settings.device))
    check_choice("backend", settings.backend, BACKENDS)
    engine_name(model, settings.backend, settings.device, settings.dtype, settings.engine)
    tokenizer = tokenizer_of(model)
    for form in (Form(BF16, model), *forms):
        _run(form.model, settings).check_length("window", settings.text.window)
        vocab_size = find_model(form.model)[1].vocab_size
        check_same_vocabulary(
            tokenizer_digest(tokenizer),
            tokenizer_digest(tokenizer_of(form.model)),
            config.vocab_size,
            vocab_size,
        )
    settings.text.cut(tokenizer)
    _problems(tokenizer, settings)


def measure_quality(
    model: str,
    forms: Sequence[Form],
    settings: QualitySettings,
    say: Callable[[str], object] = lambda text: None,
) -> dict[str, Metric]:
    """All metrics of the model's 16 bits and of every form.

    Every model is loaded once, and there are never more than two.

    Raises:
        EvalError, ByteboundError: what the measurements refuse.
    """
    reference = _run(model, settings).open()
    cut = settings.text.cut(reference.tokenizer)
    chat = reference.tokenizer.hf.chat_template is not None
    ask = AskSettings(
        mode="chat" if chat else "completion",
        max_tokens=settings.reply_tokens,
        instruction="",
    )
    problems = _problems(reference.tokenizer, settings)
    base = Path(model).name
    metrics: dict[str, Metric] = {}

    def measure(form: Form, engine: Engine) -> None:
        if engine is reference:
            say(f"{form.name}: perplexity")
            metrics.update(
                perplexity_metrics(form.name, base, cut, measure_perplexity(engine, cut))
            )
        else:
            say(f"{form.name}: KL against {BF16} and perplexity")
            judged = measure_divergence(engine, LiveReference(reference, cut), cut)
            metrics.update(divergence_metrics(form.name, base, BF16, cut, judged))
        say(f"{form.name}: {len(problems.problems)} problems of {problems.name}")
        right = measure_accuracy(engine, problems, ask)
        metrics.update(accuracy_metrics(form.name, base, problems, ask, right))
        bits = bits_per_weight(form.model)
        case = {"model": base, "weights": "decoder"}
        metrics[f"{form.name}.bits_per_weight"] = Metric("bit", "lower", (bits,), case)

    measure(Form(BF16, model), reference)
    for form in forms:  # one at a time beside the reference, gone before the next is loaded
        measure(form, _run(form.model, settings, settings.engine).open())
        free_memory()
    return metrics


def _problems(tokenizer: Tokenizer, settings: QualitySettings) -> ProblemSet:
    """Without a chat template the model continues worked examples."""
    shots = 0 if tokenizer.hf.chat_template is not None else 8
    return load_problems(settings.problems, shots=shots, limit=settings.problem_limit)


def _run(model: str, settings: QualitySettings, engine: str = "graph") -> ModelRun:
    """With its MTP head, which changes no logit and no reply: one engine scores and answers."""
    where = settings.backend, settings.device, settings.dtype
    return ModelRun(model, *where, draft="mtp", engine=engine)
