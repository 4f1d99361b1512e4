"""What a pass of the model can fail with, made into the error that a caller can act on."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from bytebound.diagnosis import explain_non_finite
from bytebound.errors import NonFiniteLogitsError, OutOfMemoryError
from bytebound.executor import Executor

_GIB = 1 << 30
# PyTorch has a class of its own for its allocator on the GPU only; the rest is said in words.
_SIGNS = ("out of memory", "can't allocate memory", "cudaErrorMemoryAllocation")


@contextmanager
def explained(executor: Executor, ids: Callable[[], Sequence[int]]) -> Iterator[None]:
    """Run a part of a request on ``executor``; ``ids()`` is the sequence at a failure.

    Raises:
        NonFiniteLogitsError: with the op that made the values; the executor is reset then.
        OutOfMemoryError: for any way in which memory can run out. What the request held is given
            back to the device first.
    """
    try:
        yield
    except NonFiniteLogitsError as error:
        raise NonFiniteLogitsError(f"{error}. {explain_non_finite(executor, ids())}") from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        # The frames of the failed pass would keep its activations for as long as the error lives.
        traceback.clear_frames(error.__traceback__)
        free = _free_again(executor)
        raise OutOfMemoryError(
            f"out of memory with {len(ids())} tokens in the sequence{free}. The request is lost, "
            "the next one works: send a shorter prompt, free memory that other programs hold, or "
            "load with a smaller max_len"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the GPU or on the host."""
    known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return known or any(sign in str(error) for sign in _SIGNS)


def _free_again(executor: Executor) -> str:
    """Give what the allocator caches back to the device; says how much is free then."""
    device = getattr(executor, "device", None)
    if not isinstance(device, torch.device) or device.type != "cuda":
        return ""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return f": {free / _GIB:.2f} of the GPU's {total / _GIB:.2f} GiB are free now"
