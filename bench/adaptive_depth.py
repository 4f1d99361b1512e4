"""An adaptive number of guesses against fixed ones, on the shipped model, whose acceptance is real.

    python bench/adaptive_depth.py --json FILE [--tokens 128] [--samples 5] [--temperature 0]

Eight prompts, answered by turns with 0 to 7 guesses a turn and with as many as have lately been
worth it. All answers must be the same tokens, or the run fails. A model this small says little of
the time of a large one, so each answer is also counted at the time that a turn of its guesses takes
at the 27B shape, from a ``decode.json`` (``--costs``): ``computed_27b.*`` are such figures. They
hold for a 27B model that accepted as this one does, and no such model was run.
"""

import argparse
import math
import statistics
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bytebound import Engine, GenerationResult, SamplingParams
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.depth import DepthPolicy
from bytebound.prompt_reader import PromptReader
from bytebound_evals.results import read_result
from bytebound_evals.speed.prompts import prompt_ids, speed_prompts
from bytebound_evals.speed.samples import geometric_mean
from bytebound_kernels import devices
from decode import metric, write

DEPTHS = range(8)
ADAPTIVE = "adaptive"
COSTS = Path(__file__).parent / "results" / "h200" / "decode.json"
NOTE = (
    "The shipped model: acceptance is real, tokens a second are those of a small model. "
    "computed_27b.* are computed: its turns, at the times that turns of the 27B shape take in "
    "the file of each case."
)


class Watched:
    """A depth policy that remembers how many guesses each turn of a request had."""

    def __init__(self, policy: DepthPolicy) -> None:
        self.policy = policy
        self.turns: Counter[int] = Counter()

    def begin(self) -> None:
        """See DepthPolicy."""
        self.policy.begin()
        self.turns.clear()
        self.first = True

    def observe(self, guessed: int, stood: int) -> None:
        """See DepthPolicy."""
        self.policy.observe(guessed, stood)
        if not self.first:  # which only chooses the token behind the prompt
            self.turns[guessed] += 1
        self.first = False

    @property
    def depth(self) -> int:
        """See DepthPolicy."""
        return self.policy.depth


@dataclass
class Answers:
    """What one way to guess gave on one prompt; all but the speed is the same every time."""

    tok_s: list[float] = field(default_factory=list)
    result: GenerationResult | None = None
    turns: Counter[int] = field(default_factory=Counter)


def turn_times(file: Path) -> list[float]:
    """Milliseconds of a turn with 0 to 7 guesses at the 27B shape, a short context behind it."""
    metrics = read_result(file).metrics
    plain = 1e3 / metrics["plain_1k.tok_s"].median
    return [plain] + [
        1e3 * (1 + depth) / metrics[f"cycle{depth}_accept{depth}.tok_s"].median
        for depth in DEPTHS[1:]
    ]


def decoders_of(engine: Engine) -> dict[str, CudaDecoder]:
    """Every way to guess, on one executor; none keeps a state for another."""
    executor: Any = engine.executor
    made = {}
    for name in [*map(str, DEPTHS), ADAPTIVE]:
        depth = DEPTHS[-1] if name == ADAPTIVE else int(name)
        draft = engine.draft if depth else None
        reader = PromptReader(executor, draft, snapshot_bytes=0)
        made[name] = CudaDecoder(
            executor, draft, max(depth, 1), reader, adaptive_depth=name == ADAPTIVE
        )
        made[name].warm_up()
        made[name]._own_depth = Watched(made[name]._own_depth)
    return made


def answer(engine: Engine, arguments: argparse.Namespace) -> dict[str, dict[str, Answers]]:
    """By prompt and way to guess, all by turns."""
    params = SamplingParams(
        max_tokens=arguments.tokens, temperature=arguments.temperature, seed=1, ignore_eos=True
    )
    decoders = decoders_of(engine)
    prompts = speed_prompts(arguments.prompt)
    found = {one.name: {name: Answers() for name in decoders} for one in prompts}
    for turn in range(arguments.samples + 1):
        for prompt in prompts:
            ids = prompt_ids(prompt, engine.tokenizer)
            for name, decoder in decoders.items():
                engine.decoder = decoder
                result = engine.generate(ids, params)
                if turn == 0:
                    continue  # warms up
                kept = found[prompt.name][name]
                kept.tok_s.append(result.stats.tok_per_s)
                if kept.result is not None and kept.result.token_ids != result.token_ids:
                    raise RuntimeError(f"{prompt.name}, {name}: another answer than before")
                kept.result = result
                kept.turns = Counter(decoder._own_depth.turns)  # type: ignore[attr-defined]
        _same_answers(found, arguments.temperature)
        print(f"round {turn} of {arguments.samples}", file=sys.stderr)
    return found


def _same_answers(found: dict[str, dict[str, Answers]], temperature: float) -> None:
    """Greedy answers do not depend on the guesses; drawn ones keep their distribution only."""
    for prompt, by_name in found.items():
        answers = {tuple(one.result.token_ids) for one in by_name.values() if one.result}
        if temperature == 0 and len(answers) > 1:
            raise RuntimeError(f"{prompt}: guesses changed the answer")


def label(name: str) -> str:
    """How a way to guess is called in metrics."""
    return name if name == ADAPTIVE else f"depth{name}"


def about(prompt: str, name: str, kept: Answers) -> dict[str, Any]:
    """The case of one prompt and way to guess: what stood, and how many turns had how many."""
    if kept.result is None:
        raise RuntimeError("nothing was measured")
    stats, turns = kept.result.stats, sum(kept.turns.values())
    return {
        "prompt": prompt,
        "prompt_tokens": stats.prompt_tokens,
        "draft": "none" if name == "0" else "mtp",
        "guesses": name if name == ADAPTIVE else int(name),
        "acceptance": stats.accepted / stats.drafted if stats.drafted else None,
        "tokens_per_turn": (stats.completion_tokens - 1) / turns,
        "turns_by_guesses": {str(depth): count for depth, count in sorted(kept.turns.items())},
    }


def computed_speed(kept: Answers, times: list[float]) -> float:
    """Tokens a second of the same turns at the times of a larger model, in milliseconds."""
    if kept.result is None:
        raise RuntimeError("nothing was measured")
    milliseconds = math.fsum(times[depth] * count for depth, count in kept.turns.items())
    return 1e3 * (kept.result.stats.completion_tokens - 1) / milliseconds


def metrics_of(
    found: dict[str, dict[str, Answers]], case: dict[str, Any], costs: Path
) -> dict[str, Any]:
    """Speed of every prompt and of all together, and what it would be at 27B."""
    times, source = turn_times(costs), {"computed_from": costs.name}
    measured, computed = dict[str, Any](), dict[str, Any]()
    for prompt, by_name in found.items():
        for name, kept in by_name.items():
            of_this, stem = {**case, **about(prompt, name, kept)}, f"{prompt}.{label(name)}.tok_s"
            measured[stem] = metric("tok/s", "higher", kept.tok_s, of_this)
            speed = [computed_speed(kept, times)]
            computed[stem] = metric("tok/s", "higher", speed, {**of_this, **source})
    for metrics, more in ((measured, {}), (computed, source)):
        add_suite(metrics, list(found), {**case, **more})
    return measured | {f"computed_27b.{name}": one for name, one in computed.items()}


def add_suite(metrics: dict[str, Any], prompts: list[str], case: dict[str, Any]) -> None:
    """Geometric means over the prompts, round by round, and adaptive over the best fixed."""
    case = {**case, "prompts": " ".join(prompts), "mean": "geometric"}
    means = {}
    for name in [*map(str, DEPTHS), ADAPTIVE]:
        columns = [metrics[f"{prompt}.{label(name)}.tok_s"]["samples"] for prompt in prompts]
        means[name] = [geometric_mean(one) for one in zip(*columns, strict=True)]
        metrics[f"suite.{label(name)}.tok_s"] = metric("tok/s", "higher", means[name], case)
    best = max(map(str, DEPTHS), key=lambda name: statistics.median(means[name]))
    ratios = [a / b for a, b in zip(means[ADAPTIVE], means[best], strict=True)]
    metrics["suite.adaptive_over_best_fixed"] = metric(
        "ratio", "higher", ratios, {**case, "best_fixed": int(best)}
    )


def main(argv: list[str] | None = None) -> int:
    """Measure, write the file, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--prompt", action="append", help="of the suite; default: all eight")
    parser.add_argument("--costs", type=Path, default=COSTS, metavar="FILE")
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    arguments = parser.parse_args(argv)
    turn_times(arguments.costs)  # a wrong file is an error before anything runs
    engine = Engine.from_pretrained(arguments.model, backend="cuda", draft="mtp")
    case = {
        "model": arguments.model,
        "device": devices()[0].name,
        "new_tokens": arguments.tokens,
        "temperature": arguments.temperature,
    }
    metrics = metrics_of(answer(engine, arguments), case, arguments.costs)
    write(arguments.json, "adaptive_depth", metrics, arguments.commit, argv, NOTE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
