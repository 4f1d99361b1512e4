"""The checked front of the history kernel (csrc/history_append.h)."""

from typing import Any

from bytebound_kernels import _native
from bytebound_kernels._check import common_device, no_overlap, packed_view
from bytebound_kernels._device import require_cuda
from bytebound_kernels._stream import stream_handle
from bytebound_kernels.errors import InvalidArgumentError, UnsupportedShapeError

__all__ = ["history_append"]

_OP = "history_append"
_MAX_IDS = 2**20


def history_append(
    ids: Any,
    num_ids: Any = None,
    *,
    seen: Any = None,
    counts: Any = None,
    stream: Any = None,
) -> None:
    """Add accepted ids to the history that penalties look at, on the GPU.

    Formula:
        seen[id] = 1 and counts[id] += 1 for each of the first num_ids ids

    An id outside 0 .. N-1 is skipped, such as the -1 behind the emitted ids of a cycle.

    Args:
        ids: int32 [capacity], on a CUDA device; up to 1,048,576.
        num_ids: int32 [1], how many of them count; None: all.
        seen: uint8 [N], or None.
        counts: int32 [N], or None. One of the two is needed.
        stream: a stream handle as an integer, or a PyTorch or CuPy stream. None: the stream that is
            current in the framework of ids.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        UnsupportedTensorError: an argument is no tensor.
        UnsupportedDtypeError: a dtype has no kernel.
        UnsupportedShapeError: a shape does not fit.
        UnsupportedLayoutError: a tensor is not contiguous, or a result overlaps another tensor.
        UnsupportedDeviceError: host memory, or more than one device.
        InvalidArgumentError: neither seen nor counts; stream.
        CudaError: the launch failed.

    Numerics: integers only.

    Source: csrc/history_append.cu.
    """
    if seen is None and counts is None:
        raise InvalidArgumentError(f"{_OP}: got neither seen nor counts; expected one or both")
    id_view = packed_view(_OP, "ids", ids, "int32", (None,))
    if id_view.shape[0] > _MAX_IDS:
        raise UnsupportedShapeError(
            f"{_OP}: ids has shape {id_view.shape}; expected up to {_MAX_IDS}"
        )
    read = [id_view]
    if num_ids is not None:
        read.append(packed_view(_OP, "num_ids", num_ids, "int32", (1,)))
    written = []
    if seen is not None:
        written.append(packed_view(_OP, "seen", seen, "uint8", (None,)))
    if counts is not None:
        n = written[0].shape[0] if written else None
        written.append(packed_view(_OP, "counts", counts, "int32", (n,)))
    if written[0].shape[0] < 1:
        raise UnsupportedShapeError(f"{_OP}: {written[0].name} is empty; expected [N]")
    for i, result in enumerate(written):
        for tensor in (*read, *written[:i]):
            no_overlap(_OP, result, tensor)

    require_cuda(_OP)
    device = common_device(_OP, *read, *written)
    require_cuda(_OP, device)
    _native.history_append(
        id_view.pointer,
        0 if num_ids is None else read[1].pointer,
        0 if seen is None else written[0].pointer,
        0 if counts is None else written[-1].pointer,
        capacity=id_view.shape[0],
        n=written[0].shape[0],
        device=device,
        stream=stream_handle(_OP, stream, ids, device),
    )
