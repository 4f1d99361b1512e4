"""The definition of the four-bit product that the kernel is tested against, in float64."""

from typing import Any

from bytebound_kernels.ops.w4_matvec.layout import unpack_reference
from bytebound_kernels.ops.w4_matvec.packed import PackedW4

__all__ = ["beside_reference", "fixed_point_reference", "w4_matvec_reference"]

GROUP = 128
# Of float16 and bfloat16: bits of the mantissa, bias of the exponent, the least exponent that
# counts, and what is added to the bits of the largest so that n stays within two signed bytes.
_FORMATS = {"torch.float16": (10, 15, 1, 8), "torch.bfloat16": (7, 127, 15, 1)}


def fixed_point_reference(x: Any) -> Any:
    """Round activations as the kernel does before it multiplies.

    Formula:
        n = round(x 2^(14 - e)) with 2^e <= max |x| < 2^(e + 1) over each group of 128 columns,
        ties to even; e is one larger if |n| would pass 32,639, and never below what leaves both
        powers of two ordinary float32 numbers. Result: n 2^(e - 14)

    Args:
        x: [R, K] float16 or bfloat16, finite.

    Returns:
        float64 [R, K].
    """
    import torch

    mantissa, bias, least, near = _FORMATS[str(x.dtype)]
    groups = x.unflatten(-1, (-1, GROUP))
    largest = groups.contiguous().abs().amax(-1, keepdim=True)
    bits = largest.view(torch.int16).int()
    exponent = ((bits + near) >> mantissa).clamp(min=least) - bias
    one = (exponent.double() - 14).exp2()
    return ((groups.double() / one).round() * one).flatten(-2)


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


def beside_reference(x: Any, weight: Any) -> Any:
    """Multiply by a small 16-bit matrix in float64: ``beside_out`` before it is rounded.

    Formula:
        x weight^T

    Args:
        x: [R, K], a PyTorch tensor.
        weight: [M, K], on the same device.

    Returns:
        float64 [R, M].
    """
    return x.double() @ weight.double().T
