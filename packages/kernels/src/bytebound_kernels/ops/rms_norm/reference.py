"""The definition of RMSNorm that the kernel is tested against, on any array library."""

from typing import Any

__all__ = ["rms_norm_reference"]


def _to_float32(array: Any) -> Any:
    return array.float() if hasattr(array, "float") else array.astype("float32")


def _to_dtype_of(array: Any, like: Any) -> Any:
    return array.to(like.dtype) if hasattr(array, "to") else array.astype(like.dtype)


def rms_norm_reference(x: Any, weight: Any, *, eps: float = 1e-6) -> Any:
    """Normalise rows by their root mean square, in float32.

    Formula:
        y[t, i] = x[t, i] / sqrt(mean_i(x[t, i]^2) + eps) * (1 + weight[i])

    Args:
        x: [..., D], a PyTorch tensor or a NumPy or CuPy array, on any device.
        weight: [D], of the same library.
        eps: added to the mean square.

    Returns:
        [..., D] with the dtype of x, cast once at the end.

    Numerics: float32 throughout, in the summation order of the array library.
    """
    x32 = _to_float32(x)
    mean_square = (x32 * x32).mean(-1, keepdims=True)
    y32 = x32 / (mean_square + eps) ** 0.5 * (1 + _to_float32(weight))
    return _to_dtype_of(y32, x)
