"""The CUDA executor: ids in, logits out, one sequence on one GPU."""

from collections.abc import Sequence

import torch

from bytebound.config import ModelConfig
from bytebound.cuda.buffers import Buffers, inverse_frequencies
from bytebound.cuda.graphs import Recordings, no_garbage_collection
from bytebound.cuda.matrices import MATMUL_ROWS, MATVEC_ROWS, UNPACK_ROWS, Workspaces
from bytebound.cuda.prefill import Chunk
from bytebound.cuda.state import MAX_ROWS, SequenceState, cache_positions
from bytebound.cuda.step import Step, settle
from bytebound.cuda.stream import StreamStep
from bytebound.cuda.watchdog import Watchdog, limit_from_environment
from bytebound.cuda.weights import ModelWeights, largest_packed
from bytebound.errors import ContextOverflowError
from bytebound.executor import Observer, Snapshot

PREFILL_CHUNK = 2048  # rows of a wide pass: bounds its scratch whatever the prompt's length
# A wide pass unpacks every matrix, so that fewer rows hardly cost less: w4_unpack_cublas of 17 and
# of 256 rows in bench/results/h200/kernels-prompts.json.
PREFILL_FLOOR = 256
# The host launches a wide pass kernel by kernel, so that it takes as long as the host takes: of 47
# rows a ninth less than six steps of eight on a fast one, two thirds more on a slow one
# (short-prompts.json and short-prompts-slow-host.json there). A matrix in 16 bits is read no faster
# for fewer rows, so that there one step is the most.
FEW_ROWS = 48
SCORE_ROWS = 64  # of logits on the device at once: a megabyte each for a large vocabulary


class CudaExecutor:
    """Implements ``bytebound.executor.Executor`` with the kernels of bytebound-kernels.

    ``verify`` launches op by op, or with ``engine="stream"`` as the weight stream; ``cycle.py`` has
    the same pass in recordings. A pass of a prompt that has ``few_rows`` rows at most is as many
    recorded steps as it takes, a longer one is launched op by op by kernels made for many rows; so
    a row's bits follow the rows of its pass. All work goes to the current stream.
    """

    def __init__(
        self,
        weights: ModelWeights,
        config: ModelConfig,
        *,
        max_len: int,
        kv_dtype: torch.dtype | None = None,
        prefill_chunk: int = PREFILL_CHUNK,
        prefill_floor: int = PREFILL_FLOOR,
        few_rows: int | None = None,
        engine: str = "graph",
    ) -> None:
        self.weights = weights
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_len = max_len
        self.prefill_chunk = prefill_chunk
        self.prefill_floor = prefill_floor
        self.epoch = 0
        self.device = weights.device
        self.last_hidden: torch.Tensor | None = None
        unpacked = largest_packed((weights.layers, weights.mtp))
        self.few_rows = (FEW_ROWS if unpacked else MAX_ROWS) if few_rows is None else few_rows
        kind = kv_dtype or weights.dtype
        self.state = SequenceState.empty(config, max_len, weights.dtype, kind, self.device)
        self.snapshot_bytes = self.state.kept_bytes + config.hidden_size * weights.dtype.itemsize
        self.op_by_op = Step(
            config,
            Buffers.empty(config, weights.dtype, self.device),
            Workspaces.empty(
                num_heads=config.num_attention_heads,
                max_rows=MAX_ROWS,
                positions=cache_positions(max_len),
                unpacked=unpacked,
                dtype=weights.dtype,
                device=self.device,
            ),
            inverse_frequencies(config, self.device),
            self.state.position,
        )
        self.step = self.op_by_op
        if engine == "stream":
            self.step = StreamStep.over(self.op_by_op, weights, self.state)
        self._recordings = Recordings(self._work, self.device)
        self.watchdog = Watchdog(limit_from_environment())
        self._done = torch.cuda.Event() if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._position = 0
        self._verified = 0  # rows of the last verify that are not committed
        self._has_pending = False  # committed rows that the state does not hold yet

    @property
    def position(self) -> int:
        """Number of committed positions."""
        return self._position

    @property
    def caches(self) -> tuple[torch.Tensor, ...]:
        """See Executor."""
        return self.state.caches

    def warm_up(self) -> None:
        """Compile and load what prompts need, so that no request pays for it; then reset."""
        with no_garbage_collection(), torch.inference_mode():
            for count in range(1, max(1, min(self.few_rows, MAX_ROWS)) + 1):
                self.prefill([0] * min(count, self.max_len))
                self.reset()
            for count in (*MATMUL_ROWS, UNPACK_ROWS):
                self._wide_pass([0] * min(count, self.max_len))  # as score() reads few rows too
                self.reset()

    def reset(self) -> None:
        """Forget the sequence."""
        self.epoch += 1
        self.state.reset()
        self.last_hidden = None
        self._position, self._verified, self._has_pending = 0, 0, False

    @torch.inference_mode()
    def prefill(self, ids: Sequence[int], observer: Observer | None = None) -> torch.Tensor:
        """Commit ``ids`` in chunks; logits [vocab] after the last. See ``Executor.prefill``."""
        hidden = torch.empty(0)
        for start in range(0, len(ids), self.prefill_chunk):
            chunk = ids[start : start + self.prefill_chunk]
            few = len(chunk) <= self.few_rows
            hidden = self._in_steps(chunk) if few else self._wide_pass(chunk)
            next_ids = ids[start + 1 : start + len(chunk) + 1]
            if observer is not None and next_ids:
                observer.observe(next_ids, hidden[: len(next_ids)])
        # A clone, so that the whole chunk is not kept alive by its last row.
        self.last_hidden = hidden[-1:].clone()
        row = self._logits(self.last_hidden)[0]
        self._wait()
        return row

    def snapshot(self) -> Snapshot:
        """Keep the state after a prompt. See ``Executor.snapshot``."""
        return Snapshot(self._position, self.last_hidden, self.state.kept())

    @torch.inference_mode()
    def restore(self, snapshot: Snapshot) -> torch.Tensor:
        """Go back to a snapshot; logits [vocab] after its last row. See ``Executor.restore``."""
        hidden = snapshot.last_hidden
        if hidden is None:
            raise ValueError("a snapshot without a hidden state is of another executor")
        self.state.restore(snapshot.state)
        self._position, self._verified, self._has_pending = 0, 0, False
        self._advance(snapshot.position)
        self.last_hidden = hidden
        return self._logits(hidden)[0]

    @torch.inference_mode()
    def verify(self, ids: Sequence[int]) -> torch.Tensor:
        """Logits [R, vocab] fp32 of 1 <= R <= 8 uncommitted rows. See ``Executor.verify``."""
        rows = len(ids)
        if not 1 <= rows <= MAX_ROWS:
            raise ValueError(f"verify takes 1 to {MAX_ROWS} rows, got {rows}")
        self._check_room(rows)
        buffers = self.step.buffers
        buffers.ids[:rows].copy_(torch.tensor(list(ids), dtype=torch.int32))
        self.step.verify(self.weights, self.state, rows)
        self._verified, self._has_pending = rows, False
        self.last_hidden = buffers.hidden[:rows].clone()
        logits = buffers.logits[:rows].clone()
        self._wait()
        return logits

    def commit(self, count: int) -> None:
        """Keep the first ``count`` rows of the last ``verify``."""
        if not 1 <= count <= self._verified:
            raise ValueError(f"commit takes 1 to {self._verified} rows here, got {count}")
        self._verified, self._has_pending = 0, True
        self.state.num_accepted.fill_(count)
        self._advance(count)

    @torch.inference_mode()
    def score(self, ids: Sequence[int]) -> torch.Tensor:
        """Teacher-forced logits [T, vocab] fp32 in host memory; position t predicts id t+1."""
        self.reset()
        blocks = []
        for start in range(0, len(ids), self.prefill_chunk):
            hidden = self._wide_pass(ids[start : start + self.prefill_chunk])
            for block in torch.split(hidden, SCORE_ROWS):
                logits = self._logits(block)
                self._wait()
                blocks.append(logits.cpu())
        self.reset()
        return torch.cat(blocks)

    def explain_non_finite(self, ids: Sequence[int]) -> str:
        """Which op makes NaN or infinity of ``ids``. See ``bytebound.diagnosis``."""
        from bytebound.cuda.diagnosis import explain_non_finite  # which imports this module

        return explain_non_finite(self, ids)

    def _wait(self) -> None:
        """Until all that is enqueued is done, as PyTorch would wait, but not for ever."""
        if self._done is not None:
            self._done.record()
            self.watchdog.wait(self._done)

    def _wide_pass(self, ids: Sequence[int]) -> torch.Tensor:
        """Run and commit one chunk; hidden [T, D]."""
        rows = self._taken(ids)
        step = self.step
        chunk = Chunk(
            self.config, step.workspaces, step.inv_freq, self.weights.dtype, self._position
        )
        hidden = chunk.forward(rows, self.weights, self.state)
        self._advance(len(ids))
        return hidden

    def _in_steps(self, ids: Sequence[int]) -> torch.Tensor:
        """As ``_wide_pass``, of few rows."""
        taken, buffers = self._taken(ids), self.op_by_op.buffers
        hidden = buffers.hidden.new_empty(len(ids), self.config.hidden_size)
        blocks = (torch.split(one, MAX_ROWS) for one in (taken, hidden))
        for rows, out in zip(*blocks, strict=True):
            buffers.ids[: len(rows)].copy_(rows)
            self._recordings.run(len(rows))
            out.copy_(buffers.hidden[: len(rows)])
        self._advance(len(ids))
        return hidden

    @torch.inference_mode()
    def _work(self, key: object) -> None:
        if not isinstance(key, int):
            raise ValueError(f"no work {key!r}")
        self.op_by_op.read(self.weights, self.state, self.op_by_op.buffers.ids[:key])

    def _taken(self, ids: Sequence[int]) -> torch.Tensor:
        """The ids on the device, for a pass that commits them all; no row is pending then."""
        self._check_room(len(ids))
        self._wait()  # bringing the ids to the device would
        if self._has_pending:
            settle(self.weights, self.state, self.config)
        self._verified, self._has_pending = 0, False
        return torch.tensor(list(ids), dtype=torch.int32, device=self.device)

    def _advance(self, count: int) -> None:
        self._position += count
        self.state.position.fill_(self._position)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Output head over hidden [T, D], row by row as a step has it: fp32 [T, vocab]."""
        out = torch.empty(hidden.shape[0], self.vocab_size, device=self.device)
        for start in range(0, hidden.shape[0], MATVEC_ROWS):
            rows = slice(start, start + MATVEC_ROWS)
            self.weights.lm_head.matvec(hidden[rows], out[rows], self.step.workspaces)
        return out

    def _check_room(self, count: int) -> None:
        if self._position + count > self.max_len:
            raise ContextOverflowError(
                f"{count} more tokens after {self._position} exceed the context of {self.max_len}"
            )
