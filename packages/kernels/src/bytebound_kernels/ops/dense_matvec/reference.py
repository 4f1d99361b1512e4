"""The definition of the 16-bit product that the kernel is tested against, in float64."""

from typing import Any

__all__ = ["dense_matvec_reference"]


def dense_matvec_reference(
    x: Any, weight: Any, *, up: Any = None, residual: Any = None, scale: float = 1.0
) -> Any:
    """Multiply in float64.

    Formula:
        y = x W^T
        scale * y;  residual + scale * y;  or scale * silu(x W^T) * (x up^T)

    Args:
        x: [R, K], a PyTorch tensor.
        weight: [N, K].
        up: [N, K].
        residual: [R, N].
        scale: factor of the product.

    Returns:
        float64 [R, N].
    """
    x = x.double()
    y = x @ weight.double().T
    if up is not None:
        y = y * y.sigmoid() * (x @ up.double().T)
    y = scale * y
    return y if residual is None else residual.double() + y
