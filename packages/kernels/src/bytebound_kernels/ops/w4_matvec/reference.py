"""The definition of the four-bit product that the kernel is tested against, in float64."""

from typing import Any

from bytebound_kernels.ops.w4_matvec.layout import unpack_reference
from bytebound_kernels.ops.w4_matvec.packed import PackedW4

__all__ = ["w4_matvec_reference"]


def w4_matvec_reference(
    x: Any, weight: PackedW4, *, residual: Any = None, scale: float = 1.0
) -> Any:
    """Multiply in float64.

    Formula:
        y = x W^T
        scale * y;  residual + scale * y;  or scale * silu(y_gate) * y_up for an interleaved weight

    Args:
        x: [R, K], a PyTorch tensor on the device of weight.data.
        weight: [N, K] in packed form.
        residual: [R, N].
        scale: factor of the product.

    Returns:
        float64 [R, N].
    """
    rows = -(-weight.n // 8) * 16 if weight.interleaved else weight.n
    matrix = unpack_reference(
        weight.data,
        rows,
        weight.k,
        asymmetric=weight.asymmetric,
        scale_dtype=weight.scale_dtype,
    )
    y = x.double() @ matrix.T
    if weight.interleaved:
        gate, up = y.unflatten(-1, (-1, 2, 8)).unbind(-2)
        y = (gate * gate.sigmoid() * up).flatten(-2)[..., : weight.n]
    y = scale * y
    return y if residual is None else residual.double() + y
