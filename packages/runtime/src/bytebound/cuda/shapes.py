"""What the kernels can run: a config is held against it before a weight is read."""

from collections.abc import Iterator

from bytebound.config import ModelConfig
from bytebound.errors import UnsupportedShapeError

HEAD_DIM = 256  # DH of the attention kernels
DELTA_HEAD_DIM = 128  # K and V of the Gated DeltaNet kernels
CONV_TAPS = 4
MAX_HEAD_RATIO = 16  # value heads of one key head
ROTARY_STEP = 16  # the dims that turn are a multiple of it
COLUMNS = 64  # K of a product is a multiple of it
MAX_VOCAB = 1 << 22  # of what chooses a token
MAX_CONTEXT = (1 << 20) - 8  # max_len: a cache has eight positions more, for guesses


def check_shape(config: ModelConfig) -> None:
    """Refuse a config with a dimension that has no kernel.

    Raises:
        UnsupportedShapeError: names the field, its value, and the backend that takes it.
    """
    problem = shape_problem(config)
    if problem is not None:
        raise UnsupportedShapeError(f"{problem}. Use backend='reference', which runs any shape")


def shape_problem(config: ModelConfig) -> str | None:
    """Say which dimension has no kernel; None where all have one."""
    return next(_problems(config), None)


def _problems(config: ModelConfig) -> Iterator[str]:
    if config.num_attention_layers or config.mtp_num_hidden_layers:
        yield from _exactly("head_dim", config.head_dim, HEAD_DIM)
        if config.rotary_dim % ROTARY_STEP:
            yield _problem(
                "partial_rotary_factor",
                f"{config.partial_rotary_factor:g}, which turns {config.rotary_dim} dims",
                f"a multiple of {ROTARY_STEP}",
            )
    if config.num_linear_layers:
        yield from _exactly("linear_key_head_dim", config.linear_key_head_dim, DELTA_HEAD_DIM)
        yield from _exactly("linear_value_head_dim", config.linear_value_head_dim, DELTA_HEAD_DIM)
        yield from _exactly("linear_conv_kernel_dim", config.linear_conv_kernel_dim, CONV_TAPS)
        if config.linear_num_value_heads > MAX_HEAD_RATIO * config.linear_num_key_heads:
            yield _problem(
                "linear_num_value_heads",
                str(config.linear_num_value_heads),
                f"at most {MAX_HEAD_RATIO} times linear_num_key_heads",
            )
    if config.vocab_size > MAX_VOCAB:
        yield _problem("vocab_size", str(config.vocab_size), f"at most {MAX_VOCAB}")
    for field in ("hidden_size", "intermediate_size"):
        value = getattr(config, field)
        if value % COLUMNS:
            yield _problem(field, str(value), f"a multiple of {COLUMNS}")


def _exactly(field: str, value: int, wanted: int) -> Iterator[str]:
    if value != wanted:
        yield _problem(field, str(value), str(wanted))


def _problem(field: str, got: str, expected: str) -> str:
    return f"{field} is {got}; the kernels of backend='cuda' take {expected}"
