"""The definition of the norm with a product that the kernel is tested against."""

from typing import Any

from bytebound_kernels.ops.rms_norm.reference import rms_norm_reference

__all__ = ["rms_norm_project_reference"]


def rms_norm_project_reference(
    x: Any, weight: Any, projection: Any, *, eps: float = 1e-6
) -> tuple[Any, Any]:
    """Normalise rows in float32, round them, and multiply the rounded rows in float32.

    Formula:
        y[r, i] = x[r, i] / sqrt(mean_i(x[r, i]^2) + eps) * (1 + weight[i])
        g[r, n] = sum_i y[r, i] * projection[n, i]

    Args:
        x: [R, D], a PyTorch tensor of float32, on any device.
        weight: [D], float32.
        projection: [N, D], of the dtype of the results.
        eps: added to the mean square.

    Returns:
        y [R, D] and g [R, N], each rounded once to the dtype of projection.

    Numerics: float32, in the summation order of PyTorch.
    """
    y = rms_norm_reference(x, weight, eps=eps).to(projection.dtype)
    return y, (y.float() @ projection.float().T).to(projection.dtype)
