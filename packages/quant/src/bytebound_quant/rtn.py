"""Round to nearest: every weight to the closest point of its group's grid, no data needed."""

from torch import Tensor

from bytebound_quant.grid import QuantizedMatrix, Scheme, encode, find_grid


def rtn(weight: Tensor, scheme: Scheme, *, mse: bool = False) -> QuantizedMatrix:
    """Quantize ``weight`` [N, K] by rounding; with ``mse`` the group's range is searched first.

    Any float dtype, computed in float32 on the weight's device. The same input gives the same bits.
    Raises what ``find_grid`` raises.
    """
    scale, zero = find_grid(weight, scheme, mse=mse)
    return QuantizedMatrix(encode(weight, scale, zero, scheme), scale, zero, scheme)
