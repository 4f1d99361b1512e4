"""The definition of the four-bit product of many rows: that of a few, w4_matvec's."""

from typing import Any

from bytebound_kernels.ops.w4_matvec.packed import PackedW4
from bytebound_kernels.ops.w4_matvec.reference import w4_matvec_reference

__all__ = ["w4_matmul_reference"]


def w4_matmul_reference(
    x: Any, weight: PackedW4, *, residual: Any = None, scale: float = 1.0
) -> Any:
    """Multiply in float64.

    Formula:
        y = x W^T
        scale * y;  residual + scale * y;  or scale * silu(y_gate) * y_up for an interleaved weight

    Args:
        x: [M, K], a PyTorch tensor on the device of weight.data.
        weight: [N, K] in packed form.
        residual: [M, N].
        scale: factor of the product.

    Returns:
        float64 [M, N].
    """
    return w4_matvec_reference(x, weight, residual=residual, scale=scale)
