"""The decode loop of the CUDA backend: turns of ``cycle.py``, recorded, read a turn behind.

The device needs nothing from the host between two turns, so the next one is under way before the
tokens of this one are read. A turn too many costs nothing: the next prompt starts from its own
state, and no position that a prompt has filled is written again before.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import bytebound_kernels as bk
import torch

from bytebound.cuda.cycle import Cycle, Form
from bytebound.cuda.depth import AdaptiveDepth, DepthPolicy, FixedDepth
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.graphs import Recordings
from bytebound.cuda.mtp import CudaMtpDraft
from bytebound.cuda.sampling import Choice, token_logprob
from bytebound.decoder import HostDecoder, Step
from bytebound.drafts.base import Draft, Proposal
from bytebound.errors import NonFiniteLogitsError
from bytebound.prompt_reader import PromptReader
from bytebound.results import TokenLogprob
from bytebound.sampling import Sampler

_IN_FLIGHT = 2  # turns that may be under way: one that is read, and one behind it


class CudaDecoder:
    """Implements ``bytebound.decoder.Decoder`` on the device.

    A request with a grammar, or one that does not fit the device's lists (hundreds of biases, more
    than 20 logprobs), is decoded by ``HostDecoder`` on the same executor, by the same rules.
    """

    def __init__(
        self,
        executor: CudaExecutor,
        draft: Draft | None,
        num_draft_tokens: int,
        reader: PromptReader | None = None,
        *,
        adaptive_depth: bool = False,
    ) -> None:
        self.executor = executor
        self.draft = draft
        self.num_draft_tokens = num_draft_tokens
        self.by_head = isinstance(draft, CudaMtpDraft)
        self.cycle = Cycle(executor, draft.head if isinstance(draft, CudaMtpDraft) else None)
        self.reader = reader or PromptReader(executor, draft)
        self._host = HostDecoder(executor, draft, num_draft_tokens, self.reader)
        self._recordings = Recordings(self._work, executor.device)
        self._reports = tuple(_Report.empty(self.cycle) for _ in range(_IN_FLIGHT))
        self._free = deque(self._reports)
        self._flying = deque[_Report]()
        self._sampler: Sampler | None = None  # None: the request is the host's
        self._form = Form(Choice(0))
        self._remaining = 0
        self._depth: DepthPolicy = FixedDepth(0 if draft is None else num_draft_tokens)
        if self.by_head and adaptive_depth:
            self._depth = AdaptiveDepth(num_draft_tokens)
        self._own_depth = self._depth
        ids = draft.head.draft_ids if isinstance(draft, CudaMtpDraft) else None
        self._draft_ids = None if ids is None else frozenset(ids.tolist())

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run and record the forms that requests take, so that none pays for it.

        But for a draft that is not of this package and hands over probabilities, and a request that
        bans all of a small draft vocabulary: they record theirs when they come.
        """
        row = self.executor.prefill([0])
        if isinstance(self._depth, FixedDepth) and self._runs_ahead:
            counts = range(self._depth.depth, self._depth.depth + 1)
        else:  # the host, or the policy, asks for any number
            counts = range(self.num_draft_tokens + 1)
        for sampled, with_logprobs in product((False, True), repeat=2):
            first = Choice(0, sampled=sampled, with_logprobs=with_logprobs)
            self.cycle.begin(row, self._hidden(), position=1)
            self._run("first", Form(first))
            for count in counts:
                drawn = sampled and self.by_head
                self._run("turn", self._turn(replace(first, num_drafts=count, drawn_drafts=drawn)))
        self.executor.reset()

    @property
    def cached_tokens(self) -> int:
        """See Decoder."""
        return self.reader.cached_tokens

    @torch.inference_mode()
    def begin(self, prompt: Sequence[int], sampler: Sampler, limit: int) -> Step:
        """See Decoder."""
        self._land()
        self._sampler = None
        if not self.cycle.sampler.takes(sampler):
            return self._host.begin(prompt, sampler, limit)
        row = self.reader.read(prompt)
        self._sampler, self._remaining = sampler, limit
        self.cycle.sampler.load(sampler, prompt)
        self.cycle.begin(row, self._hidden(), len(prompt))
        first = Choice(
            0,
            sampled=not sampler.greedy,
            with_logprobs=sampler.params.logprobs is not None,
        )
        choice = replace(first, drawn_drafts=first.sampled and self.by_head)
        self._form = self._turn(choice)
        self._depth = self._own_depth
        if self._draft_ids is not None and self._draft_ids <= set(sampler.banned_ids):
            self._depth = FixedDepth(0)  # the head has no id left to draw
        self._depth.begin()
        self._launch("first", Form(first))
        return self._offer()

    @torch.inference_mode()
    def advance(self, taken: Sequence[int]) -> Step:
        """See Decoder."""
        if self._sampler is None:
            return self._host.advance(taken)
        self._remaining -= len(taken)
        if self.draft is not None and not self._runs_ahead:
            self._launch("turn", self._guessed_by_host(self.draft, taken, self._sampler))
            return self._offer()
        if not self._flying:
            self._launch_ahead()
        return self._offer()

    @property
    def _runs_ahead(self) -> bool:
        """Whether a turn needs nothing from the host."""
        return self.draft is None or self.by_head

    def _launch_ahead(self) -> None:
        choice = replace(self._form.choice, num_drafts=self._depth.depth)
        self._launch("turn", replace(self._form, choice=choice))

    def _offer(self) -> Step:
        """Start the next turn if it is needed whatever this one emits; then read this one."""
        report = self._flying[0]
        if self._runs_ahead and report.form.choice.num_drafts + 1 < self._remaining:
            self._launch_ahead()
        self._flying.popleft()
        self._free.append(report)
        if report.event is not None:
            # A prompt's last chunk and head may be under way before the turn.
            self.executor.watchdog.wait(report.event, passes=3)
        words = report.words.tolist()
        emitted = words[bk.CYCLE_HEADER :][: words[bk.CYCLE_NUM_EMITTED]]
        if -1 in emitted:
            self._land()
            raise NonFiniteLogitsError(
                "the model's logits are not all finite. Check the checkpoint with the reference "
                "backend in float32"
            )
        self._depth.observe(report.form.choice.num_drafts, len(emitted) - 1)
        guesses = report.ids.tolist()[1 : 1 + report.form.choice.num_drafts]
        return Step(tuple(guesses), emitted, self._logprob_of(report), report.device_s)

    def _hidden(self) -> torch.Tensor:
        if self.executor.last_hidden is None:
            raise RuntimeError("no prompt was processed")
        return self.executor.last_hidden

    def _logprob_of(self, report: "_Report") -> Callable[[int, int], TokenLogprob]:
        if not report.form.choice.with_logprobs or self._sampler is None:
            return _no_logprob
        values, ids = report.logprob_values.tolist(), report.logprob_ids.tolist()
        count = self._sampler.params.logprobs or 0
        return lambda place, token: token_logprob(values[place], ids[place], count)

    def _guessed_by_host(self, draft: Draft, taken: Sequence[int], sampler: Sampler) -> Form:
        """Ask the draft for guesses and bring them to the device."""
        hidden = self.executor.step.buffers.hidden[: len(taken)].clone()
        draft.observe(taken, hidden)
        count = min(self.num_draft_tokens, self._remaining - 1)
        proposal = draft.propose(count, sampler) if count > 0 else Proposal(())
        proposal.check(draft.name, count, self.executor.vocab_size)
        count = len(proposal.ids)
        if count:
            self.cycle.ids[1 : 1 + count].copy_(torch.tensor(proposal.ids, dtype=torch.int32))
        drawn = proposal.probs is not None and not sampler.greedy
        if drawn and proposal.probs is not None:
            self.cycle.sampler.draft_weights[:count].copy_(proposal.probs)
            self.cycle.sampler.draft_totals[:count].fill_(1.0)
        return self._turn(replace(self._form.choice, num_drafts=count, drawn_drafts=drawn))

    def _turn(self, choice: Choice) -> Form:
        most = 0 if self.draft is None else self.num_draft_tokens
        return Form.of(choice, most, by_head=self.by_head)

    def _launch(self, kind: str, form: Form) -> None:
        """Enqueue a turn, and the copy of its result to the host."""
        report = self._free.popleft()
        report.start()
        self._run(kind, form)
        report.fetch(self.cycle, form)
        self._flying.append(report)

    def _run(self, kind: str, form: Form) -> None:
        self._recordings.run((kind, form))

    @torch.inference_mode()
    def _work(self, key: object) -> None:
        match key:
            case ("first", Form() as form):
                self.cycle.first(form.choice)
            case ("turn", Form() as form):
                self.cycle.turn(form)
            case _:
                raise ValueError(f"no work {key!r}")

    def _land(self) -> None:
        """Forget the turns that are under way, also one whose launch was interrupted."""
        self._flying.clear()
        self._free = deque(self._reports)


@dataclass(slots=True)
class _Report:
    """What the host reads of one turn: in pinned memory, so that the copies wait for nobody."""

    words: torch.Tensor
    ids: torch.Tensor
    logprob_values: torch.Tensor
    logprob_ids: torch.Tensor
    begun: torch.cuda.Event | None
    event: torch.cuda.Event | None
    form: Form

    @classmethod
    def empty(cls, cycle: Cycle) -> "_Report":
        on_gpu = cycle.words.device.type == "cuda"

        def like(source: torch.Tensor) -> torch.Tensor:
            return torch.zeros(source.shape, dtype=source.dtype, pin_memory=on_gpu)

        sampler = cycle.sampler
        return cls(
            like(cycle.words),
            like(cycle.ids),
            like(sampler.logprob_values),
            like(sampler.logprob_ids),
            torch.cuda.Event(enable_timing=True) if on_gpu else None,  # type: ignore[no-untyped-call]
            torch.cuda.Event(enable_timing=True) if on_gpu else None,  # type: ignore[no-untyped-call]
            Form(Choice(0)),
        )

    @property
    def device_s(self) -> float:
        """Seconds from the start of the turn to the arrival of its result."""
        if self.begun is None or self.event is None:
            return 0.0
        return float(self.begun.elapsed_time(self.event)) / 1e3

    def start(self) -> None:
        """Note on the device that the turn begins."""
        if self.begun is not None:
            self.begun.record()

    def fetch(self, cycle: Cycle, form: Form) -> None:
        """Enqueue the copies behind the turn."""
        self.form = form
        self.words.copy_(cycle.words, non_blocking=True)
        if form.choice.num_drafts:
            self.ids.copy_(cycle.ids, non_blocking=True)
        if form.choice.with_logprobs:
            self.logprob_values.copy_(cycle.sampler.logprob_values, non_blocking=True)
            self.logprob_ids.copy_(cycle.sampler.logprob_ids, non_blocking=True)
        if self.event is not None:
            self.event.record()


def _no_logprob(place: int, token: int) -> TokenLogprob:
    raise RuntimeError("logprobs were not asked for")
