"""What the CUDA backend will hold, from config and headers alone: nothing of the weights is read.

Every number here stands for an allocation somewhere in this package: whoever adds a tensor that
lives as long as the engine, or that a prompt needs, adds it here. Sizes are those that PyTorch's
allocator takes for them, which rounds a large tensor up to whole 2 MiB.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import bytebound_kernels as bk
import torch
from bytebound_kernels import prefill as many

from bytebound import tensor_names as names
from bytebound.bandwidth import LOAD_BUFFER_BYTES
from bytebound.checkpoint import read_headers
from bytebound.config import ModelConfig
from bytebound.cuda import fusion
from bytebound.cuda.executor import PREFILL_CHUNK
from bytebound.cuda.held import BYTES, Held, held
from bytebound.cuda.shapes import MAX_CONTEXT
from bytebound.cuda.state import MAX_ROWS, cache_positions, updates_width
from bytebound.cuda.stream import row_bytes
from bytebound.errors import InvalidSettingError
from bytebound.memory import (
    FLOAT32_BYTES,
    MemoryPlan,
    byte_budget,
    check_context,
    check_fits,
    largest_context,
    state_bytes,
)
from bytebound.quantized import PackedMatrix
from bytebound.settings import (
    FP8_KV_ABOVE,
    activations_dtype,
    check_cuda_kv_dtype,
    cuda_problem,
)
from bytebound.snapshots import snapshot_budget
from bytebound.tensor_names import Shape
from bytebound.vram import (
    LATER_BYTES,
    MIB,
    NOMINAL_CONTEXT_BYTES,
    allocatable_bytes,
    outside_bytes,
)

TOP_LOGPROBS = 20
FLOAT64_BYTES = 8
GRAPH_NODE_BYTES = 8 << 10  # device memory of one recorded kernel: an estimate
NODES_OF_A_LAYER = 12
KINDS_OF_CHOICE = 4  # greedy or drawn, with logprobs or without
LIBRARY_BYTES = 33 * MIB  # workspace of the library's matrix product
SLACK_BYTES = 22 * MIB  # allocator segments for small and for medium tensors that are not full
_LARGE, _LARGE_STEP, _STEP = 10 * MIB, 2 * MIB, 512  # of PyTorch's allocator
_NOMINAL_PRODUCT_BYTES = 16 * MIB


@dataclass(frozen=True, slots=True)
class Card:
    """What the plan needs to know of a GPU."""

    product_bytes: int  # workspaces of the matrix products
    context_bytes: int  # outside PyTorch's allocator
    stream_bytes: int = 0  # workspace of the weight stream

    @classmethod
    def of(cls, device: torch.device) -> "Card":
        """Ask a device."""
        index = device.index or 0
        product = bk.matvec_workspace_bytes(index) + bk.w4_matmul_workspace_bytes(index)
        return cls(product, outside_bytes(device), bk.weight_stream_workspace_bytes(index))

    @classmethod
    def nominal(cls) -> "Card":
        """A card like many, where there is none to ask."""
        return cls(_NOMINAL_PRODUCT_BYTES, NOMINAL_CONTEXT_BYTES + LATER_BYTES)


@dataclass(frozen=True, slots=True)
class Stored:
    """What the headers of a folder say, or a shape alone."""

    shapes: Mapping[str, Shape]
    packed: Mapping[str, PackedMatrix] | None  # None: no files yet, all will be in 4 bits
    prefix: str
    with_mtp: bool
    random: bool = False
    in_one_piece: bool = False  # read from the packed cache: one allocation, and nothing beside it

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        packed: Mapping[str, PackedMatrix] | None,
        prefix: str,
        *,
        with_mtp: bool,
        random: bool = False,
        in_one_piece: bool = False,
    ) -> "Stored":
        """Collect the shapes that go with it."""
        shapes = {**names.model_shapes(config, prefix=prefix), **names.head_shape(config)}
        if with_mtp:
            shapes |= names.mtp_shapes(config)
        return cls(shapes, packed, prefix, with_mtp, random, in_one_piece)


@dataclass(frozen=True, slots=True)
class CudaMemory:
    """Plans any context for one model on one card."""

    config: ModelConfig
    stored: Stored
    card: Card
    kv_dtype: str = "auto"  # as the caller asked for it
    dtype: torch.dtype = torch.bfloat16  # of the activations
    draft_ids: int = 0  # size of the draft vocabulary
    num_draft_tokens: int = 0
    by_mtp: bool = True  # whether the MTP head drafts, where there is one; its weights are held
    snapshot_bytes: int | None = None  # None: the default of ``snapshot_budget``
    engine: str = "graph"

    def plan(self, max_len: int) -> MemoryPlan:
        """Bytes held at most with a context of ``max_len``.

        Raises:
            InvalidSettingError: the model was not trained for such a context, no kernel takes one,
                or ``kv_dtype`` is unknown.
        """
        config, stored = self.config, self.stored
        check_context(config, max_len)
        if max_len > MAX_CONTEXT:
            raise InvalidSettingError(
                f"max_len is {max_len}, expected at most {MAX_CONTEXT} with backend='cuda'; "
                "backend='reference' takes more"
            )
        matrices = self._matrices()
        decoder = self.decoder_matrices()
        mtp = [one for one in matrices if one.name.startswith(names.MTP_PREFIX)]
        small = [size for name, size in self._vectors() if not name.startswith(names.MTP_PREFIX)]
        small_mtp = [size for name, size in self._vectors() if name.startswith(names.MTP_PREFIX)]
        table = config.vocab_size * config.hidden_size * BYTES
        kv_dtype = check_cuda_kv_dtype(self.kv_dtype, max_len, self.dtype)
        kv = self._kv(max_len, kv_dtype)
        mtp_kv = kv if self._drafts_by_mtp else 0
        states = state_bytes(config, BYTES)
        windows = states - state_bytes(config, 0)
        kept, scratch = self._kept_rows(), self._scratch(max_len, matrices)
        stream = self._stream()
        later = config.num_attention_layers * kv + mtp_kv + states + kept + scratch + stream
        snapshot = states + config.hidden_size * BYTES
        plan = MemoryPlan(
            max_len=max_len,
            weights=self._taken(one.num_bytes for one in decoder) + self._taken(small),
            embedding=self._taken([table]),
            mtp_weights=self._taken(one.num_bytes for one in mtp) + self._taken(small_mtp),
            kv=config.num_attention_layers * kv,
            mtp_kv=mtp_kv,
            gdn_state=states - windows,
            conv_windows=windows,
            verify_rows=kept,
            scratch=scratch,
            draft_head=self._draft_head(matrices),
            stream=stream,
            snapshots=snapshot_budget(self.snapshot_bytes, snapshot),
            loading=max(0, self._transient(matrices) - later),
            graphs=self._graphs(),
            cuda_context=self.card.context_bytes,
            backend="cuda",
            kv_dtype="fp8" if kv_dtype.itemsize == 1 else str(kv_dtype).removeprefix("torch."),
            random_weights=stored.random,
        )
        # The bandwidth is measured before the weights come.
        short = taken(LOAD_BUFFER_BYTES) - (plan.total - plan.cuda_context)
        return plan if short <= 0 else replace(plan, loading=plan.loading + short)

    def check_fits(self, limit_bytes: int, max_len: int) -> MemoryPlan:
        """Return the plan, or refuse it: see ``bytebound.memory.check_fits``."""
        return check_fits(
            self.plan, limit_bytes, max_len=max_len, longest=self._longest, steps=self._steps
        )

    def largest_context(self, limit_bytes: int) -> int:
        """The longest ``max_len`` that fits; 0 where none does."""
        return largest_context(self.plan, limit_bytes, self._longest, self._steps)

    @property
    def _longest(self) -> int:
        return min(self.config.max_position_embeddings, MAX_CONTEXT)

    @property
    def _steps(self) -> tuple[int, ...]:
        """Where fp8 begins, the cache is half as large again."""
        return (FP8_KV_ABOVE,) if self.kv_dtype == "auto" else ()

    def decoder_matrices(self) -> list[Held]:
        """All but those of the MTP head; the output head is one unless it is tied."""
        return [one for one in self._matrices() if not one.name.startswith(names.MTP_PREFIX)]

    def bytes_per_token(self, kv_dtype: torch.dtype) -> float:
        """Bytes that a plain decode step moves at 1,024 cached positions."""
        decoder = self.decoder_matrices()
        elements = sum(one.elements for one in decoder)
        bits = 8 * sum(one.num_bytes for one in decoder) / elements if elements else 8.0 * BYTES
        return byte_budget(
            self.config,
            bits_per_weight=bits,
            kv_bytes=_kv_element_bytes(self.config, kv_dtype),
            small_bytes=BYTES,
        ).total

    @property
    def _drafts_by_mtp(self) -> bool:
        return self.by_mtp and self.stored.with_mtp

    def _matrices(self) -> list[Held]:
        stored = self.stored
        plan = fusion.plan(self.config, stored.prefix, with_mtp=stored.with_mtp)
        return [held(one, stored.shapes, stored.packed) for one in plan]

    def _vectors(self) -> Iterator[tuple[str, int]]:
        """Everything that is no matrix: the convolution in 16 bits, the rest in 32."""
        for name, shape in self.stored.shapes.items():
            if len(shape) != 2:
                yield name, math.prod(shape) * (FLOAT32_BYTES if len(shape) == 1 else BYTES)

    def _taken(self, sizes: Iterable[float]) -> int:
        return sum(math.ceil(one) if self.stored.in_one_piece else taken(one) for one in sizes)

    def _kv(self, max_len: int, kv_dtype: torch.dtype) -> int:
        """Keys and values of one layer."""
        config = self.config
        one = config.num_key_value_heads * cache_positions(max_len)
        sizes = 2 * [one * config.head_dim * kv_dtype.itemsize]
        if kv_dtype.itemsize == 1:
            sizes += 2 * [one * FLOAT32_BYTES]
        return sum(map(taken, sizes))

    def _kept_rows(self) -> int:
        """Projections of the rows of a pass, and what the pass before keeps of its own."""
        config = self.config
        width = 2 * config.conv_channels + config.value_dim + 2 * config.linear_num_value_heads
        return config.num_linear_layers * MAX_ROWS * width * BYTES + self._updates()

    def _updates(self) -> int:
        config = self.config
        return config.num_linear_layers * MAX_ROWS * updates_width(config) * FLOAT32_BYTES

    def _stream(self) -> int:
        """What the rows of a pass hand over in a weight stream, and its workspace."""
        if self.engine != "stream":
            return 0
        arena = MAX_ROWS * row_bytes(self.config)
        return sum(map(taken, (arena, self._updates(), self.card.stream_bytes)))

    def _draft_head(self, matrices: list[Held]) -> int:
        if not self.draft_ids:
            return 0
        config = self.config
        head = [one for one in matrices if one.name == fusion.HEAD]
        num_bytes = self.draft_ids * config.hidden_size * BYTES
        if head and head[0].packed:
            num_bytes = bk.w4_packed_bytes(
                self.draft_ids, config.hidden_size, asymmetric=head[0].asymmetric
            )
        return taken(num_bytes) + self.draft_ids * 4

    def _graphs(self) -> int:
        """Recordings: the first token, and a turn for each number of guesses, in every kind.

        And steps through a prompt of each number of rows.
        """
        guesses = self.num_draft_tokens
        layers = self.config.num_hidden_layers + 2 + guesses
        turns = KINDS_OF_CHOICE * (guesses + 1)
        steps = MAX_ROWS * (self.config.num_hidden_layers + 1)
        return (KINDS_OF_CHOICE + turns * layers + steps) * NODES_OF_A_LAYER * GRAPH_NODE_BYTES

    def _transient(self, matrices: list[Held]) -> int:
        """What lies beside the largest matrix while it is packed: its stored form."""
        if self.stored.in_one_piece:
            return 0
        return max((taken(one.num_bytes) for one in matrices if one.packed), default=0)

    def _scratch(self, max_len: int, matrices: list[Held]) -> int:
        config = self.config
        heads, vocab = config.num_attention_heads, config.vocab_size
        unpacked = max(
            (one.elements for one in matrices if one.packed and one.name != fusion.HEAD), default=0
        )
        sizes = [
            self.card.product_bytes,
            bk.attention_decode_workspace_bytes(MAX_ROWS, heads, cache_positions(max_len)),
            unpacked * BYTES,
            *(1 + self._drafts_by_mtp) * [MAX_ROWS * vocab * FLOAT32_BYTES],  # logits
            # Of DeviceSampler: adjusted logits, the weights that draws and guesses are made by.
            MAX_ROWS * vocab * FLOAT32_BYTES,
            *2 * [MAX_ROWS * vocab * FLOAT64_BYTES],
            vocab * (1 + FLOAT32_BYTES),
            bk.sample_workspace_bytes(MAX_ROWS, vocab),
            *(
                bk.logprobs_workspace_bytes(rows, vocab, TOP_LOGPROBS)
                for rows in range(1, MAX_ROWS + 1)
            ),
            (1 + self._drafts_by_mtp) * MAX_ROWS * self._step_row_bytes(),
            min(PREFILL_CHUNK, max_len) * self._chunk_row_bytes(),
        ]
        return sum(map(taken, sizes)) + LIBRARY_BYTES + SLACK_BYTES

    def _step_row_bytes(self) -> int:
        """One row of ``Buffers``, its logits apart."""
        config = self.config
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        sixteen_bit = (
            2 * config.hidden_size + 3 * queries + 2 * keys + config.value_dim
            + config.intermediate_size
        )  # fmt: skip
        return config.hidden_size * FLOAT32_BYTES + sixteen_bit * BYTES + 4

    def _chunk_row_bytes(self) -> int:
        """What is alive of one row of a prompt in the widest part of a layer."""
        config, width = self.config, self.config.hidden_size
        queries = config.num_attention_heads * config.head_dim
        qkv = 2 * queries + 2 * config.num_key_value_heads * config.head_dim
        workspace = many.attention_prefill_workspace_bytes(1024, config.num_attention_heads) / 1024
        attention = BYTES * (qkv + queries) + max(workspace, BYTES * width)
        workspace = (
            many.gdn_prefill_workspace_bytes(
                1024,
                key_heads=config.linear_num_key_heads,
                value_heads=config.linear_num_value_heads,
            )
            / 1024
        )
        delta = BYTES * (
            config.conv_channels + 2 * config.value_dim + 2 * config.linear_num_value_heads
        ) + max(workspace, BYTES * width)
        mlp = 3 * BYTES * config.intermediate_size  # gate, up, and their product
        # The residual; two normed inputs; hidden rows of this chunk and of the one before.
        return math.ceil(width * (FLOAT32_BYTES + 4 * BYTES) + max(attention, delta, mlp))


def plan_for(
    folder: Path | None, config: ModelConfig, kv_dtype: str, *, num_draft_tokens: int = 4
) -> CudaMemory:
    """The plans of a folder, of a config alone, or (``folder`` None) of random weights.

    Raises:
        CheckpointError: the folder's headers do not fit the config.
    """
    packed: Mapping[str, PackedMatrix] | None = None
    prefix, with_mtp = names.TEXT_PREFIX, bool(config.mtp_num_hidden_layers)
    if folder is not None and any(folder.glob("*.safetensors*")):
        stored = read_headers(folder, config)
        packed, prefix, with_mtp = stored.packed, stored.prefix, stored.with_mtp
    of_model = Stored.of(config, packed, prefix, with_mtp=with_mtp, random=folder is None)
    card = Card.nominal()
    if cuda_problem() is None:
        card = Card.of(torch.device("cuda", torch.cuda.current_device()))
    dtype = activations_dtype(None, kv_dtype, packed=folder is None or bool(packed))
    return CudaMemory(config, of_model, card, kv_dtype, dtype, num_draft_tokens=num_draft_tokens)


def free_bytes() -> int | None:
    """What an engine could take of the current GPU, the context included; None without one."""
    if cuda_problem() is not None:
        return None
    device = torch.device("cuda", torch.cuda.current_device())
    return allocatable_bytes(device) + outside_bytes(device)


def taken(num_bytes: float) -> int:
    """Bytes that PyTorch's allocator takes for a tensor of so many."""
    step = _LARGE_STEP if num_bytes >= _LARGE else _STEP
    return math.ceil(num_bytes / step) * step


def _kv_element_bytes(config: ModelConfig, kv_dtype: torch.dtype) -> float:
    """Bytes of one key or value, its share of a scale included."""
    scale = FLOAT32_BYTES / config.head_dim if kv_dtype.itemsize == 1 else 0.0
    return kv_dtype.itemsize + scale
