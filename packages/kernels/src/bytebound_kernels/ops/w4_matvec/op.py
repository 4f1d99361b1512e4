"""The checked front of the four-bit matrix-vector kernel (csrc/w4_matvec.h)."""

from typing import Any, TypeVar

from bytebound_kernels import _native
from bytebound_kernels._check import check_kind, common_device, no_overlap, row_stride
from bytebound_kernels._device import require_cuda
from bytebound_kernels._matvec import (
    EPILOGUES,
    check_activations,
    check_blocks,
    check_residual,
    check_result,
    check_scale,
    check_workspace,
    most_blocks,
)
from bytebound_kernels._stream import stream_handle
from bytebound_kernels._tensor import DTYPE_CODES, TensorView
from bytebound_kernels.errors import InvalidArgumentError
from bytebound_kernels.ops.w4_matvec.beside import check_beside
from bytebound_kernels.ops.w4_matvec.packed import PackedW4, num_items

__all__ = ["w4_matvec"]

_OP = "w4_matvec"
_BESIDE_FIELDS = (
    "beside_weight",
    "beside_out",
    "beside_weight_row_stride",
    "beside_out_row_stride",
    "beside_n",
    "beside_num_blocks",
)

TensorT = TypeVar("TensorT")


def w4_matvec(
    x: Any,
    weight: PackedW4,
    *,
    out: TensorT,
    workspace: Any,
    residual: Any = None,
    scale: float = 1.0,
    num_blocks: int | None = None,
    beside_weight: Any = None,
    beside_out: Any = None,
    stream: Any = None,
) -> TensorT:
    """Multiply a four-bit matrix by one to sixteen activation rows, on the GPU.

    Formula:
        y[r, n] = sum_k x[r, k] * scales[n, k // 128] * (code[n, k] - zero[n, k // 128])
        out = scale * y;  residual + scale * y;
        or, for an interleaved weight, scale * silu(y_gate) * y_up
        beside_out[r, m] = sum_k x[r, k] * beside_weight[m, k]

    x enters as fixed point, 15 bits and a sign under the largest magnitude of its row's group of
    128 columns: an element is off by hardly more than 2^-15 of that, and exact from about 1/16 of
    it on (float16; 1/128 for bfloat16). Sums over a group are exact, sums of groups and scales are
    float32.

    The product with beside_weight is for a matrix of few rows, such as the gates of a layer, whose
    own launch would take longer than its product: it has blocks of its own behind those of weight.
    x enters it as it is.

    Args:
        x: [R, K], R from 1 to 16, float16 or bfloat16; rows at any one distance, aligned to 16
            bytes.
        weight: [N, K] in packed form.
        out: [R, N], the dtype of x or float32; it may be residual itself.
        workspace: uint8, matvec_workspace_bytes(); filled with 0xFF once, before its first use.
            Calls that may run at the same time need one each.
        residual: [R, N] of the dtype of out, added to the product.
        scale: the product is multiplied by it in float32, before residual is added and before the
            result is rounded; finite, above 0. A power of two is exact: it keeps a wide float16
            result (SwiGLU's) in range, and the next product takes it off again.
        num_blocks: blocks among which the matrix is shared out, up to as many as the card runs at
            once, two for each multiprocessor. None: nearly as many, or fewer where all warps then
            have equal shares. The order of summation depends on it; a block without a share is not
            launched.
        beside_weight: [M, K], M from 1 to 4096, K up to 8192, the dtype of x; rows at any one
            distance, aligned to 16 bytes. None: there is no such product.
        beside_out: [R, M], the dtype of x; given with beside_weight.
        stream: a stream handle as an integer, or a PyTorch or CuPy stream. None: the stream that is
            current in the framework of x.

    Returns:
        out. The kernel is enqueued, not awaited; it may start while the kernel before it in the
        stream still runs, and loads its first weights meanwhile. It must not be the weights that
        that kernel writes. beside_out is written in the same launch.

    Raises:
        CudaUnavailableError: CUDA cannot be used here; the message says why.
        UnsupportedTensorError: an argument is no tensor.
        UnsupportedDtypeError: a dtype has no kernel.
        UnsupportedShapeError: a shape does not fit, or the workspace is too small.
        UnsupportedLayoutError: strides, alignment, or tensors that overlap.
        UnsupportedDeviceError: host memory, or more than one device.
        InvalidArgumentError: residual with an interleaved weight, scale, num_blocks, stream, or one
            of beside_weight and beside_out without the other.
        CudaError: the launch failed.

    Numerics: exact products, float32 sums in an order that depends on the matrix and the number of
    blocks alone: a row has the same bits alone and among others. Relative RMS error against float64
    below 1e-3 for float16 and float32 results, 4e-3 for bfloat16. A NaN or an infinity in a row
    stays in that row. A product beside changes no bit of out, and beside_out has the bits of
    rms_norm_project of the same rows, in an order that K alone decides.

    Source: csrc/w4_matvec.cu, csrc/cuda/matvec.cuh, csrc/cuda/w4.cuh, csrc/cuda/beside.cuh.
    """
    check_kind(_OP, "weight", weight, PackedW4)
    data = weight.check(_OP)
    x_view = check_activations(_OP, x, weight.k)
    out_view = check_result(_OP, "out", out, x_view, weight.n)
    epilogue = "swiglu" if weight.interleaved else "store"
    read: list[TensorView] = [x_view, data]
    residual_view = None
    if residual is not None:
        if weight.interleaved:
            raise InvalidArgumentError(
                f"{_OP}: residual is given with an interleaved weight; expected one of the two"
            )
        epilogue = "add_residual"
        residual_view = check_residual(_OP, residual, out_view, x_view)
        same = (residual_view.pointer, row_stride(_OP, residual_view)) == (
            out_view.pointer,
            row_stride(_OP, out_view),
        )
        if not same:
            no_overlap(_OP, out_view, residual_view)
    for tensor in read:
        no_overlap(_OP, out_view, tensor)
    factor = check_scale(_OP, scale)
    beside = check_beside(_OP, beside_weight, beside_out, x_view)
    others = [] if residual_view is None else [residual_view]
    if beside is not None:
        no_overlap(_OP, out_view, beside[0])
        for tensor in (out_view, data, *others):
            no_overlap(_OP, beside[1], tensor)
        others += beside

    require_cuda(_OP)
    device = common_device(_OP, out_view, *read, *others)
    require_cuda(_OP, device)
    blocks = check_blocks(_OP, num_blocks, device)
    scratch = check_workspace(_OP, workspace, blocks)
    if num_blocks is None:
        items = num_items(weight.n, weight.k, interleaved=weight.interleaved)
        blocks = _native.matvec_blocks(items, blocks)
    common_device(_OP, out_view, scratch)
    for tensor in (*read, *others, out_view):
        no_overlap(_OP, scratch, tensor)
    _native.w4_matvec(
        data.pointer,
        x_view.pointer,
        out_view.pointer,
        0 if residual_view is None else residual_view.pointer,
        scratch.pointer,
        x_row_stride=row_stride(_OP, x_view),
        out_row_stride=row_stride(_OP, out_view),
        residual_row_stride=0 if residual_view is None else row_stride(_OP, residual_view),
        rows=x_view.shape[0],
        n=weight.n,
        k=weight.k,
        num_blocks=blocks,
        x_dtype=DTYPE_CODES[x_view.dtype],
        scale_dtype=DTYPE_CODES[weight.scale_dtype],
        asymmetric=weight.asymmetric,
        float_out=out_view.dtype == "float32",
        epilogue=EPILOGUES[epilogue],
        scale=factor,
        **_beside_fields(beside, blocks, device),
        device=device,
        stream=stream_handle(_OP, stream, x, device),
    )
    return out


def _beside_fields(
    beside: tuple[TensorView, TensorView] | None, num_blocks: int, device: int
) -> dict[str, int]:
    """Return what the launcher takes of the product beside one of that many blocks."""
    if beside is None:
        return dict.fromkeys(_BESIDE_FIELDS, 0)
    weight, out = beside
    n = weight.shape[0]
    values = (
        weight.pointer,
        out.pointer,
        row_stride(_OP, weight),
        row_stride(_OP, out),
        n,
        _native.beside_blocks(n, num_blocks, most_blocks(device, _OP)),
    )
    return dict(zip(_BESIDE_FIELDS, values, strict=True))
