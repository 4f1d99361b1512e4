"""Prefill and decode of one engine: at several depths, per prompt, plain and with every draft.

Only the engine's public surface is used. One engine at a time is loaded, one for each draft, or for
all rates of a forced one; within a draft the prompts take turns, round after round, after one round
that is not counted.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from bytebound.backends import choose_backend
from bytebound.cli.errors import UsageError
from bytebound.errors import InvalidSettingError
from bytebound.loading import find_model
from bytebound.settings import (
    BACKENDS,
    ENGINES,
    check_choice,
    check_cuda,
    check_device,
    check_max_len,
)

from bytebound_evals.model_run import engine_name, free_memory
from bytebound_evals.results import Metric
from bytebound_evals.speed.drafts import DraftSpec, ForcedDraft
from bytebound_evals.speed.limits import ReadBandwidth, bytes_per_token, percent_of_limit
from bytebound_evals.speed.prompts import prompt_ids, text_ids
from bytebound_evals.speed.samples import (
    EXACT,
    SPEED_TOLERANCE_PCT,
    Sample,
    decode_metrics,
    depth_label,
    geometric_mean,
    prefill_metrics,
)
from bytebound_evals.speed.settings import Settings

if TYPE_CHECKING:
    from bytebound import Engine, GenerationResult

Report = Callable[[str, Sample], object]


@dataclass(slots=True)
class Measured:
    """Everything that came out, ready for a result file."""

    metrics: dict[str, Metric] = field(default_factory=dict)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    """Every counted run by its stem, e.g. "prose.mtp4" or "plain_1k"."""
    ended: dict[str, int] = field(default_factory=dict)
    """Prompts whose reply came to its own end, and after how many tokens."""


@dataclass(frozen=True, slots=True)
class _Job:
    """One request that is timed."""

    stem: str
    ids: list[int]
    case: dict[str, Any]
    prompt: str | None  # None: a depth


class Throughput:
    """Measures what ``settings`` say; ``report`` is told of every counted run."""

    def __init__(
        self,
        settings: Settings,
        read: ReadBandwidth | None = None,
        report: Report = lambda stem, sample: None,
    ) -> None:
        self.settings = settings
        self.read = read
        self._report = report
        self._replies: dict[str, list[int]] = {}  # of plain greedy decoding, by job
        self._check()

    def _check(self) -> None:
        s = self.settings
        for name, value, least in (
            ("--tokens", s.new_tokens, 2),  # the first one belongs to the prefill
            ("--samples", s.samples, 1),
            *(("--depth", depth, 1) for depth in s.depths),
        ):
            if value < least:
                raise UsageError(f"{name} {value}: expected at least {least}")
        if len(set(s.depths)) < len(s.depths):
            raise UsageError(f"--depth: {' '.join(map(str, s.depths))}: one is given twice")
        check_choice("backend", s.backend, BACKENDS)
        check_choice("engine", s.engine, ENGINES)
        check_device(s.device)
        if s.backend == "cuda":
            check_cuda(s.device, s.dtype)
        labels = [draft.label for draft in self.settings.drafts]
        for label in labels:
            if labels.count(label) > 1:
                raise UsageError(f"--draft: {label} is asked for twice")
        if any(draft.kind == "forced" for draft in self.settings.drafts) and labels[0] != "plain":
            raise UsageError(
                "--draft forced replays what plain decoding says: give --draft none before it"
            )
        if not self.settings.prompts and not self.settings.depths:
            raise UsageError("nothing to measure: give a --prompt or a --depth")
        for depth in self.settings.draft_depths or ():
            if depth not in self.settings.depths:
                raise UsageError(f"--draft-depth {depth}: expected one of the depths")

    def check_model(self) -> None:
        """Refuse a length that the model does not have, before any weight is read.

        Raises:
            ByteboundError: there is no such model, its context is shorter, or the backend that
                would run it has not this engine.
        """
        s = self.settings
        check_max_len(s.length, find_model(s.model)[1])
        engine_name(s.model, s.backend, s.device, s.dtype, s.engine)

    def run(self) -> Measured:
        """Measure everything.

        Raises:
            UsageError: settings that do not fit together, or not enough memory.
            ByteboundError: what the engine refuses.
        """
        measured = Measured()
        for _, drafts in groupby(self.settings.drafts, key=_engine_of):
            self._run_engine(list(drafts), measured)
            free_memory()
        self._add_suite_means(measured)
        return measured

    def _run_engine(self, drafts: Sequence[DraftSpec], measured: Measured) -> None:
        """Drafts that one engine serves, one after the other."""
        engine, forced = self._load(drafts[0])
        for draft in drafts:
            if forced is not None and draft.rate is not None:
                forced.rate = draft.rate
            self._run_draft(engine, forced, draft, measured)

    def _load(self, draft: DraftSpec) -> "tuple[Engine, ForcedDraft | None]":
        import torch
        from bytebound import Engine

        s = self.settings
        forced = None
        if draft.rate is not None:
            forced = ForcedDraft(draft.rate, vocab_size=0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                engine = Engine.from_pretrained(
                    s.model,
                    backend=s.backend,
                    device=s.device,
                    dtype=s.dtype,
                    max_len=s.length,
                    kv_dtype=s.kv_dtype,
                    draft=draft.kind if forced is None else forced,
                    num_draft_tokens=draft.count,
                    engine=s.engine,
                    snapshot_bytes=0,  # every run reads its whole prompt
                )
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise UsageError(
                f"not enough memory for {s.model}; a lower --max-len needs less"
            ) from error
        if forced is not None:
            forced.vocab_size = engine.executor.vocab_size
        if draft.kind == "mtp" and engine.draft is None:
            raise InvalidSettingError(
                f"--draft {draft.kind}:{draft.count}: this checkpoint has no MTP head"
            )
        return engine, forced

    def _run_draft(
        self, engine: "Engine", forced: ForcedDraft | None, draft: DraftSpec, measured: Measured
    ) -> None:
        jobs = list(self._jobs(engine, draft))
        for job in jobs:
            if len(job.ids) + self.settings.new_tokens > engine.max_len:
                raise UsageError(
                    f"{job.stem}: {len(job.ids)} prompt and {self.settings.new_tokens} new tokens "
                    f"do not fit the context of {engine.max_len}; give a larger --max-len"
                )
        runs: dict[str, list[Sample]] = {job.stem: [] for job in jobs}
        for turn in range(self.settings.samples + 1):  # the first warms up
            for job in jobs:
                if forced is not None:
                    forced.expect(len(job.ids), self._replies[_key(job)])
                result = self._generate(engine, job)
                if turn == 0:
                    self._compare(job, draft, result, measured, engine.end_ids)
                    continue
                sample = _sample(result)
                runs[job.stem].append(sample)
                self._report(job.stem, sample)
        for job in jobs:
            self._add_metrics(engine, job, draft, runs[job.stem], measured)
        measured.samples |= runs

    def _jobs(self, engine: "Engine", draft: DraftSpec) -> Iterator[_Job]:
        s = self.settings
        tokenizer = None if s.is_random else engine.tokenizer
        backend = choose_backend(s.backend, engine.config, s.device, s.dtype).name
        plan = engine.memory_plan
        common = {
            "engine": "bytebound",
            "model": s.name,
            "backend": backend,
            "dtype": _dtype_name(engine, s, backend),
            "kv_dtype": s.kv_dtype if plan is None else plan.kv_dtype or s.kv_dtype,
            "ids": "bytes" if tokenizer is None else "tokens",
            "new_tokens": s.new_tokens,
            "temperature": 0,
            **draft.case(),
        }
        for depth in s.depths_of(draft):
            ids = text_ids(depth, tokenizer)
            case = {**common, "prompt_tokens": depth}
            yield _Job(f"{draft.label}_{depth_label(depth)}", ids, case, None)
        for prompt in s.prompts:
            ids = prompt_ids(prompt, tokenizer)
            case = {**common, "prompt": prompt.name, "prompt_tokens": len(ids)}
            yield _Job(f"{prompt.name}.{draft.label}", ids, case, prompt.name)

    def _generate(self, engine: "Engine", job: _Job) -> "GenerationResult":
        from bytebound import SamplingParams

        ignore = not self.settings.stop_at_end
        params = SamplingParams(max_tokens=self.settings.new_tokens, ignore_eos=ignore)
        return engine.generate(job.ids, params)

    def _compare(
        self,
        job: _Job,
        draft: DraftSpec,
        result: "GenerationResult",
        measured: Measured,
        end_ids: frozenset[int],
    ) -> None:
        """Keep the plain reply; with a draft say how much of the reply equals it: all of it."""
        reply = list(result.token_ids)
        if draft.kind == "none":
            self._replies[_key(job)] = reply
            ends = [i for i, token in enumerate(reply, start=1) if token in end_ids]
            before = bool(ends) and ends[0] < len(reply)
            if job.prompt is not None and before and not self.settings.is_random:
                measured.ended[job.prompt] = ends[0]
            return
        plain = self._replies.get(_key(job))
        if plain is not None:
            same = next(
                (i for i, (a, b) in enumerate(zip(plain, reply, strict=False)) if a != b),
                min(len(plain), len(reply)),
            )
            share = same / max(len(plain), len(reply))
            measured.metrics[f"{job.stem}.same_tokens"] = Metric(
                "share", "higher", (share,), job.case, EXACT
            )

    def _add_metrics(
        self,
        engine: "Engine",
        job: _Job,
        draft: DraftSpec,
        samples: Sequence[Sample],
        measured: Measured,
    ) -> None:
        plain = draft.kind == "none"
        guessed = draft.kind in ("mtp", "ngram")
        with_speed = not (guessed and self.settings.is_random)
        found = decode_metrics(job.stem, samples, job.case, with_speed=with_speed)
        if plain:
            if job.prompt is None:
                found |= prefill_metrics(
                    f"prompt_{depth_label(len(job.ids))}",
                    samples,
                    {k: v for k, v in job.case.items() if k not in ("new_tokens", "draft")},
                )
            else:
                # So short a prompt says nothing of prefill speed, only how long one waits.
                of_prompt = prefill_metrics(job.stem, samples, job.case)
                of_prompt.pop(f"{job.stem}.tok_s", None)
                found |= of_prompt
            found |= self._limit_metrics(engine, job, found)
        measured.metrics |= found

    def _limit_metrics(
        self, engine: "Engine", job: _Job, found: dict[str, Metric]
    ) -> dict[str, Metric]:
        """Bytes per token and percent of the limit, at the cached positions half way through."""
        context = len(job.ids) + self.settings.new_tokens / 2
        num_bytes = bytes_per_token(engine, context)
        speed = found.get(f"{job.stem}.tok_s")
        if num_bytes is None or speed is None or job.prompt is not None:
            return {}
        limits = {
            f"{job.stem}.bytes_per_token": Metric("B", "lower", (num_bytes,), job.case, EXACT)
        }
        if self.read is not None:
            percent = [percent_of_limit(s, num_bytes, self.read) for s in speed.samples]
            limits[f"{job.stem}.percent_of_limit"] = Metric(
                "%", "higher", tuple(percent), job.case, SPEED_TOLERANCE_PCT
            )
        return limits

    def _add_suite_means(self, measured: Measured) -> None:
        """``suite.<draft>.tok_s``: geometric mean over the prompts, round by round."""
        names = [prompt.name for prompt in self.settings.prompts]
        for draft in self.settings.drafts:
            metrics = [measured.metrics.get(f"{name}.{draft.label}.tok_s") for name in names]
            present = [metric for metric in metrics if metric is not None]
            if len(names) < 2 or len(present) < len(names):
                continue
            rounds = zip(*(metric.samples for metric in present), strict=True)
            case = {k: v for k, v in present[0].case.items() if not k.startswith("prompt")}
            measured.metrics[f"suite.{draft.label}.tok_s"] = Metric(
                "tok/s",
                "higher",
                tuple(geometric_mean(one) for one in rounds),
                {**case, "prompts": " ".join(names), "mean": "geometric"},
                SPEED_TOLERANCE_PCT,
            )


def _sample(result: "GenerationResult") -> Sample:
    stats = result.stats
    return Sample(
        prompt_tokens=stats.prompt_tokens,
        completion_tokens=stats.completion_tokens,
        first_token_s=stats.prefill_s,
        decode_s=stats.decode_s,
        cached_tokens=stats.cached_tokens,
        steps=stats.steps,
        drafted=stats.drafted,
        accepted=stats.accepted,
    )


def _key(job: _Job) -> str:
    """The same for every draft."""
    return f"depth {len(job.ids)}" if job.prompt is None else job.prompt


def _engine_of(draft: DraftSpec) -> tuple[str, int]:
    """Equal for drafts that one engine serves: a forced one takes any rate."""
    return draft.kind, draft.count


def _dtype_name(engine: "Engine", settings: Settings, backend: str) -> str:
    """What activations are computed in."""
    if backend == "cuda":
        from bytebound.cuda.executor import CudaExecutor

        if isinstance(engine.executor, CudaExecutor):
            return str(engine.executor.weights.dtype).removeprefix("torch.")
    if settings.dtype is not None:
        return settings.dtype
    return engine.config.dtype or "bfloat16" if settings.on_gpu else "float32"
