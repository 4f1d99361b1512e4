"""The definition of w4_unpack, in PyTorch."""

from typing import Any

from bytebound_kernels.ops.w4_matvec.layout import unpack_reference
from bytebound_kernels.ops.w4_matvec.packed import PackedW4

__all__ = ["w4_unpack_reference"]


def w4_unpack_reference(weight: PackedW4) -> Any:
    """Return the weights in float64.

    Formula:
        W[n, k] = scale[n, k // 128] * (code[n, k] - zero[n, k // 128])

    Args:
        weight: [N, K] in packed form, its data a PyTorch tensor.

    Returns:
        float64 [N, K], exact; [2 N, K] for an interleaved weight, the rows of gate before those of
        up.
    """
    rows = -(-weight.n // 8) * 16 if weight.interleaved else weight.n
    matrix = unpack_reference(
        weight.data, rows, weight.k, asymmetric=weight.asymmetric, scale_dtype=weight.scale_dtype
    )
    if not weight.interleaved:
        return matrix
    parts = matrix.unflatten(0, (-1, 2, 8)).transpose(0, 1).flatten(1, 2)  # [gate or up, N, K]
    return parts[:, : weight.n].flatten(0, 1)
