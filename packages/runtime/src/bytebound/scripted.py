"""An executor and a draft that follow a script of token ids: the decode loop without any weights.

A script is a list of steps; a step is the ids that one pass of the model adds. Text, stop strings,
tools, streaming and the server are tested with it.

The first id of the script comes from the prefill's logits, before any step of the decode loop. So a
script that is to show exact steps begins with a step of one id: ``[[5], [7, 8, 9], [2]]`` emits 5
from the prefill, then 7 8 9 in one pass (drafts 7 and 8 accepted, 9 the target's own), then 2.
"""

import math
import time
from collections.abc import Sequence

import torch

from bytebound.drafts.base import Proposal
from bytebound.errors import ContextOverflowError, InvalidRequestError, InvalidSettingError
from bytebound.executor import Observer, Snapshot
from bytebound.sampling import Sampler

# Odds of the scripted id over all others together, as a logarithm: sure, yet with logprobs below 0.
_LOG_ODDS = 12.0


class ScriptedExecutor:
    """Logits whose highest value is the next id of the script, whatever ids went in.

    Every ``prefill`` and ``restore`` starts the script anew. After the script comes ``end_id`` for
    ever, or an error where there is none. ``pass_s`` is how many seconds a pass of the decode loop
    takes at least, as a large model's does. With ``runs_ahead`` a pass is under way before the one
    before it is read, as on the CUDA backend: it ends that long after the last one's end, if it is
    asked for by then.
    """

    last_hidden: torch.Tensor | None = None
    prefill_chunk = 512
    prefill_floor = 32
    snapshot_bytes = 0
    caches: tuple[torch.Tensor, ...] = ()

    def __init__(
        self,
        steps: Sequence[Sequence[int]],
        vocab_size: int,
        *,
        end_id: int | None = None,
        max_len: int = 8192,
        pass_s: float = 0.0,
        runs_ahead: bool = False,
    ) -> None:
        if not 0 <= pass_s < math.inf:
            raise InvalidSettingError(f"pass_s: got {pass_s}, expected seconds, 0 or more")
        self.vocab_size = vocab_size
        self.max_len = max_len
        self.pass_s = pass_s
        self.runs_ahead = runs_ahead
        self._pass_end = -math.inf
        self._end_id = end_id
        self.rewrite(steps)
        self.epoch = 0
        self.reset()

    def rewrite(self, steps: Sequence[Sequence[int]]) -> None:
        """Take another script, from the next ``prefill`` or ``restore`` on."""
        script = [token_id for step in steps for token_id in step]
        for token_id in script if self._end_id is None else [*script, self._end_id]:
            if not 0 <= token_id < self.vocab_size:
                raise InvalidSettingError(
                    f"script: got id {token_id}, expected 0 to {self.vocab_size - 1}"
                )
        self._script = script

    @property
    def position(self) -> int:
        """Number of committed positions."""
        return self._position

    def reset(self) -> None:
        """Forget the sequence."""
        self.epoch += 1
        self._position = 0
        self._start = 0
        self._rows = 0

    def prefill(self, ids: Sequence[int], observer: Observer | None = None) -> torch.Tensor:
        """Commit any prompt and return the logits [vocab] of the script's first id."""
        if len(ids) == 0:
            raise InvalidRequestError("prompt: got no ids, expected at least one")
        self._check_room(len(ids))
        if observer is not None and len(ids) > 1:
            observer.observe(ids[1:], None)
        self._position += len(ids)
        return self._start_script()

    def snapshot(self) -> Snapshot:
        """Keep the position."""
        return Snapshot(self._position, None)

    def restore(self, snapshot: Snapshot) -> torch.Tensor:
        """Go back to the position and return the logits [vocab] of the script's first id."""
        self._position = snapshot.position
        return self._start_script()

    def verify(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the logits [R, vocab] of the next R ids of the script; commits nothing."""
        begun = time.perf_counter()
        self._check_room(len(ids))
        self._rows = len(ids)
        rows = self._logits(self._position - self._start + 1, len(ids))
        if self.pass_s:
            self._wait(begun)
        return rows

    def _wait(self, begun: float) -> None:
        """Sleep until the pass that was asked for at ``begun`` is over."""
        if self.runs_ahead and begun < self._pass_end + self.pass_s:
            begun = self._pass_end
        self._pass_end = begun + self.pass_s
        time.sleep(max(0.0, self._pass_end - time.perf_counter()))

    def commit(self, count: int) -> None:
        """Keep the first ``count`` rows of the last ``verify``."""
        if not 1 <= count <= self._rows:
            raise ValueError(f"commit: got {count} rows, expected 1 to {self._rows}")
        self._position += count
        self._rows = 0

    def score(self, ids: Sequence[int]) -> torch.Tensor:
        """Logits [T, vocab] as if ``ids[0]`` were the prompt: row t predicts the script's id t."""
        self.reset()
        self._check_room(len(ids))
        return self._logits(0, len(ids))

    def _start_script(self) -> torch.Tensor:
        self._start = self._position
        self._rows = 0
        self._pass_end = time.perf_counter()
        return self._logits(0, 1)[0]

    def _check_room(self, count: int) -> None:
        if self._position + count > self.max_len:
            raise ContextOverflowError(
                f"{self._position} + {count} positions do not fit max_len {self.max_len}"
            )

    def _logits(self, first: int, count: int) -> torch.Tensor:
        if first >= len(self._script) and self._end_id is None:
            raise InvalidRequestError(
                f"the script is over after {len(self._script)} ids: "
                "set max_tokens to at most that, or give the executor an end_id"
            )
        rows = torch.zeros(count, self.vocab_size)
        peak = _LOG_ODDS + math.log(self.vocab_size)
        for row, index in enumerate(range(first, first + count)):
            # Later rows past the end belong to drafts of ids that do not exist: no id stands out.
            token_id = self._script[index] if index < len(self._script) else self._end_id
            if token_id is not None:
                rows[row, token_id] = peak
        return rows


class ScriptedDraft:
    """Proposes what completes the current step, so that one pass gives exactly the step's ids.

    ``wrong`` ids that the target refuses follow the right ones; they change the counts of drafted
    and accepted ids and nothing else. Position in the script is the number of ids the sampler has
    accepted.
    """

    name = "scripted"

    def __init__(self, steps: Sequence[Sequence[int]], *, wrong: int = 0) -> None:
        if wrong < 0:
            raise InvalidSettingError(f"wrong: got {wrong}, expected 0 or more")
        # rest[g] is what the step of the script's id g still adds, id g included.
        self._rest = [tuple(step[index:]) for step in steps for index in range(len(step))]
        self._wrong = wrong
        self.observed: list[int] = []
        """Every id of the current sequence that this draft was shown, in order."""

    def begin(self, first_id: int) -> None:
        """Start a new sequence."""
        self.observed = [first_id]

    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        """Record committed ids."""
        self.observed.extend(next_ids)

    def rewind(self, length: int) -> None:
        """Forget all but the first ``length`` ids."""
        del self.observed[length:]

    caches: tuple[torch.Tensor, ...] = ()

    def resume(self, ids: Sequence[int]) -> None:
        """Have been shown just ``ids``."""
        self.observed = list(ids)

    def propose(self, count: int, sampler: Sampler) -> Proposal:
        """Return the rest of the step but its last id, then wrong ids: at most ``count``."""
        if sampler.generated >= len(self._rest):
            return Proposal(())
        *right, last = self._rest[sampler.generated]
        refused = 1 if last == 0 else 0
        return Proposal((*right, *[refused] * self._wrong)[: max(count, 0)])
