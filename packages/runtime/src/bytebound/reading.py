"""Reading the weights of a folder, file by file and in the order in which they lie there.

A plain tensor is converted to the dtype asked for and never otherwise changed; NaN or infinity is
refused. A matrix in 4 bits is handed on as it is stored once all its parts are read, so that
nothing larger than one matrix ever waits.
"""

from collections.abc import Callable, Iterator, Mapping

import torch

from bytebound.errors import CheckpointError
from bytebound.quantized import PackedMatrix, StoredMatrix
from bytebound.shards import StoredTensor, read_tensor

Progress = Callable[[int, int], None]


def read_weights(
    stored: Mapping[str, StoredTensor],
    packed: Mapping[str, PackedMatrix],
    *,
    dtype_of: Callable[[StoredTensor], torch.dtype],
    device: torch.device,
    on_progress: Progress | None = None,
) -> Iterator[tuple[str, torch.Tensor | StoredMatrix]]:
    """Yield every weight on ``device`` by its name, packed ones as StoredMatrix.

    ``stored`` are the tensors to read, parts of ``packed`` matrices one by one. ``dtype_of`` says
    what a plain tensor becomes. ``on_progress(done, total)`` is told about bytes as they are read.

    Raises:
        CheckpointError: a file cannot be read, or holds values that cannot be meant.
    """
    total = sum(one.num_bytes for one in stored.values())
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress(done, total)

    owners = {
        part.name: (matrix, tail)
        for matrix in packed.values()
        for tail, part in matrix.parts.items()
    }
    waiting: dict[str, dict[str, torch.Tensor]] = {}  # parts of matrices not complete yet
    for path in sorted({one.file for one in stored.values()}):
        inside = sorted(
            (one for one in stored.values() if one.file == path), key=lambda one: one.offset
        )
        try:
            file = path.open("rb", buffering=0)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
        with file:
            for one in inside:
                tensor = read_tensor(one, file, advance)
                if one.name not in owners:
                    yield one.name, _converted(one, tensor, dtype_of(one), device)
                    continue
                matrix, tail = owners[one.name]
                parts = waiting.setdefault(matrix.name, {})
                parts[tail] = tensor.to(device)
                if len(parts) == len(matrix.parts):
                    yield matrix.name, matrix.matrix(waiting.pop(matrix.name))


def dequantized(matrix: StoredMatrix, dtype: torch.dtype) -> torch.Tensor:
    """The weights [N, K] of a packed matrix in ``dtype``; refused where they are too large."""
    result = matrix.dequantize(dtype)
    if not _all_finite(result):  # its scales are finite, so it is the product that is too large
        raise CheckpointError(
            f"{matrix.name} holds values beyond the range of {dtype}; load it as bfloat16 or "
            "float32, or quantize it again"
        )
    return result


def _converted(
    stored: StoredTensor, tensor: torch.Tensor, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    result = tensor.to(device=device, dtype=dtype)
    if not _all_finite(result):
        if _all_finite(tensor):
            raise CheckpointError(
                f"{stored.file}: {stored.name} holds values beyond the range of {dtype}; "
                "load it as bfloat16 or float32"
            )
        raise CheckpointError(
            f"{stored.file}: {stored.name} holds NaN or infinite values; the file is damaged"
        )
    return result


def _all_finite(tensor: torch.Tensor) -> bool:
    # One pass and no temporary as large as the tensor; NaN wins over every other value.
    low, high = torch.aminmax(tensor)
    return bool(torch.isfinite(low) & torch.isfinite(high))
