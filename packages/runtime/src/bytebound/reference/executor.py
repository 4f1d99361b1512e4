"""The reference executor: ids in, logits out, one sequence, any device that PyTorch runs on."""

from collections.abc import Sequence

import torch

from bytebound.config import ModelConfig
from bytebound.errors import ContextOverflowError
from bytebound.executor import Observer, Snapshot
from bytebound.reference.model import forward, logits
from bytebound.reference.rows import MAX_VERIFY_ROWS, Rows
from bytebound.reference.state import SequenceState
from bytebound.reference.threads import threads_for
from bytebound.weights import ModelWeights

PREFILL_CHUNK = 512  # rows of a wide pass: bounds its scratch whatever the prompt's length
# A pass of the shipped model on a CPU takes 7 ms, and 0.3 ms for each row.
PREFILL_FLOOR = 32


class ReferenceExecutor:
    """Implements ``bytebound.executor.Executor`` with the functions of this package."""

    def __init__(
        self,
        weights: ModelWeights,
        config: ModelConfig,
        *,
        max_len: int,
        prefill_chunk: int = PREFILL_CHUNK,
        prefill_floor: int = PREFILL_FLOOR,
    ) -> None:
        self.weights = weights
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_len = max_len
        self.prefill_chunk = prefill_chunk
        self.prefill_floor = prefill_floor
        self.epoch = 0
        self.device = weights.embed_tokens.device
        self.dtype = weights.embed_tokens.dtype
        self.state = SequenceState.empty(config, max_len, self.dtype, self.device)
        self.last_hidden: torch.Tensor | None = None
        self.snapshot_bytes = self.state.kept_bytes + config.hidden_size * self.dtype.itemsize

    @property
    def position(self) -> int:
        """Number of committed positions."""
        return self.state.position

    @property
    def caches(self) -> tuple[torch.Tensor, ...]:
        """See Executor."""
        return self.state.caches

    def reset(self) -> None:
        """Forget the sequence."""
        self.epoch += 1
        self.state.reset()
        self.last_hidden = None

    @torch.inference_mode()
    def prefill(self, ids: Sequence[int], observer: Observer | None = None) -> torch.Tensor:
        """Commit ``ids`` in chunks; logits [vocab] after the last. See ``Executor.prefill``."""
        hidden = torch.empty(0)
        for start in range(0, len(ids), self.prefill_chunk):
            chunk = ids[start : start + self.prefill_chunk]
            hidden = self._wide_pass(chunk)
            if observer is not None:
                next_ids = ids[start + 1 : start + len(chunk) + 1]
                if next_ids:
                    observer.observe(next_ids, hidden[: len(next_ids)])
        # A clone, so that the whole chunk is not kept alive by its last row.
        self.last_hidden = hidden[-1:].clone()
        return logits(self.last_hidden, self.weights)[0]

    def snapshot(self) -> Snapshot:
        """Keep the state after a prompt. See ``Executor.snapshot``."""
        return Snapshot(self.position, self.last_hidden, self.state.kept())

    @torch.inference_mode()
    def restore(self, snapshot: Snapshot) -> torch.Tensor:
        """Go back to a snapshot; logits [vocab] after its last row. See ``Executor.restore``."""
        hidden = snapshot.last_hidden
        if hidden is None:
            raise ValueError("a snapshot without a hidden state is of another executor")
        self.state.restore(snapshot.state, snapshot.position)
        self.last_hidden = hidden
        return logits(hidden, self.weights)[0]

    @torch.inference_mode()
    def verify(self, ids: Sequence[int]) -> torch.Tensor:
        """Logits [R, vocab] fp32 of 1 <= R <= 9 uncommitted rows. See ``Executor.verify``."""
        if not 1 <= len(ids) <= MAX_VERIFY_ROWS:
            raise ValueError(f"verify takes 1 to {MAX_VERIFY_ROWS} rows, got {len(ids)}")
        self._check_room(len(ids))
        rows = Rows(self.position, len(ids), wide=False)
        with threads_for(self.weights.embed_tokens.numel(), rows=rows.size):
            hidden = forward(self._tensor(ids), self.weights, self.config, self.state, rows)
            self.last_hidden = hidden[rows.slots]
            return logits(hidden, self.weights)[rows.slots]

    def commit(self, count: int) -> None:
        """Keep the first ``count`` rows of the last ``verify``."""
        self.state.commit(count)

    @torch.inference_mode()
    def score(self, ids: Sequence[int]) -> torch.Tensor:
        """Teacher-forced logits [T, vocab] fp32; position t predicts id t+1."""
        self.reset()
        chunks = [
            logits(self._wide_pass(ids[start : start + self.prefill_chunk]), self.weights)
            for start in range(0, len(ids), self.prefill_chunk)
        ]
        self.reset()
        return torch.cat(chunks)

    def explain_non_finite(self, ids: Sequence[int]) -> str:
        """Which op makes NaN or infinity of ``ids``. See ``bytebound.diagnosis``."""
        from bytebound.reference.diagnosis import explain_non_finite  # which imports this module

        return explain_non_finite(self, ids)

    def _wide_pass(self, ids: Sequence[int]) -> torch.Tensor:
        """Run and commit one chunk; hidden [T, D]."""
        self._check_room(len(ids))
        rows = Rows(self.position, len(ids), wide=True)
        hidden = forward(self._tensor(ids), self.weights, self.config, self.state, rows)
        self.state.position += len(ids)
        return hidden

    def _check_room(self, count: int) -> None:
        if self.position + count > self.max_len:
            raise ContextOverflowError(
                f"{count} more tokens after {self.position} exceed the context of {self.max_len}"
            )

    def _tensor(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(ids), dtype=torch.long, device=self.device)
