"""Bytes as arithmetic on the config: what one token must read, and what a sequence must hold.

Nothing here touches a device or a tensor. GB is 1e9 bytes and GiB is 2**30. Both tables are the
ones that ``bytebound info`` prints: the byte budget gives the speed limit of a card, the memory
plan says before any weight is loaded whether a setting fits and, if not, which context would.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

from bytebound import tensor_names as names
from bytebound.config import LayerType, ModelConfig
from bytebound.errors import InvalidSettingError

FLOAT32_BYTES = 4
GB = 10**9
GIB = 2**30


@dataclass(frozen=True, slots=True)
class ByteBudget:
    """Bytes that one plain decode step moves at a given number of cached positions."""

    decoder: float  # matrices of all layers
    head: float
    state: float  # recurrent state of all Gated DeltaNet layers, read and written
    kv: float
    conv_window: float  # read and written
    small: float  # norms, convolution and decay parameters, the embedding row

    @property
    def total(self) -> float:
        """Bytes a token."""
        return math.fsum(asdict(self).values())

    def tokens_per_second_limit(self, read_gb_s: float) -> float:
        """Upper bound of plain decoding on a card with this measured read bandwidth."""
        if not read_gb_s > 0:
            raise InvalidSettingError(f"read_gb_s is {read_gb_s}, expected a bandwidth above 0")
        return read_gb_s * GB / self.total

    def percent_of_limit(self, tokens_per_second: float, read_gb_s: float) -> float:
        """Measured speed as a share of the limit, in percent."""
        return 100 * tokens_per_second / self.tokens_per_second_limit(read_gb_s)

    def as_dict(self) -> dict[str, float]:
        """Fields and total in bytes, for JSON."""
        return {**asdict(self), "total": self.total}


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """What decides how much is held, the context apart; bits may be fractional (shared scales)."""

    bits_per_weight: float = 16.0  # matrices of the decoder layers
    head_bits: float | None = None  # None: as the decoder
    embedding_bits: float = 16.0
    mtp_bits: float = 16.0
    small_bits: float = 16.0  # norms and convolution
    kv_bytes: float = 2.0  # of one key or value element, scales included
    activation_bytes: float = 2.0
    mtp: bool = False
    chunk_rows: int = 512  # of one prefill chunk
    verify_rows: int = 8
    window_bytes: float = 4.0  # of one element of a conv window
    verify_keeps_states: bool = False  # a whole state per verified row, as the reference does it
    workspace_bytes: int = 0  # scratch of kernels

    @property
    def bits_of_head(self) -> float:
        """Bits of one weight of the output head."""
        return self.bits_per_weight if self.head_bits is None else self.head_bits


DEFAULTS = MemorySettings()


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes held at most while one sequence of up to ``max_len`` positions runs, and for whom."""

    max_len: int
    weights: int  # decoder layers, final norm and head
    embedding: int  # 0 where a tied head already holds it
    mtp_weights: int
    kv: int
    mtp_kv: int
    gdn_state: int
    conv_windows: int
    verify_rows: int  # what the verify pass keeps of its rows until they are accepted or not
    scratch: int  # activations of one prefill chunk, logits, and workspaces of kernels
    draft_head: int = 0  # rows of the head for a draft vocabulary
    stream: int = 0  # what the rows of a pass hand over in a weight stream, and its workspace
    snapshots: int = 0  # budget for kept states: prefix reuse
    loading: int = 0  # what reading the weights takes beyond what a request takes later
    graphs: int = 0  # recorded passes
    cuda_context: int = 0  # the CUDA context and the code of kernels: outside PyTorch's allocator
    backend: str = "reference"
    kv_dtype: str | None = None
    conversations: int = 0  # budget for parked ones, in the host's memory: no part of the total
    random_weights: bool = False  # then whatever is generated is noise

    @property
    def total(self) -> int:
        """Sum of all rows in bytes."""
        return sum(size for _, size in self.rows())

    def rows(self) -> list[tuple[str, int]]:
        """Name and bytes of each part, in the order of a table."""
        return [(name, size) for name, size in asdict(self).items() if name not in _LABELS]

    def as_dict(self) -> dict[str, int | str | None]:
        """Labels, all rows and the total in bytes, for JSON."""
        return {**asdict(self), "total": self.total}


_LABELS = ("max_len", "backend", "kv_dtype", "conversations", "random_weights")
PlanOf = Callable[[int], MemoryPlan]


def byte_budget(
    config: ModelConfig,
    *,
    bits_per_weight: float = 4.125,
    context: int = 1024,
    kv_bytes: float = 2.0,
    small_bytes: float = 2.0,
) -> ByteBudget:
    """Bytes of one plain decode step with ``context`` cached positions.

    Every matrix of a layer and the head are counted at ``bits_per_weight``; what is no matrix stays
    at ``small_bytes``. The head counts at this width when it is tied as well: it is read whole.
    """
    matrices, small = _decoder_sizes(config)
    head = config.vocab_size * config.hidden_size
    windows = config.num_linear_layers * _window_size(config)
    return ByteBudget(
        decoder=matrices * bits_per_weight / 8,
        head=head * bits_per_weight / 8,
        state=2.0 * FLOAT32_BYTES * config.num_linear_layers * _state_size(config),
        kv=context * config.num_attention_layers * _kv_size(config) * kv_bytes,
        conv_window=2.0 * windows * small_bytes,
        small=(small + config.hidden_size) * small_bytes,
    )


def memory_plan(
    config: ModelConfig,
    *,
    max_len: int,
    settings: MemorySettings = DEFAULTS,
) -> MemoryPlan:
    """Plan a sequence of ``max_len`` positions.

    Raises:
        InvalidSettingError: ``max_len`` is beyond what the model was trained for, or below 1.
    """
    check_context(config, max_len)
    matrices, small = _decoder_sizes(config)
    table = config.vocab_size * config.hidden_size
    shared_table = config.tie_word_embeddings and settings.bits_of_head == settings.embedding_bits
    head_bytes = _bytes(table, settings.bits_of_head)
    weights = _bytes(matrices, settings.bits_per_weight) + _bytes(small, settings.small_bits)
    kv_per_position = _kv_size(config) * settings.kv_bytes
    mtp_matrices = sum(math.prod(shape) for shape in names.mtp_shapes(config).values())
    linear = config.num_linear_layers
    kept_row = _kept_row_size(config)
    if settings.verify_keeps_states:
        kept_row = _state_size(config) + _window_size(config)
    return MemoryPlan(
        max_len=max_len,
        weights=weights + head_bytes,
        embedding=0 if shared_table else _bytes(table, settings.embedding_bits),
        mtp_weights=_bytes(mtp_matrices, settings.mtp_bits) if settings.mtp else 0,
        kv=math.ceil(max_len * config.num_attention_layers * kv_per_position),
        mtp_kv=math.ceil(max_len * kv_per_position) if settings.mtp else 0,
        gdn_state=linear * _state_size(config) * FLOAT32_BYTES,
        conv_windows=math.ceil(linear * _window_size(config) * settings.window_bytes),
        verify_rows=settings.verify_rows * linear * kept_row * FLOAT32_BYTES,
        scratch=math.ceil(
            min(settings.chunk_rows, max_len) * _row_size(config) * settings.activation_bytes
        )
        + settings.verify_rows * config.vocab_size * FLOAT32_BYTES
        + settings.workspace_bytes,
    )


def largest_context(
    plan_of: PlanOf, limit_bytes: int, longest: int, steps: Sequence[int] = ()
) -> int:
    """Find the longest ``max_len`` up to ``longest`` whose plan fits; 0 where none does.

    Plans grow with the context, but may be smaller again behind each of the ``steps``, ascending.
    """

    def fits(length: int) -> bool:
        plan = plan_of(length)
        return plan.total - plan.snapshots <= limit_bytes

    edges = [0, *(step for step in steps if step < longest), longest]
    for low, high in reversed(list(pairwise(edges))):
        best, most = low, high
        while best < most:
            middle = (best + most + 1) // 2
            best, most = (middle, most) if fits(middle) else (best, middle - 1)
        if best > low:
            return best
    return 0


def check_fits(
    plan_of: PlanOf, limit_bytes: int, *, max_len: int, longest: int, steps: Sequence[int] = ()
) -> MemoryPlan:
    """Return the plan for ``max_len``, or refuse it and name the context that would fit (E43).

    ``plan_of(max_len)`` plans a context; ``longest`` and ``steps`` as in ``largest_context``.
    Snapshots only save time: their budget shrinks, down to nothing, before anything is refused.

    Raises:
        InvalidSettingError: it does not fit, or ``max_len`` is impossible.
    """
    plan = plan_of(max_len)
    excess = plan.total - limit_bytes
    if excess <= plan.snapshots:
        return replace(plan, snapshots=plan.snapshots - max(0, excess))
    best = largest_context(plan_of, limit_bytes, longest, steps)
    biggest = max(plan.rows(), key=lambda row: row[1])
    way_out = (
        f"the largest max_len that fits is {best}"
        if best
        else f"no context fits; {biggest[0]} alone takes {biggest[1] / GIB:.2f} GiB"
    )
    needed = plan.total - plan.snapshots
    raise InvalidSettingError(
        f"max_len {max_len} needs {needed / GIB:.2f} GiB, {limit_bytes / GIB:.2f} GiB are "
        f"available; {way_out}"
    )


def check_context(config: ModelConfig, max_len: int) -> None:
    """Refuse a context that the model was not trained for.

    Raises:
        InvalidSettingError: ``max_len`` is beyond it, or below 1.
    """
    native = config.max_position_embeddings
    if not 1 <= max_len <= native:
        raise InvalidSettingError(
            f"max_len is {max_len}, expected 1 to {native} (max_position_embeddings; no context "
            "scaling is applied)"
        )


def state_bytes(config: ModelConfig, window_bytes: float) -> int:
    """Bytes of recurrent states (float32) and conv windows of all layers: what a snapshot keeps."""
    elements = FLOAT32_BYTES * _state_size(config) + window_bytes * _window_size(config)
    return math.ceil(config.num_linear_layers * elements)


def _decoder_sizes(config: ModelConfig) -> tuple[int, int]:
    """Count elements: matrices of all layers, and everything else of the decoder."""
    matrices, small = 0, config.hidden_size  # the final norm
    kinds: tuple[LayerType, ...] = ("full_attention", "linear_attention")
    for kind in kinds:
        shapes = names.layer_shapes(config, kind).values()
        layers = config.layer_types.count(kind)
        matrices += layers * sum(math.prod(shape) for shape in shapes if len(shape) == 2)
        small += layers * sum(math.prod(shape) for shape in shapes if len(shape) != 2)
    return matrices, small


def _kv_size(config: ModelConfig) -> int:
    """Elements of keys and values of one position in one layer."""
    return 2 * config.num_key_value_heads * config.head_dim


def _state_size(config: ModelConfig) -> int:
    """Elements of one layer's recurrent state [HV, K, V]."""
    return config.linear_num_value_heads * config.linear_key_head_dim * config.linear_value_head_dim


def _window_size(config: ModelConfig) -> int:
    """Elements of one layer's conv window [C, kernel - 1]."""
    return config.conv_channels * (config.linear_conv_kernel_dim - 1)


def _kept_row_size(config: ModelConfig) -> int:
    """Elements that one layer keeps of a row under verification: q, k, v, g, beta and its input."""
    return 2 * config.conv_channels + 2 * config.linear_num_value_heads


def _row_size(config: ModelConfig) -> int:
    """Elements of activations alive at once for one row, in the widest part of a layer."""
    width = config.hidden_size
    queries = config.num_attention_heads * config.head_dim
    attention = 3 * queries + _kv_size(config)  # query and gate, output, keys and values
    delta = 2 * config.conv_channels + 2 * config.value_dim + 2 * config.linear_num_value_heads
    mlp = 2 * config.intermediate_size  # gate and up; their product takes the gate's place
    return 3 * width + max(attention, delta, mlp)  # residual, normed input, output


def _bytes(elements: int, bits: float) -> int:
    return math.ceil(elements * bits / 8)
