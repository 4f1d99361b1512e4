"""A matrix as the GPU will hold it, from the headers alone."""

from collections.abc import Mapping
from dataclasses import dataclass

import bytebound_kernels as bk

from bytebound.cuda.assembly import GROUP
from bytebound.cuda.fusion import Fusion
from bytebound.quantized import PackedMatrix
from bytebound.tensor_names import Shape

BYTES = 2  # of an activation, of a weight that is not packed, of a key or value in 16 bits


@dataclass(frozen=True, slots=True)
class Held:
    """One matrix on the GPU."""

    name: str
    elements: int
    num_bytes: float
    packed: bool
    asymmetric: bool = False
    always_dense: bool = False  # whatever the folder holds


def held(
    one: Fusion, shapes: Mapping[str, Shape], packed: Mapping[str, PackedMatrix] | None
) -> Held:
    """What ``one`` takes of a folder with ``packed`` matrices; None: all will be in 4 bits."""
    rows, columns = sum(shapes[name][0] for name in one.members), shapes[one.members[0]][1]
    schemes = [
        None if packed is None else packed[name].scheme
        for name in one.members
        if packed is None or name in packed
    ]
    odd = [each for each in schemes if each and (each.group_size != GROUP or each.reordered)]
    whole = len(schemes) == len(one.members) and not odd and columns % GROUP == 0
    if one.form == "dense" or not whole:
        dense = one.form == "dense"
        return Held(one.name, rows * columns, rows * columns * BYTES, False, always_dense=dense)
    gated = one.form == "gated"
    asymmetric = any(each is not None and not each.symmetric for each in schemes)
    num_bytes = bk.w4_packed_bytes(
        rows // 2 if gated else rows, columns, asymmetric=asymmetric, interleaved=gated
    )
    return Held(one.name, rows * columns, num_bytes, packed=True, asymmetric=asymmetric)
