"""Time to the first token of a conversation that another one had pushed out of the engine.

    python bench/parked.py --json FILE [--model random:qwen3.5-27b] [--samples 5]

Two conversations take turns at the 27B shape, with each prompt length: read for the first time
(``cold``), the same again at once (``resident``), the same again after the other (``parked``, where
nothing but what is needed comes back), and with 300 new ids behind it after the other (``turn``,
which copies what is new of the other one out as well). The time is the host's, from the ids to the
first token. Random weights are right for speed and say nothing of quality.
"""

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

from bytebound import Engine, SamplingParams
from decode import metric, some_prompt, write

LENGTHS = {"2k": 2048, "8k": 8192, "32k": 32_768}
NEW, TURN = 300, 1003  # ids of a turn, and the one that it starts with


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All metrics by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        engine = Engine.from_pretrained(
            arguments.model,
            backend="cuda",
            draft="mtp",
            max_len=max(LENGTHS.values()) + (arguments.samples + 2) * NEW,
            conversation_bytes=arguments.conversation_bytes,
        )
    parked = engine.reader.parked
    if parked is None:
        raise RuntimeError("conversations cannot be parked here")
    engine.reader.turn_starts = frozenset({TURN})

    def seconds(prompt: list[int], *, cached: int) -> float:
        stats = engine.generate(prompt, SamplingParams(max_tokens=1, ignore_eos=True)).stats
        if stats.cached_tokens < cached or (stats.cached_tokens and not cached):
            raise RuntimeError(f"{stats.cached_tokens} ids were cached, expected {cached}")
        return stats.prefill_s

    # The first copies lock pages of the host, which is paid once.
    for start in (1, 2, 1, 2):
        engine.generate([start, *some_prompt(LENGTHS["32k"])[1:]], SamplingParams(max_tokens=1))
    metrics = dict[str, Any]()
    for name, length in LENGTHS.items():
        talks = [[number, *some_prompt(length)[1:]] for number in (1001, 1002)]
        times = {kind: list[float]() for kind in ("cold", "resident", "parked", "turn")}
        for _ in range(arguments.samples):
            for prompt in talks:
                engine.reader.forget()  # else the one before would be parked meanwhile
                times["cold"].append(seconds(prompt, cached=0))
                times["resident"].append(seconds(prompt, cached=length))
        seconds(talks[0], cached=0)
        times["parked"] += [
            seconds(prompt, cached=length)
            for _ in range(arguments.samples)
            for prompt in reversed(talks)
        ]
        held = parked.num_bytes
        for _ in range(arguments.samples):
            for prompt in reversed(talks):
                # As a chat has it: a question, and the start of the answer's turn.
                prompt += [TURN, *some_prompt(NEW - 3), TURN, 11]
                times["turn"].append(seconds(prompt, cached=len(prompt) - NEW - 2))
        case = {
            "model": arguments.model,
            "prompt_tokens": length,
            "new_tokens": NEW,
            "parked_gib": held / 2**30,
        }
        for kind, samples in times.items():
            metrics[f"{kind}_{name}.s"] = metric("s", "lower", samples, case)
    return metrics


def main(argv: list[str] | None = None) -> int:
    """Measure, write the file, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--model", default="random:qwen3.5-27b")
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--conversation-bytes", default="12GiB", metavar="SIZE")
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    arguments = parser.parse_args(argv)
    write(arguments.json, "parked", measure(arguments), arguments.commit, argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
