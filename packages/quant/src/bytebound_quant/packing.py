"""The stored form of a 4-bit matrix: the tensors of compressed-tensors' ``pack-quantized``.

Eight codes in an int32, the first in the lowest bits, each plus 8 if symmetric:

    weight_packed      int32 [N, ceil(K/8)]     nibble i of word j is the code of column 8 j + i
    weight_scale       float16 [N, K/G]
    weight_shape       int64 [2]                N, K
    weight_zero_point  int32 [ceil(N/8), K/G]   asymmetric only; nibble i of word j is row 8 j + i

Nibbles behind the last row or column are 0. Checked against compressed-tensors 0.20 bit for bit.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from bytebound_quant.errors import PackedTensorError
from bytebound_quant.grid import OFFSET, QuantizedMatrix, Scheme

PER_WORD = 8  # codes in an int32


def pack(matrix: QuantizedMatrix) -> dict[str, Tensor]:
    """The tensors to store for ``matrix``, on its device, contiguous; see the module."""
    shape = torch.tensor(matrix.codes.shape, dtype=torch.int64)
    nibbles = matrix.codes + OFFSET if matrix.scheme.symmetric else matrix.codes
    tensors = {
        "weight_packed": _pack_rows(nibbles),
        "weight_scale": matrix.scale.contiguous(),
        "weight_shape": shape,
    }
    if matrix.zero_point is not None:
        tensors["weight_zero_point"] = _pack_rows(matrix.zero_point.T).T.contiguous()
    return tensors


def unpack(tensors: Mapping[str, Tensor], scheme: Scheme) -> QuantizedMatrix:
    """The matrix that ``tensors`` store, the inverse of ``pack``.

    A scale of bfloat16, which other tools write, stays bfloat16. Nibbles behind the last row or
    column are ignored. Raises PackedTensorError where a tensor is missing, not of this format, or
    contradicts ``weight_shape`` or the scheme; UnsupportedShapeError where a group is cut short.
    """
    _check_names(tensors, scheme)
    shape = tensors["weight_shape"]
    if shape.shape != (2,) or shape.is_floating_point() or not (shape > 0).all():
        raise PackedTensorError(f"weight_shape: expected two counts, got {shape.tolist()}")
    rows, columns = (int(n) for n in shape.tolist())
    groups = scheme.groups(columns)
    scale = tensors["weight_scale"]
    _check("weight_packed", tensors, (rows, -(-columns // PER_WORD)), torch.int32)
    _check("weight_scale", tensors, (rows, groups), torch.float16, torch.bfloat16)
    codes = _unpack_rows(tensors["weight_packed"], columns)
    if scheme.symmetric:
        return QuantizedMatrix(codes.sub_(OFFSET), scale, None, scheme)
    _check("weight_zero_point", tensors, (-(-rows // PER_WORD), groups), torch.int32)
    zero = _unpack_rows(tensors["weight_zero_point"].T, rows).T.contiguous()
    return QuantizedMatrix(codes, scale, zero, scheme)


def _pack_rows(nibbles: Tensor) -> Tensor:
    """int8 [n, m] of 0..15 to int32 [n, ceil(m/8)]."""
    words = -(-nibbles.shape[1] // PER_WORD)
    packed = torch.zeros((nibbles.shape[0], words), dtype=torch.int32, device=nibbles.device)
    for place in range(PER_WORD):
        lane = nibbles[:, place::PER_WORD]
        packed[:, : lane.shape[1]] |= lane.to(torch.int32) << (4 * place)
    return packed


def _unpack_rows(packed: Tensor, columns: int) -> Tensor:
    """int32 [n, words] to int8 [n, columns] of 0..15."""
    nibbles = torch.empty((packed.shape[0], columns), dtype=torch.int8, device=packed.device)
    for place in range(PER_WORD):
        lane = nibbles[:, place::PER_WORD]
        lane.copy_((packed[:, : lane.shape[1]] >> (4 * place)) & 15)
    return nibbles


def _check_names(tensors: Mapping[str, Tensor], scheme: Scheme) -> None:
    names = {"weight_packed", "weight_scale", "weight_shape"}
    if not scheme.symmetric:
        names.add("weight_zero_point")
    if missing := sorted(names - tensors.keys()):
        raise PackedTensorError(f"{', '.join(missing)} missing for {scheme.describe()}")
    if extra := sorted(tensors.keys() - names):
        raise PackedTensorError(f"{', '.join(extra)} not expected for {scheme.describe()}")


def _check(
    name: str, tensors: Mapping[str, Tensor], shape: tuple[int, int], *dtypes: torch.dtype
) -> None:
    tensor = tensors[name]
    if tensor.shape != shape or tensor.dtype not in dtypes:
        kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        got = f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
        raise PackedTensorError(f"{name}: got {got}, expected {list(shape)} {kinds}")
