"""The engine: one model, one sequence at a time, ids in and ids with text out.

A decoder (``decoder.py``) turns the prompt into tokens, a pass at a time; the engine admits
requests and ends their answers.
"""

import operator
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

import torch

from bytebound.clock import RequestClock
from bytebound.completion import Completion
from bytebound.config import ModelConfig
from bytebound.decoder import Decoder, HostDecoder, Step
from bytebound.drafts.base import Draft
from bytebound.errors import (
    ContextOverflowError,
    InvalidRequestError,
    StepTimeoutError,
    TokenizerMissingError,
)
from bytebound.executor import Executor
from bytebound.failures import explained
from bytebound.grammar_compiler import GrammarCompiler
from bytebound.loading import load_engine_parts
from bytebound.memory import MemoryPlan
from bytebound.prompt_reader import PromptReader
from bytebound.reading import Progress
from bytebound.results import GenerationResult, StreamEvent, TokenLogprob
from bytebound.sampling import Sampler, SamplingParams
from bytebound.settings import check_integer
from bytebound.text.tokenizer import Tokenizer


class Engine:
    """Generates from one model. Build it with ``Engine.from_pretrained``.

    One request runs at a time: starting another one ends the first, whose stream then raises
    InvalidRequestError.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        draft: Draft | None = None,
        num_draft_tokens: int = 4,
        decoder: Decoder | None = None,
        tokenizer: Tokenizer | None = None,
        config: ModelConfig | None = None,
        end_ids: Iterable[int] = (),
        memory_plan: MemoryPlan | None = None,
        bytes_per_token: float | None = None,
        read_gb_s: float | None = None,
        seed: int | None = None,
    ) -> None:
        self.executor = executor
        self.draft = draft
        self.num_draft_tokens = num_draft_tokens
        if decoder is None:
            reader = PromptReader(
                executor,
                draft,
                turn_starts=() if tokenizer is None else tokenizer.turn_start_ids,
            )
            decoder = HostDecoder(executor, draft, num_draft_tokens, reader)
        self.decoder = decoder
        self.end_ids = frozenset(end_ids)
        self.memory_plan = memory_plan
        self.bytes_per_token = bytes_per_token
        self.read_gb_s = read_gb_s
        self.seed = seed
        self._tokenizer = tokenizer
        self._grammars: GrammarCompiler | None = None
        if tokenizer is not None:
            self._grammars = GrammarCompiler(tokenizer, executor.vocab_size, self.end_ids)
        self._config = config
        self._active: _Request | None = None
        self._hang: str | None = None  # what a pass that never ended was reported as
        self._lock = threading.Lock()

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: str | PathLike[str],
        backend: str = "auto",
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        max_len: int | None = None,
        kv_dtype: str = "auto",
        draft: str | Draft = "mtp",
        num_draft_tokens: int = 4,
        draft_vocab: str | PathLike[str] | None = None,
        seed: int | None = None,
        snapshot_bytes: int | str | None = None,
        conversation_bytes: int | str | None = 0,
        adaptive_depth: bool = False,
        engine: str = "graph",
        vram_limit: int | str | None = None,
        on_progress: Progress | None = None,
    ) -> "Engine":
        """Load a model folder, or the shipped model by its name ``"tiny"``.

        ``random:qwen3.5-27b``, or ``random:`` and the path of a config.json, stands for that shape
        with random 4-bit weights, for measuring speed (``backend="cuda"``).

        ``backend``: "reference" (PyTorch, CPU or GPU), "cuda" (the kernels, matrices as the folder
        stores them), or "auto", which is "cuda" where it can run the model. ``device`` is for the
        reference backend, by default the GPU if there is one. ``dtype`` of the activations:
        "float32" or "bfloat16" with "reference", by default the checkpoint's on a GPU and float32
        on a CPU; "float16" or "bfloat16" with "cuda", by default float16 for a model in 4 bits.
        ``kv_dtype``: "auto", with "cuda" also "fp8", which "auto" means above 65,536 positions,
        and the dtype of the activations. ``max_len`` counts prompt and completion, by default 8,192
        or the model's own limit if that is less; a value above the limit is refused. ``draft``:
        "mtp", "ngram", "none" or a Draft; a checkpoint without an MTP head runs without drafts and
        says so in a warning. ``num_draft_tokens`` is 1 to 8, with "cuda" 1 to 7. ``draft_vocab``: a
        file of ids, to which the MTP head's guesses are kept. ``seed`` serves requests that bring
        none; without either, sampling differs from run to run.
        ``snapshot_bytes`` bounds the states kept for prompts that begin as an earlier one did: a
        number or a text such as "512MiB", 0 keeps none, None the default (16 states, 1 GiB at
        most). With a Draft that cannot go back (``RewindingDraft``) none are kept.
        ``conversation_bytes`` of the host's memory hold conversations that had to make room for
        another one, until a prompt goes on from them: by default none, None is four times what the
        context takes, at most 4 GiB. A Draft must allow it (``ParkableDraft``).
        ``adaptive_depth`` lets "cuda" with "mtp" guess 0 to ``num_draft_tokens`` ids a turn, as
        many as have lately been worth it. ``engine`` says how "cuda" runs a pass of a few rows:
        "graph", recordings of one kernel an op, or "stream", a few long kernels (the weight
        stream; float16 activations, a model in 4 bits, compute capability 9.0). ``vram_limit``,
        such as "32GiB", caps what this process takes of the GPU until it ends.
        ``on_progress(done, total)`` is told about bytes of weights as they are read.

        Raises CheckpointError (damaged folder), UnsupportedModelError (another family or format),
        InvalidSettingError (a setting that is unknown or impossible), CudaUnavailableError
        (``backend="cuda"``), UnsupportedShapeError (a dimension that has no kernel).
        """
        if seed is not None:
            check_integer("seed", seed, -(2**63), 2**64 - 1)
        parts = load_engine_parts(
            path_or_name,
            backend=backend,
            device=device,
            dtype=dtype,
            max_len=max_len,
            kv_dtype=kv_dtype,
            draft=draft,
            num_draft_tokens=num_draft_tokens,
            draft_vocab=draft_vocab,
            snapshot_bytes=snapshot_bytes,
            conversation_bytes=conversation_bytes,
            adaptive_depth=adaptive_depth,
            engine=engine,
            vram_limit=vram_limit,
            on_progress=on_progress,
        )
        return cls(**parts, seed=seed)

    @property
    def backend(self) -> str | None:
        """The backend's name, "reference" or "cuda"; None where no model was loaded."""
        return None if self.memory_plan is None else self.memory_plan.backend

    @property
    def random_weights(self) -> bool:
        """Whether the weights are noise, made for measuring speed."""
        return self.memory_plan is not None and self.memory_plan.random_weights

    @property
    def config(self) -> ModelConfig:
        """The model's dimensions and constants."""
        if self._config is None:
            raise InvalidRequestError("this engine runs a script, not a model: it has no config")
        return self._config

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back; raises TokenizerMissingError when the folder holds none."""
        if self._tokenizer is None:
            raise TokenizerMissingError(
                "the model folder holds no tokenizer; add tokenizer.json, or work with token ids"
            )
        return self._tokenizer

    @property
    def grammars(self) -> GrammarCompiler:
        """Grammars compiled for this model: ``check`` one before a request brings it.

        Raises TokenizerMissingError when the folder holds no tokenizer.
        """
        if self._grammars is None:
            raise TokenizerMissingError(
                "a grammar needs a tokenizer, and the model folder holds none; add tokenizer.json"
            )
        return self._grammars

    @property
    def reader(self) -> PromptReader:
        """What reads the prompts, and knows what is kept of them."""
        return self.decoder.reader

    @property
    def max_len(self) -> int:
        """Positions that prompt and completion may take together."""
        return self.executor.max_len

    def default_params(self, **overrides: Any) -> SamplingParams:
        """The model's own sampling parameters: its generation config, else the built-in defaults.

        Every keyword that is not None wins over both; an explicit 0 counts as given.
        """
        given = {name: value for name, value in overrides.items() if value is not None}
        own: dict[str, Any] = {}
        if self._config is not None:
            defaults = self._config.generation
            if defaults.do_sample is not False:
                names = ("temperature", "top_k", "top_p", "min_p")
                own = {name: getattr(defaults, name) for name in names}
            if defaults.do_sample and own["temperature"] is None:
                own["temperature"] = 1.0  # what the library that writes these files means by it
            own["repetition_penalty"] = defaults.repetition_penalty
        own = {name: value for name, value in own.items() if value is not None}
        return SamplingParams(**{**own, **given})

    def generate(
        self, prompt_ids: Iterable[int], params: SamplingParams | None = None
    ) -> GenerationResult:
        """Run one request to its end. ``params`` None means ``default_params()``.

        Raises InvalidRequestError or ContextOverflowError before anything is computed, and
        InvalidRequestError where grammar and bias leave no token to choose,
        NonFiniteLogitsError if the model produces NaN (the message names the op that made it),
        OutOfMemoryError if memory runs out, after which the next request works, and
        StepTimeoutError if the GPU hangs, after which none does.
        """
        text, token_ids = "", list[int]()
        logprobs: list[TokenLogprob] | None = None
        last: StreamEvent | None = None
        prompt = self._check_prompt(prompt_ids)
        for event in self.stream(prompt, params):
            text += event.text_delta
            token_ids += event.token_ids
            if event.logprobs is not None:
                logprobs = (logprobs or []) + list(event.logprobs)
            last = event
        if last is None or last.finish_reason is None or last.stats is None:
            raise RuntimeError("a stream ended without its last event")
        return GenerationResult(
            token_ids,
            logprobs,
            last.finish_reason,
            last.stats,
            prompt_ids=prompt,
            _text=None if self._tokenizer is None else text,
        )

    def stream(
        self,
        prompt_ids: Iterable[int],
        params: SamplingParams | None = None,
        *,
        continues: int = 0,
    ) -> Iterator[StreamEvent]:
        """Run one request, one event per step. It is checked here, before the first event.

        Every event carries the ``stats`` so far, the last one ``finish_reason`` ("stop" or
        "length"). Closing the iterator ends the request. ``continues`` is how many ids at the end
        of the prompt belong to the reply: penalties for presence and frequency count them.
        """
        params = self.default_params() if params is None else params
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(
                f"params: got {type(params).__name__}, expected SamplingParams"
            )
        prompt = self._check_prompt(prompt_ids)
        room = self.max_len - len(prompt)
        if room < min(1, params.max_tokens):
            raise ContextOverflowError(
                f"the prompt has {len(prompt)} tokens and the context {self.max_len}: "
                "no room for a completion. Shorten the prompt, or load with a larger max_len "
                "where the model has one"
            )
        end_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            end_ids |= self.end_ids
        seed = params.seed if params.seed is not None else self.seed
        seed = secrets.randbits(63) if seed is None else seed
        reply = prompt[len(prompt) - check_integer("continues", continues, 0, len(prompt)) :]
        constraint = None
        if params.grammar is not None:
            constraint = self.grammars.constraint(params.grammar, prompt, end_ids)
        vocab_size = self.executor.vocab_size
        sampler = Sampler(params, prompt, vocab_size, end_ids, seed, reply, constraint=constraint)
        completion = Completion(params, end_ids, self._tokenizer, room)
        self._active = _Request(prompt, sampler, completion)
        return self._run(self._active)

    @torch.inference_mode()
    def score(self, ids: Iterable[int]) -> torch.Tensor:
        """Teacher-forced logits, float32 [T, vocab] on the CPU; row t predicts id t+1."""
        prompt = self._check_prompt(ids)
        if len(prompt) > self.max_len:
            raise ContextOverflowError(
                f"{len(prompt)} tokens to score, more than the context of {self.max_len}"
            )
        with self._sequence(lambda: prompt):
            self._active = None  # scoring takes the one sequence
            return self.executor.score(prompt).cpu()

    def _run(self, request: "_Request") -> Iterator[StreamEvent]:
        """One event for each pass of the model, until the completion ends."""
        decoder = self.decoder
        with self._sequence_of(request), request.clock.prefill():
            limit = request.completion.remaining
            event = request.gain(decoder.begin(request.prompt, request.sampler, limit))
            request.cached_tokens = decoder.cached_tokens
        yield request.counted(event, self.bytes_per_token, self.read_gb_s)
        while event.finish_reason is None:
            with self._sequence_of(request), request.clock.decode() as one:
                step = decoder.advance(event.token_ids)
                one.device_s = step.device_s
                event = request.gain(step)
            yield request.counted(event, self.bytes_per_token, self.read_gb_s)

    @contextmanager
    def _sequence_of(self, request: "_Request") -> Iterator[None]:
        """Hold the one sequence for a step, if it is still this request's."""
        with self._sequence(request.ids):
            if request is not self._active:
                raise InvalidRequestError(
                    "another request was started on this engine, which ended this one; "
                    "an engine runs one request at a time"
                )
            yield

    @contextmanager
    def _sequence(self, ids: Callable[[], list[int]]) -> Iterator[None]:
        """Hold the one sequence; ``ids`` says what it holds when something fails."""
        with self._lock:
            if self._hang is not None:
                raise StepTimeoutError(self._hang)  # the device would keep this call for ever
            try:
                with explained(self.executor, ids):
                    yield
            except StepTimeoutError as error:
                self._hang = str(error)
                raise

    def _check_prompt(self, prompt_ids: Iterable[int]) -> list[int]:
        given: Any = prompt_ids.tolist() if isinstance(prompt_ids, torch.Tensor) else prompt_ids
        if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
            raise InvalidRequestError(
                f"the prompt is a {type(prompt_ids).__name__}; expected a list of token ids"
            )
        ids = list(given)
        if not ids:
            raise InvalidRequestError("the prompt is empty; at least one token id is needed")
        # A long conversation comes with every turn, so the usual case is checked as a whole.
        if {*map(type, ids)} == {int} and min(ids) >= 0 and max(ids) < self.executor.vocab_size:
            return ids
        return [self._check_id(i, token) for i, token in enumerate(ids)]

    def _check_id(self, i: int, token: Any) -> int:
        try:
            number = -1 if isinstance(token, bool) else operator.index(token)
        except TypeError:
            number = -1
        if not 0 <= number < self.executor.vocab_size:
            raise InvalidRequestError(
                f"prompt id {i} is {token!r}; "
                f"expected an id of the vocabulary, 0 to {self.executor.vocab_size - 1}"
            )
        return number


@dataclass(slots=True)
class _Request:
    """One request in flight."""

    prompt: list[int]
    sampler: Sampler
    completion: Completion
    clock: RequestClock = field(default_factory=RequestClock)
    cached_tokens: int = 0

    def ids(self) -> list[int]:
        """The prompt and what was generated so far."""
        return self.prompt + self.completion.token_ids

    def gain(self, step: Step) -> StreamEvent:
        """Take the tokens that a pass offers, until its end or the completion's."""
        completion = self.completion
        wants_logprobs = self.sampler.params.logprobs is not None
        tokens, delta, logprobs = list[int](), "", list[TokenLogprob]()
        for token in step.tokens if completion.finish_reason is None else ():
            if wants_logprobs:
                logprobs.append(step.logprob(len(tokens), token))
            tokens.append(token)
            delta += completion.push(token)
            if completion.finish_reason is not None:
                break
        # A guess that is refused is never the token in its place.
        stood = sum(map(operator.eq, tokens, step.guesses))
        self.clock.count(drafted=len(step.guesses), accepted=stood)
        return StreamEvent(
            tuple(tokens),
            delta,
            tuple(logprobs) if wants_logprobs else None,
            completion.finish_reason,
        )

    def counted(
        self, event: StreamEvent, bytes_per_token: float | None, read_gb_s: float | None
    ) -> StreamEvent:
        """The event with the request's stats up to it."""
        stats = self.clock.stats(
            prompt_tokens=len(self.prompt),
            cached_tokens=self.cached_tokens,
            completion_tokens=len(self.completion.token_ids),
            bytes_per_token=bytes_per_token,
            read_gb_s=read_gb_s,
        )
        return replace(event, stats=stats)
