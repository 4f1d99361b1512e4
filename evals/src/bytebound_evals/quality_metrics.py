"""Quality figures as metrics of a result file; ``name`` stands for the model in their names."""

from typing import Any

from bytebound_evals.divergence import DIRECTION, Divergence
from bytebound_evals.gsm8k import Accuracy, AskSettings
from bytebound_evals.intervals import METHOD, Interval
from bytebound_evals.needle import NeedleSettings, NeedleTable
from bytebound_evals.perplexity import Perplexity
from bytebound_evals.problems import ProblemSet
from bytebound_evals.results import Metric
from bytebound_evals.windows import CutText


def perplexity_metrics(
    name: str, model: str, text: CutText, found: Perplexity
) -> dict[str, Metric]:
    """``<name>.ppl``."""
    case = {"model": model, **text.as_dict(), **_bounds(found.ppl_interval)}
    return {f"{name}.ppl": Metric("ppl", "lower", (found.ppl,), case)}


def divergence_metrics(
    name: str, model: str, reference: str, text: CutText, found: Divergence
) -> dict[str, Metric]:
    """``<name>.kl``, ``<name>.top1`` and ``<name>.ppl``."""
    case = {"model": model, "reference": reference, "direction": DIRECTION, **text.as_dict()}
    return {
        f"{name}.kl": Metric("nat", "lower", (found.kl,), {**case, **_bounds(found.kl_interval)}),
        f"{name}.top1": Metric(
            "share", "higher", (found.top1,), {**case, **_bounds(found.top1_interval)}
        ),
        **perplexity_metrics(name, model, text, found.model),
    }


def accuracy_metrics(
    name: str, model: str, problems: ProblemSet, settings: AskSettings, found: Accuracy
) -> dict[str, Metric]:
    """``<set>.<name>.accuracy``, none where too many replies were cut, and the share of those."""
    case = {
        "model": model,
        "set": problems.name,
        "problems": len(problems.problems),
        "shots": len(problems.examples),
        "mode": settings.mode,
        "thinking": "on" if settings.thinking else "off",
        "max_tokens": settings.max_tokens,
    }
    stem = f"{problems.name}.{name}"
    metrics = {f"{stem}.cut_share": Metric("share", "lower", (found.cut_share,), case)}
    if found.accuracy is not None:
        bounds = {} if found.interval is None else {"interval": list(found.interval)}
        metrics[f"{stem}.accuracy"] = Metric(
            "share", "higher", (found.accuracy,), {**case, **bounds}
        )
    return metrics


def needle_metrics(
    name: str, model: str, settings: NeedleSettings, found: NeedleTable
) -> dict[str, Metric]:
    """``needle.<name>.found`` over all prompts, and ``.found_<length>`` for each length."""
    case = {
        "model": model,
        "depths": list(settings.depths),
        "trials": settings.trials,
        "mode": settings.mode,
        "thinking": "on" if settings.thinking else "off",
    }
    lengths = {"lengths": list(settings.lengths)}
    metrics = {f"needle.{name}.found": Metric("share", "higher", (found.share(),), case | lengths)}
    for length in found.lengths:
        metrics[f"needle.{name}.found_{length}"] = Metric(
            "share", "higher", (found.share(length),), {**case, "length": length}
        )
    return metrics


def _bounds(interval: Interval | None) -> dict[str, Any]:
    if interval is None:
        return {}
    return {"interval": list(interval), "interval_method": METHOD}
