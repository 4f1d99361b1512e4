"""The checked front of the four-bit matrix product for many rows (csrc/w4_matmul.h)."""

from typing import Any, TypeVar

from bytebound_kernels import _native
from bytebound_kernels._check import (
    check_kind,
    common_device,
    no_overlap,
    row_stride,
    workspace_view,
)
from bytebound_kernels._device import device_info, require_cuda
from bytebound_kernels._matvec import EPILOGUES, check_residual, check_result, check_scale
from bytebound_kernels._stream import stream_handle
from bytebound_kernels._tensor import DTYPE_CODES, TensorView, view
from bytebound_kernels.errors import (
    InvalidArgumentError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
)
from bytebound_kernels.ops.w4_matvec.packed import PackedW4

__all__ = ["w4_matmul", "w4_matmul_workspace_bytes"]

_OP = "w4_matmul"
_MAX_ROWS = 2**30
_ALIGNMENT = 16  # bytes
_BYTES_PER_SM = (1 << 16) + 16  # as w4_matmul_workspace_bytes in csrc/w4_matmul.h has it

TensorT = TypeVar("TensorT")


def w4_matmul_workspace_bytes(device: int = 0) -> int:
    """Return the bytes of workspace that w4_matmul needs, whatever the matrix and the rows.

    Fill it with 0xFF bytes once, before its first use (torch: ``workspace.fill_(255)``). It serves
    any number of calls, one stream at a time, and no other op.

    Args:
        device: ordinal of the device.

    Raises:
        CudaUnavailableError: no device is visible.
        InvalidArgumentError: there is no such device.
    """
    return device_info("w4_matmul_workspace_bytes", device).num_sms * _BYTES_PER_SM


def w4_matmul(
    x: Any,
    weight: PackedW4,
    *,
    out: TensorT,
    workspace: Any,
    residual: Any = None,
    scale: float = 1.0,
    stream: Any = None,
) -> TensorT:
    """Multiply a four-bit matrix by any number of activation rows, on the GPU.

    Formula:
        y[m, n] = sum_k x[m, k] * scales[n, k // 128] * (code[n, k] - zero[n, k // 128])
        out = scale * y;  residual + scale * y;
        or, for an interleaved weight, scale * silu(y_gate) * y_up

    Meant for the rows of a prompt: up to 8 rows w4_matvec is faster; beyond some hundred rows so
    are w4_unpack and a library's product, where there is memory for the unpacked matrix.

    Args:
        x: [M, K], float16 or bfloat16; rows at any one distance, aligned to 16 bytes.
        weight: [N, K] in packed form.
        out: [M, N], the dtype of x or float32; it may be residual itself. Rows that are not aligned
            to 16 bytes cost some time.
        workspace: uint8, w4_matmul_workspace_bytes(); filled with 0xFF once, before its first use.
            Calls that may run at the same time need one each.
        residual: [M, N] of the dtype of out, added to the product.
        scale: the product is multiplied by it in float32, before residual is added and before the
            result is rounded; finite, above 0. A power of two is exact: it keeps a wide float16
            result (SwiGLU's) in range, and the next product takes it off again.
        stream: a stream handle as an integer, or a PyTorch or CuPy stream. None: the stream that is
            current in the framework of x.

    Returns:
        out. The kernel is enqueued, not awaited; it may start while the kernel before it in the
        stream still runs, and loads its first weights meanwhile. It must not be the weights that
        that kernel writes.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        UnsupportedTensorError: an argument is no tensor.
        UnsupportedDtypeError: a dtype has no kernel.
        UnsupportedShapeError: a shape does not fit, or the workspace is too small.
        UnsupportedLayoutError: strides, alignment, or tensors that overlap.
        UnsupportedDeviceError: host memory, or more than one device.
        InvalidArgumentError: residual with an interleaved weight, scale, stream.
        CudaError: the launch failed.

    Numerics: exact products, float32 sums. The order of the sums depends on M, N, K, the place of a
    row among the M and the number of multiprocessors: the same call gives the same bits, whatever
    the other rows hold, but a row alone may differ from the same row among others in the last bits,
    and from w4_matvec. Relative RMS error against float64 below 1e-3 for float16 and float32
    results, 4e-3 for bfloat16. A NaN or an infinity in a row stays in that row.

    Source: csrc/w4_matmul.cu.
    """
    check_kind(_OP, "weight", weight, PackedW4)
    data = weight.check(_OP)
    x_view = _check_activations(x, weight.k)
    out_view = check_result(_OP, "out", out, x_view, weight.n)
    epilogue = "swiglu" if weight.interleaved else "store"
    others: list[TensorView] = []
    residual_row_stride = 0
    if residual is not None:
        if weight.interleaved:
            raise InvalidArgumentError(
                f"{_OP}: residual is given with an interleaved weight; expected one of the two"
            )
        epilogue = "add_residual"
        residual_view = check_residual(_OP, residual, out_view, x_view)
        residual_row_stride = row_stride(_OP, residual_view)
        if (residual_view.pointer, residual_row_stride) != (
            out_view.pointer,
            row_stride(_OP, out_view),
        ):
            no_overlap(_OP, out_view, residual_view)
        others.append(residual_view)
    for tensor in (x_view, data):
        no_overlap(_OP, out_view, tensor)
    factor = check_scale(_OP, scale)

    require_cuda(_OP)
    device = common_device(_OP, out_view, x_view, data, *others)
    require_cuda(_OP, device)
    scratch = workspace_view(_OP, workspace, w4_matmul_workspace_bytes(device))
    common_device(_OP, out_view, scratch)
    for tensor in (x_view, data, *others, out_view):
        no_overlap(_OP, scratch, tensor)
    _native.w4_matmul(
        data.pointer,
        x_view.pointer,
        out_view.pointer,
        others[0].pointer if others else 0,
        scratch.pointer,
        x_row_stride=row_stride(_OP, x_view),
        out_row_stride=row_stride(_OP, out_view),
        residual_row_stride=residual_row_stride,
        rows=x_view.shape[0],
        n=weight.n,
        k=weight.k,
        num_sms=device_info(_OP, device).num_sms,
        x_dtype=DTYPE_CODES[x_view.dtype],
        scale_dtype=DTYPE_CODES[weight.scale_dtype],
        asymmetric=weight.asymmetric,
        float_out=out_view.dtype == "float32",
        epilogue=EPILOGUES[epilogue],
        scale=factor,
        device=device,
        stream=stream_handle(_OP, stream, x, device),
    )
    return out


def _check_activations(x: Any, k: int) -> TensorView:
    x_view = view(_OP, "x", x, ("float16", "bfloat16"))
    if len(x_view.shape) != 2 or x_view.shape[1] != k or x_view.shape[0] > _MAX_ROWS:
        raise UnsupportedShapeError(
            f"{_OP}: x has shape {x_view.shape}; expected [M, {k}] with M up to {_MAX_ROWS}"
        )
    distance = row_stride(_OP, x_view) * x_view.itemsize
    if x_view.pointer % _ALIGNMENT or (x_view.shape[0] > 1 and distance % _ALIGNMENT):
        raise UnsupportedLayoutError(
            f"{_OP}: x starts at {x_view.pointer:#x} with rows at a distance of {distance} bytes; "
            f"expected multiples of {_ALIGNMENT}"
        )
    return x_view
