"""The checked front of the weight stream (csrc/weight_stream.h)."""

from collections.abc import Iterable, Sequence
from typing import Any

from bytebound_kernels import _native
from bytebound_kernels._check import (
    check_integer,
    common_device,
    no_overlap,
    packed_view,
    workspace_view,
)
from bytebound_kernels._device import device_info, require_cuda
from bytebound_kernels._stream import stream_handle
from bytebound_kernels.errors import (
    InvalidArgumentError,
    UnsupportedDeviceError,
    UnsupportedShapeError,
    UnsupportedTensorError,
)
from bytebound_kernels.ops.weight_stream.checks import OP, check_op
from bytebound_kernels.ops.weight_stream.order import check_order
from bytebound_kernels.ops.weight_stream.records import (
    MAX_ROWS,
    STREAM_MAX_OPS,
    StreamNorm,
    StreamOp,
    StreamProduct,
)

__all__ = [
    "StreamProgram",
    "weight_stream",
    "weight_stream_slots",
    "weight_stream_workspace_bytes",
]

_CAPABILITY = (9, 0)  # bulk copies into shared memory
_STAMPS = 4  # of an op and a block in clock


class StreamProgram:
    """Ops of a weight stream, checked once and kept as the kernel takes them.

    It holds the tensors of its ops, whose addresses must not change.

    Attributes:
        ops: the records.
        device: ordinal of the device that holds them.
    """

    __slots__ = ("_asymmetric", "_max_d", "_native_ops", "_tensors", "device", "ops")

    def __init__(self, ops: Sequence[StreamOp]) -> None:
        """Check 1 to STREAM_MAX_OPS ops, each by itself and all together.

        Raises:
            As ``weight_stream``.
        """
        if not isinstance(ops, Iterable):
            raise UnsupportedTensorError(
                f"{OP}: ops is a {type(ops).__qualname__}; expected a sequence of ops or a "
                f"StreamProgram"
            )
        self.ops = tuple(ops)
        if not 1 <= len(self.ops) <= STREAM_MAX_OPS:
            raise InvalidArgumentError(
                f"{OP}: got {len(self.ops)} ops; expected 1 to {STREAM_MAX_OPS} of one launch"
            )
        checked = [check_op(index, op) for index, op in enumerate(self.ops)]
        check_order(checked)
        require_cuda(OP)
        self._tensors = tuple(tensor for op in checked for tensor in op.tensors)
        first = self._tensors[0]
        self.device = common_device(OP, first)
        for tensor in self._tensors:
            common_device(OP, first, tensor)
        _require_capability(self.device)
        self._max_d = max(
            (op.arguments["d"] for op in checked if isinstance(op.record, StreamNorm)), default=0
        )
        self._asymmetric = any(
            isinstance(op, StreamProduct) and op.weight.asymmetric for op in self.ops
        )
        self._native_ops = [getattr(_native, op.maker)(**op.arguments) for op in checked]

    def run(self, *, rows: int, workspace: Any, clock: Any = None, stream: Any = None) -> None:
        """Launch the ops; arguments and effect as of ``weight_stream``."""
        rows = _check_rows(rows)
        scratch = workspace_view(OP, workspace, weight_stream_workspace_bytes(self.device))
        extra = [scratch]
        if clock is not None:
            sms = device_info(OP, self.device).num_sms
            extra.append(packed_view(OP, "clock", clock, "int64", (len(self.ops), _STAMPS, sms)))
            no_overlap(OP, scratch, extra[1])
        for tensor in extra:
            common_device(OP, self._tensors[0], tensor)
            for other in self._tensors:
                no_overlap(OP, tensor, other)
        if not _native.weight_stream_slots(rows, self._max_d, self._asymmetric, self.device):
            raise UnsupportedShapeError(
                f"{OP}: {rows} rows of D = {self._max_d} and the weights on their way do not fit "
                f"the shared memory of a block; expected fewer rows or a smaller D"
            )
        _native.weight_stream(
            self._native_ops,
            rows=rows,
            workspace=scratch.pointer,
            clock=0 if clock is None else extra[1].pointer,
            device=self.device,
            stream=stream_handle(OP, stream, workspace, self.device),
        )


def weight_stream_workspace_bytes(device: int = 0) -> int:
    """Return the bytes of workspace that ``weight_stream`` needs on a device, whatever the ops.

    Fill it with 0xFF bytes once, before its first use; every call leaves it so. Launches that may
    run at the same time need one each.

    Raises:
        CudaUnavailableError: no device is visible.
        InvalidArgumentError: there is no such device.
    """
    num_sms = device_info(OP, device).num_sms
    return int(_native.weight_stream_workspace_bytes(num_sms))


def weight_stream_slots(rows: int, d: int, *, asymmetric: bool, device: int = 0) -> int:
    """Return how many items of weights, 64 rows by 128 columns, each warp has on their way.

    Args:
        rows: R, 1 to 8.
        d: the largest D of a norm, 0 without.
        asymmetric: whether the weights have zero points.
        device: ordinal of the device.

    Returns:
        0 where ``weight_stream`` cannot run so: an older GPU, or rows too long for shared memory.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        InvalidArgumentError: rows, d or device.
    """
    rows, d = _check_rows(rows), check_integer(OP, "d", d, 0)
    require_cuda(OP)
    device = device_info(OP, device).index
    require_cuda(OP, device)
    return int(_native.weight_stream_slots(rows, d, bool(asymmetric), device))


def weight_stream(
    ops: "Sequence[StreamOp] | StreamProgram",
    *,
    rows: int,
    workspace: Any,
    clock: Any = None,
    stream: Any = None,
) -> None:
    """Run up to 36 ops of several layers in order, as one kernel that never stops reading weights.

    Formula:
        for op in ops: what StreamNorm, StreamProduct, StreamGates, StreamReplay and
        StreamGatedDelta say, on the first ``rows`` rows of their tensors

    One block for each multiprocessor walks all the ops. Its warps ask for their packed weights far
    ahead, whatever they wait for, and there is no barrier between ops.

    What is handed over: the out of a StreamProduct, StreamGates or StreamGatedDelta that a later op
    of the launch reads, as x, rows or z or by a norm before it is a residual. In the first ``rows``
    rows of such a tensor every bit must be set before each launch (torch: ``view(torch.uint8)
    .fill_(255)``): an element of which a bit is missing has arrived. No result has these bits: its
    NaN is 0x7fff or 0x7fffffff. Elements that come from before the launch need no such mark, but
    what an op reads as x, rows, z or accepted pending rows must not be of these bits, and what is
    handed over must not have other ones: the kernel would wait for ever, or not wait.

    Each result has memory of its own in a launch. Nothing that an op reads is written by a later
    one. A norm's out is for readers behind the launch.

    Args:
        ops: the records, or a StreamProgram of them, which saves the time to check them again.
        rows: R, 1 to 8.
        workspace: uint8, weight_stream_workspace_bytes(); filled with 0xFF once, before its first
            use.
        clock: None, or int64 [number of ops, 4, multiprocessors], contiguous: nanoseconds at which
            the first warp of a block began an op, had its input, was done with its items, had
            handed over. The two in the middle are written by products alone, the former of them
            only where the warp has items: a small product leaves some blocks without.
        stream: a stream handle as an integer, or a PyTorch or CuPy stream. None: the stream that is
            current in the framework of workspace.

    The kernel is enqueued, not awaited. It may start while the kernel before it in the stream still
    runs, and loads its first packed weights meanwhile, which that kernel must not write. Its blocks
    wait for each other, so it needs every multiprocessor of the device: nothing else that lasts may
    run beside it.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        UnsupportedTensorError: an argument is no tensor, or no record of an op.
        UnsupportedDtypeError: a dtype has no kernel, or two do not fit.
        UnsupportedShapeError: a shape does not fit, rows of D do not fit the shared memory, or the
            workspace is too small.
        UnsupportedLayoutError: strides, alignment, or tensors that overlap.
        UnsupportedDeviceError: host memory, more than one device, or a GPU before sm_90.
        InvalidArgumentError: the number of ops, their order, symmetric and asymmetric weights
            together, residual with an interleaved weight, rows, eps, scale, stream.
        CudaError: the launch failed.

    Numerics: the bits of the single ops: rms_norm, rms_norm_project, w4_matvec with its default
    num_blocks, gdn_step. A row has the same bits alone and among others. What is not finite in a
    row stays in that row, and in the rows that follow it through a StreamGatedDelta.

    Source: csrc/weight_stream.cu, csrc/cuda/stream_*.cuh, csrc/cuda/weight_ring.cuh.
    """
    _check_rows(rows)
    program = ops if isinstance(ops, StreamProgram) else StreamProgram(ops)
    program.run(rows=rows, workspace=workspace, clock=clock, stream=stream)


def _check_rows(rows: int) -> int:
    rows = check_integer(OP, "rows", rows)
    if not 1 <= rows <= MAX_ROWS:
        raise InvalidArgumentError(f"{OP}: rows is {rows}; expected 1 to {MAX_ROWS}")
    return rows


def _require_capability(device: int) -> None:
    require_cuda(OP, device)
    info = device_info(OP, device)
    if info.capability < _CAPABILITY:
        raise UnsupportedDeviceError(
            f"{OP}: device {device} is {info}; expected sm_90 or later, which copies weights in "
            f"bulk. The single ops run on it."
        )
