"""Decoding far into a long context at the 27B shape, in the memory of a smaller card.

    python bench/long_context.py --json FILE [--fill 262144] [--vram-limit 32GiB] [--samples 5]

A prompt is read in chunks and decoded behind, plain and with drafts, at each of ``--at``. Reading
262,144 ids takes a minute or more, so ``--fill N`` reads only the first N and then sets the
position: what lies between is noise, in keys and values of ordinary size, and a step reads as many
bytes and takes as long. Each metric says which it was. Random weights are right for speed; with
drafts the acceptance is forced, and each metric says how many guesses stand.

The whole process is capped at ``--vram-limit``. The peak is what the driver and PyTorch's
allocator say at the end: the context and the code of the kernels are in it.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from bytebound import Engine, SamplingParams
from bytebound.cuda.cycle import Cycle
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.depth import FixedDepth
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.mtp import CudaMtpDraft
from bytebound.cuda.sampling import Choice
from bytebound.cuda.state import MAX_ROWS, KvCache
from bytebound.vram import GIB, measured_peak, parse_size
from bytebound_evals.speed.limits import ReadBandwidth, bytes_per_token, percent_of_limit
from bytebound_kernels import devices
from bytebound_kernels.bench.cases import measure_read_bandwidth
from bytebound_kernels.bench.memory import find_backend
from decode import metric, some_prompt, write

LONGEST = 262_144
DEPTH = 4
STANDS = (4, 2)
NOISE_ROWS = 4096  # positions written at a time
FLOAT8_SCALE = 0.01  # of noise
FLOAT8_LARGEST = 448.0  # that is stored: beyond, a number would become NaN


class SteeredCycle(Cycle):
    """A turn in which as many guesses stand as ``stand`` on the device says, and no more."""

    stand: torch.Tensor  # int32 [1]
    places: torch.Tensor  # int32 [MAX_ROWS]: 0, 1, 2, ...

    def _choose(self, choice: Choice) -> None:
        rows = choice.num_drafts
        if rows:
            push = torch.where(self.places[:rows] < self.stand, 1e9, -1e9)
            guesses = self.ids[1 : 1 + rows, None].long().clamp(min=0)
            self.executor.step.buffers.logits[:rows].scatter_add_(1, guesses, push[:, None])
        super()._choose(choice)


def steer(decoder: CudaDecoder) -> torch.Tensor:
    """Record the decoder's turns again, steered by the number that is returned."""
    cycle: Any = decoder.cycle
    cycle.__class__ = SteeredCycle
    cycle.stand = stand = torch.zeros(1, dtype=torch.int32, device=decoder.executor.device)
    cycle.places = torch.arange(MAX_ROWS, dtype=torch.int32, device=decoder.executor.device)
    decoder._recordings._graphs.clear()
    decoder.warm_up()
    return stand


@contextmanager
def without_drafts(decoder: CudaDecoder) -> Iterator[None]:
    """Plain turns of the same decoder: a second one would take memory that no plan knows."""
    kept = decoder.draft, decoder.by_head, decoder._own_depth
    decoder.draft, decoder.by_head, decoder._own_depth = None, False, FixedDepth(0)
    try:
        yield
    finally:
        decoder.draft, decoder.by_head, decoder._own_depth = kept


def read_only(decoder: CudaDecoder, count: int) -> None:
    """From now on read the first ``count`` ids of a prompt, and set the position behind them."""
    executor, reader = decoder.executor, decoder.reader
    read = reader.read

    def partly(prompt: Sequence[int]) -> torch.Tensor:
        row = read(prompt[:count])
        executor._advance(max(0, len(prompt) - executor.position))
        return row

    reader.read = partly  # type: ignore[method-assign]


@torch.inference_mode()
def write_noise(caches: Sequence[KvCache], start: int) -> None:
    """Keys and values of ordinary size from position ``start`` on."""
    for cache in caches:
        for stored, scale in ((cache.k, cache.k_scale), (cache.v, cache.v_scale)):
            for head in range(stored.shape[0]):
                for rows in torch.split(stored[head, start:], NOISE_ROWS):
                    noise = torch.randn(rows.shape, device=rows.device)
                    if scale is not None:
                        noise = (noise / FLOAT8_SCALE).clamp(-FLOAT8_LARGEST, FLOAT8_LARGEST)
                    rows.copy_(noise)
            if scale is not None:
                scale[:, start:] = FLOAT8_SCALE


def caches_of(engine: Engine) -> list[KvCache]:
    """Every cache of keys and values, the draft head's as well."""
    executor, draft = engine.executor, engine.draft
    if not isinstance(executor, CudaExecutor) or not isinstance(draft, CudaMtpDraft):
        raise TypeError("expected an engine of backend='cuda' with draft='mtp'")
    return [one for one in executor.state.layers if isinstance(one, KvCache)] + [draft.head.kv]


class Run:
    """One engine, and the metrics that it has given so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.samples, self.tokens, self.fill = arguments.samples, arguments.tokens, arguments.fill
        torch.cuda.empty_cache()  # what the bandwidth was measured with
        torch.cuda.reset_peak_memory_stats()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            self.engine = Engine.from_pretrained(
                arguments.model,
                backend="cuda",
                draft="mtp",
                num_draft_tokens=DEPTH,
                max_len=arguments.max_len,
                vram_limit=arguments.vram_limit,
            )
        if not isinstance(self.engine.decoder, CudaDecoder) or self.engine.memory_plan is None:
            raise TypeError("expected an engine of backend='cuda'")
        self.decoder, self.plan = self.engine.decoder, self.engine.memory_plan
        self.case = {
            "model": arguments.model,
            "device": devices()[0].name,
            "max_len": arguments.max_len,
            "kv_dtype": self.plan.kv_dtype,
            "vram_limit": arguments.vram_limit,
        }
        self.metrics: dict[str, Any] = {}
        self.stand = steer(self.decoder)
        if self.fill < arguments.max_len:
            write_noise(caches_of(self.engine), self.fill)
            read_only(self.decoder, self.fill)

    def behind(self, position: int, name: str, read: ReadBandwidth) -> None:
        """Read what is still missing of ``position`` ids, then decode behind them."""
        prompt = some_prompt(position)
        first = self.engine.generate(prompt, SamplingParams(max_tokens=1)).stats
        new = min(position, self.fill) - first.cached_tokens
        says = f"{min(position, self.fill)} ids read"
        if position > self.fill:
            says += f", the position set to {position} over noise"
        case = {**self.case, "prompt_tokens": position, "context": says}
        if new > 0:
            self.add(
                f"prompt_to_{name}.tok_s",
                "tok/s",
                "higher",
                [new / first.prefill_s],
                {**case, "from": first.cached_tokens, "ids": new, "s": first.prefill_s},
            )
        case |= {"new_tokens": self.tokens}
        with without_drafts(self.decoder):
            plain = self.speed(prompt, self.tokens)
        self.add(f"plain_{name}.tok_s", "tok/s", "higher", plain, {**case, "draft": "none"})
        num_bytes = bytes_per_token(self.engine, position + self.tokens / 2)
        if num_bytes is not None:
            limit = {"bytes_per_token": num_bytes, "read_gb_s": read.gb_s}
            share = [percent_of_limit(one, num_bytes, read) for one in plain]
            self.add(f"plain_{name}.percent_of_limit", "%", "higher", share, {**case, **limit})
        for stand in STANDS:
            self.stand.fill_(stand)
            values = self.speed(prompt, self.tokens * (1 + stand), stand)
            forced = f"forced: {stand} of {DEPTH} guesses stand in every turn"
            more = {"draft": "mtp", "num_draft_tokens": DEPTH, "acceptance": forced}
            more["new_tokens"] = self.tokens * (1 + stand)
            self.add(
                f"cycle{DEPTH}_accept{stand}_{name}.tok_s",
                "tok/s",
                "higher",
                values,
                {**case, **more},
            )

    def speed(self, prompt: list[int], tokens: int, stand: int = 0) -> list[float]:
        """Tokens a second behind a prompt that is resident, so that nothing is read again."""
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        found = [self.engine.generate(prompt, params).stats for _ in range(self.samples + 1)][1:]
        if any(one.cached_tokens != min(len(prompt), self.fill) for one in found):
            raise RuntimeError("the prompt was read again")
        turns, rest = divmod(tokens - 1, 1 + stand)  # the first token is the prompt's
        if any(one.accepted != turns * stand + rest for one in found):
            raise RuntimeError(f"not every turn had {stand} guesses that stood")
        return [one.tok_per_s for one in found]

    def memory(self, limit: int) -> None:
        """The peak, against the plan and against the cap."""
        torch.cuda.synchronize()
        peak = measured_peak(torch.device("cuda", torch.cuda.current_device()))
        case = {
            **self.case,
            "plan_gib": self.plan.total / GIB,
            "reserved_gib": torch.cuda.max_memory_reserved() / GIB,
            "weights_gib": (self.plan.weights + self.plan.embedding) / GIB,
            "kv_gib": (self.plan.kv + self.plan.mtp_kv) / GIB,
        }
        self.add("peak_vram.gib", "GiB", "lower", [peak / GIB], case)
        self.add("peak_vram_over_plan", "ratio", "lower", [peak / self.plan.total], case)
        self.add("peak_vram_over_limit", "ratio", "lower", [peak / limit], case)

    def add(
        self, name: str, unit: str, better: str, values: list[float], case: dict[str, Any]
    ) -> None:
        """Keep a metric, and say it."""
        self.metrics[name] = metric(unit, better, values, case)
        median = self.metrics[name]["median"]
        print(f"{time.perf_counter():8.1f} s {name} {median:.4g} {unit}", file=sys.stderr)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All metrics by name."""
    gb_s = measure_read_bandwidth(find_backend(), arguments.samples).median
    read = ReadBandwidth(gb_s, "measured before")
    run = Run(arguments)
    most = arguments.max_len - arguments.tokens * (1 + max(STANDS))
    for position in arguments.at:
        name = f"{position // 1000}k" if position >= 1000 else str(position)
        run.behind(min(position, most), name, read)
    run.memory(parse_size("vram_limit", arguments.vram_limit))
    return run.metrics


def main(argv: list[str] | None = None) -> int:
    """Measure, write the file, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--model", default="random:qwen3.5-27b")
    parser.add_argument("--max-len", type=int, default=LONGEST)
    parser.add_argument("--at", type=int, nargs="+", default=[200_000, LONGEST], metavar="N")
    parser.add_argument(
        "--fill", type=int, default=LONGEST, metavar="N", help="ids that are really read"
    )
    parser.add_argument("--vram-limit", default="32GiB", metavar="SIZE")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    arguments = parser.parse_args(argv)
    if arguments.fill < 1:
        parser.error(f"--fill {arguments.fill}: expected 1 or more")
    if sorted(set(arguments.at)) != arguments.at or arguments.at[0] < 1:
        parser.error("--at: expected positions, ascending")
    metrics = measure(arguments)
    write(arguments.json, "long_context", metrics, arguments.commit, argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
