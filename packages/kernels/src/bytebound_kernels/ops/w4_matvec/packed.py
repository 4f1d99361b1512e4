"""The packed form of a four-bit matrix, and the op that brings a stored one into it."""

from dataclasses import dataclass
from typing import Any

from bytebound_kernels import _native
from bytebound_kernels._check import (
    check_integer,
    check_kind,
    common_device,
    no_overlap,
    packed_view,
)
from bytebound_kernels._device import require_cuda
from bytebound_kernels._stream import stream_handle
from bytebound_kernels._tensor import TensorView
from bytebound_kernels.errors import (
    InvalidArgumentError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
)

__all__ = [
    "GROUP",
    "ITEM_ROWS",
    "PackedW4",
    "item_bytes",
    "num_items",
    "w4_pack",
    "w4_packed_bytes",
]

_OP = "w4_pack"
GROUP = 128  # columns that share a scale
ITEM_ROWS = 64
_WORD_BYTES = ITEM_ROWS * GROUP // 2
_SCALE_BYTES = ITEM_ROWS * 2
_ZERO_BYTES = ITEM_ROWS // 2
_CODES_PER_WORD = 8
_ALIGNMENT = 16
_MAX_N = 2**30

# The numbers of W4Part in csrc/w4_pack.h.
_PARTS = {None: 0, "gate": 1, "up": 2}


def item_bytes(asymmetric: bool) -> int:
    """Return the bytes of 64 rows by 128 columns."""
    return _WORD_BYTES + _SCALE_BYTES + (_ZERO_BYTES if asymmetric else 0)


def num_items(n: int, k: int, *, interleaved: bool) -> int:
    """Return the items of a packed matrix: 64 rows by 128 columns each."""
    rows = 2 * n if interleaved else n
    return -(-rows // ITEM_ROWS) * (k // GROUP)


def w4_packed_bytes(n: int, k: int, *, asymmetric: bool = False, interleaved: bool = False) -> int:
    """Return the bytes of a packed matrix: those of PackedW4.data.

    Raises:
        UnsupportedShapeError: K is not a multiple of 128, or N is out of range.
        InvalidArgumentError: one of them is no integer.
    """
    n, k = check_integer(_OP, "N", n), check_integer(_OP, "K", k)
    if k < 1 or k % GROUP:
        raise UnsupportedShapeError(
            f"{_OP}: K is {k}; expected a multiple of {GROUP}, the columns that share a scale"
        )
    if not 1 <= n <= _MAX_N:
        raise UnsupportedShapeError(f"{_OP}: N is {n}; expected 1 to {_MAX_N}")
    return num_items(n, k, interleaved=interleaved) * item_bytes(asymmetric)


@dataclass(frozen=True, slots=True)
class PackedW4:
    """A four-bit matrix as the kernels read it; csrc/cuda/w4.cuh draws the bytes.

    Attributes:
        data: uint8 [w4_packed_bytes(...)], on a CUDA device, aligned to 16 bytes. Fill it with
            zeros before packing: rows that fill up the last item then have a scale of zero.
        n: output features.
        k: input features, a multiple of 128.
        asymmetric: whether there are zero points; without them the zero point is 8.
        scale_dtype: "float16" or "bfloat16".
        interleaved: two matrices [N, K], gate and up, of which a product yields
            silu(gate x) * (up x).
    """

    data: Any
    n: int
    k: int
    asymmetric: bool = False
    scale_dtype: str = "float16"
    interleaved: bool = False

    def __post_init__(self) -> None:
        w4_packed_bytes(self.n, self.k)
        for name in ("n", "k"):  # a NumPy integer of few bits would overflow in what is made of it
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.scale_dtype not in ("float16", "bfloat16"):
            raise InvalidArgumentError(
                f"PackedW4: scale_dtype is {self.scale_dtype!r}; expected 'float16' or 'bfloat16'"
            )

    def check(self, op: str) -> TensorView:
        """Describe data, checked against the other fields."""
        num_bytes = w4_packed_bytes(
            self.n, self.k, asymmetric=self.asymmetric, interleaved=self.interleaved
        )
        data = packed_view(op, "weight.data", self.data, "uint8", (num_bytes,))
        if data.pointer % _ALIGNMENT:
            raise UnsupportedLayoutError(
                f"{op}: weight.data starts at {data.pointer:#x}; expected a multiple of "
                f"{_ALIGNMENT}"
            )
        return data


def w4_pack(
    packed: Any,
    scale: Any,
    zero_point: Any = None,
    *,
    out: PackedW4,
    first_row: int = 0,
    part: str | None = None,
    stream: Any = None,
) -> PackedW4:
    """Bring a matrix from compressed-tensors' pack-quantized form into the packed one, on the GPU.

    Formula:
        code[n, k] = packed[n, k // 8] >> (4 * (k % 8)) & 15
        W[n, k] = scale[n, k // 128] * (code[n, k] - zero[n, k // 128]),  zero = 8 if symmetric

    Several stored matrices may become one packed matrix, below each other (first_row) or
    interleaved (part): one call for each, on one stream.

    Args:
        packed: int32 [N, K / 8], eight codes a word, the first in the lowest bits.
        scale: [N, K / 128], of out.scale_dtype; copied bit for bit.
        zero_point: int32 [ceil(N / 8), K / 128], nibble i of word j is that of row 8 j + i; None
            for a symmetric matrix.
        out: where the rows go; rows of other calls keep their bytes.
        first_row: the row of out that row 0 becomes.
        part: "gate" or "up", for an interleaved out.
        stream: as in every op.

    Returns:
        out. The kernel is enqueued, not awaited.

    Raises:
        CudaUnavailableError, UnsupportedTensorError, UnsupportedDtypeError, UnsupportedShapeError,
        UnsupportedLayoutError, UnsupportedDeviceError, InvalidArgumentError, CudaError: as in every
            op; the message says what was got and expected.

    Source: csrc/w4_pack.cu.
    """
    check_kind(_OP, "out", out, PackedW4)
    data = out.check(_OP)
    groups = out.k // GROUP
    packed_words = packed_view(_OP, "packed", packed, "int32", (None, out.k // _CODES_PER_WORD))
    n = packed_words.shape[0]
    scales = packed_view(_OP, "scale", scale, out.scale_dtype, (n, groups))
    read = [packed_words, scales]
    if (zero_point is None) == out.asymmetric:
        raise InvalidArgumentError(
            f"{_OP}: zero_point is {'missing' if zero_point is None else 'given'} with "
            f"out.asymmetric {out.asymmetric}; expected both or neither"
        )
    if zero_point is not None:
        words = -(-n // _CODES_PER_WORD)
        read.append(packed_view(_OP, "zero_point", zero_point, "int32", (words, groups)))
    first_row = _check_place(out, n, first_row, part)
    for tensor in read:
        no_overlap(_OP, data, tensor)

    require_cuda(_OP)
    device = common_device(_OP, data, *read)
    require_cuda(_OP, device)
    _native.w4_pack(
        packed_words.pointer,
        scales.pointer,
        read[2].pointer if out.asymmetric else 0,
        data.pointer,
        n=n,
        k=out.k,
        items_rows=2 * out.n if out.interleaved else out.n,
        first_row=first_row,
        part=_PARTS[part],
        device=device,
        stream=stream_handle(_OP, stream, packed, device),
    )
    return out


def _check_place(out: PackedW4, n: int, first_row: int, part: str | None) -> int:
    """Return first_row as an int, checked against what out has room for."""
    first_row = check_integer(_OP, "first_row", first_row)
    if not (part is None or isinstance(part, str)) or part not in _PARTS:
        raise InvalidArgumentError(f"{_OP}: part is {part!r}; expected None, 'gate' or 'up'")
    if (part is not None) != out.interleaved:
        raise InvalidArgumentError(
            f"{_OP}: part is {part!r} with out.interleaved {out.interleaved}; expected 'gate' or "
            f"'up' for an interleaved matrix, None for another"
        )
    if part is not None and (first_row != 0 or n != out.n):
        raise UnsupportedShapeError(
            f"{_OP}: packed has {n} rows from row {first_row} on; expected all {out.n} rows of "
            f"{part!r} at once"
        )
    if not 0 <= first_row <= out.n - n:
        raise UnsupportedShapeError(
            f"{_OP}: {n} rows from row {first_row} on do not fit; expected rows 0 to {out.n - 1}"
        )
    return first_row
