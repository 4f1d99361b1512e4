"""What the weight stream can run: a model is held against it before a weight is read."""

from collections.abc import Iterable, Iterator

import bytebound_kernels as bk
import torch

from bytebound.config import ModelConfig
from bytebound.cuda.held import Held
from bytebound.cuda.state import MAX_ROWS
from bytebound.errors import InvalidSettingError

CAPABILITY = (9, 0)  # of the card, at least
COLUMNS = 128  # hidden_size is a multiple of it
MAX_HIDDEN_SIZE = 8192


def check_stream(
    config: ModelConfig, matrices: Iterable[Held], dtype: torch.dtype, device: torch.device
) -> None:
    """Refuse a model, or a card, that has no weight stream.

    Raises:
        InvalidSettingError: says what stands in the way, and which engine takes it.
    """
    problem = stream_problem(config, matrices, dtype, device)
    if problem is not None:
        raise InvalidSettingError(f"engine='stream': {problem}; use engine='graph'")


def stream_problem(
    config: ModelConfig, matrices: Iterable[Held], dtype: torch.dtype, device: torch.device | None
) -> str | None:
    """Say why ``device`` cannot run the model as a weight stream; None where it can.

    ``matrices`` are those of the decoder, the output head among them, and ``dtype`` is that of the
    activations. Without a ``device`` the model alone is looked at.
    """
    known = list(matrices)
    problem = next(_of_model(config, known, dtype), None)
    if problem is None and device is not None:
        asymmetric = any(one.asymmetric for one in known)
        attention = config.num_attention_layers > 0
        problem = next(
            _of_card(config.hidden_size, device, asymmetric=asymmetric, attention=attention), None
        )
    return problem


def _of_model(config: ModelConfig, matrices: list[Held], dtype: torch.dtype) -> Iterator[str]:
    if dtype != torch.float16:
        yield f"activations are {str(dtype).removeprefix('torch.')}; a stream takes float16"
    if config.tie_word_embeddings:
        yield "the output head is the embedding in 16 bits; a stream takes a head in 4 bits"
    in_16_bits = [one for one in matrices if not one.packed and not one.always_dense]
    if in_16_bits:
        yield (
            f"{in_16_bits[0].name} and {len(in_16_bits) - 1} more matrices are in 16 bits; a "
            "stream takes a model in 4 bits"
        )
    packed = [one for one in matrices if one.packed]
    if len({one.asymmetric for one in packed}) > 1:
        yield "some matrices have zero points and some have none; a stream takes one or the other"
    size = config.hidden_size
    if size % COLUMNS or size > MAX_HIDDEN_SIZE:
        yield (
            f"hidden_size is {size}; a stream takes a multiple of {COLUMNS}, at most "
            f"{MAX_HIDDEN_SIZE}"
        )


def _of_card(
    hidden_size: int, device: torch.device, *, asymmetric: bool, attention: bool
) -> Iterator[str]:
    found = torch.cuda.get_device_capability(device)
    if found < CAPABILITY:
        major, minor = CAPABILITY
        yield (
            f"this card has compute capability {found[0]}.{found[1]}; a stream takes "
            f"{major}.{minor} or more"
        )
    index = device.index or 0
    slots = bk.weight_stream_slots(
        MAX_ROWS, hidden_size, asymmetric=asymmetric, attention=attention, device=index
    )
    if slots == 0:
        yield (
            f"the shared memory of this card has no room for {MAX_ROWS} rows of hidden_size "
            f"{hidden_size}"
        )
