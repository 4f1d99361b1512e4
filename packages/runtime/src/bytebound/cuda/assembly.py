"""From stored weights, one by one as they are read, to the matrices of the engine.

A matrix stays in 4 bits where the kernels can read it so: groups of 128 columns in their own order,
and scales that 16 bits hold exactly. Else it becomes an ordinary one in the dtype of the
activations. A fused matrix has one form: where its parts cannot share it, all become ordinary.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import bytebound_kernels as bk
import torch
from torch.nn.functional import pad

from bytebound.cuda.fusion import Fusion
from bytebound.cuda.matrices import DenseMatrix, GatedDenseMatrix, Matrix, PackedMatrix
from bytebound.packing import CODES_PER_WORD, MIDDLE
from bytebound.quantized import StoredMatrix
from bytebound.reading import dequantized

GROUP = 128  # columns that share a scale in the kernels' packed form
_ALL_MIDDLE = 0x88888888 - (1 << 32)  # an int32 of eight codes 8

Weight = torch.Tensor | StoredMatrix


@dataclass(frozen=True, slots=True)
class PackableMatrix:
    """A four-bit matrix in the words that ``w4_pack`` reads."""

    words: torch.Tensor  # int32 [N, K / 8]
    scale: torch.Tensor  # float16 or bfloat16 [N, K / 128]
    zero_point: torch.Tensor | None  # int32 [ceil(N / 8), K / 128]; None: symmetric


class Assembly:
    """Takes every weight of a folder once and fuses what belongs together."""

    def __init__(self, fusions: Iterable[Fusion], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.parts: dict[str, Matrix | torch.Tensor] = {}
        """Fused matrices by their names, every other tensor by its name in the checkpoint."""
        self._fusion_of = {name: fusion for fusion in fusions for name in fusion.members}
        self._waiting: dict[str, dict[str, Weight]] = {}

    def add(self, name: str, weight: Weight) -> None:
        """Take the weight ``name``; a fused matrix is built with the last of its members."""
        fusion = self._fusion_of.get(name)
        if fusion is None:
            self.parts[name] = _dense(weight, self.dtype, keep=True)
            return
        members = self._waiting.setdefault(fusion.name, {})
        members[name] = weight
        if len(members) == len(fusion.members):
            del self._waiting[fusion.name]
            whole = [members[one] for one in fusion.members]
            self.parts[fusion.name] = fused(whole, fusion, self.dtype)


def fused(members: list[Weight], fusion: Fusion, dtype: torch.dtype) -> Matrix:
    """Build one matrix from the stored ones."""
    packable = [] if fusion.form == "dense" else _all_packable(members)
    if packable:
        return pack(packable, gated=fusion.form == "gated")
    dense = [_dense(one, dtype) for one in members]
    if fusion.form == "gated":
        return GatedDenseMatrix(*dense)
    return DenseMatrix(dense[0] if len(dense) == 1 else torch.cat(dense))


def pack(members: list[PackableMatrix], *, gated: bool) -> PackedMatrix:
    """Bring matrices below each other, or gate and up, into one of the kernels' packed form."""
    n = members[0].words.shape[0] if gated else sum(one.words.shape[0] for one in members)
    k = members[0].words.shape[1] * CODES_PER_WORD
    asymmetric = any(one.zero_point is not None for one in members)
    size = bk.w4_packed_bytes(n, k, asymmetric=asymmetric, interleaved=gated)
    device = members[0].words.device
    weight = bk.PackedW4(
        torch.zeros(size, dtype=torch.uint8, device=device),
        n,
        k,
        asymmetric=asymmetric,
        scale_dtype=str(members[0].scale.dtype).removeprefix("torch."),
        interleaved=gated,
    )
    first_row = 0
    for one, part in zip(members, ("gate", "up") if gated else [None] * len(members), strict=True):
        zero = _zero_points(one) if asymmetric else None
        bk.w4_pack(one.words, one.scale, zero, out=weight, first_row=first_row, part=part)
        first_row += 0 if gated else one.words.shape[0]
    return PackedMatrix(weight)


def packable(matrix: StoredMatrix) -> PackableMatrix | None:
    """The matrix in words for ``w4_pack``, value for value; None where it has no such form."""
    columns = matrix.shape[1]
    scheme = matrix.scheme
    own_order = torch.arange(columns, device=matrix.groups().device) // GROUP
    if scheme.group_size != GROUP or columns % GROUP or not torch.equal(matrix.groups(), own_order):
        return None
    if scheme.layout == "pack-quantized":
        scale = _in_16_bits(matrix.tensors["weight_scale"])
        words, zero_point = matrix.tensors["weight_packed"], matrix.tensors.get("weight_zero_point")
    else:
        scale = _in_16_bits(matrix.tensors["scales"].T)
        words, zeros = _words(matrix.codes()), matrix.zeros()
        zero_point = None
        if not bool((zeros == MIDDLE).all()):
            zero_point = zero_words(zeros)
    if scale is None:
        return None
    return PackableMatrix(words.contiguous(), scale.contiguous(), zero_point)


def zero_words(zeros: torch.Tensor) -> torch.Tensor:
    """Zero points uint8 [N, groups] as ``w4_pack`` reads them: int32 [ceil(N / 8), groups]."""
    return _words(zeros.T).T.contiguous()


def _all_packable(members: list[Weight]) -> list[PackableMatrix]:
    """All members in the form for ``w4_pack``, or none of them."""
    found = [packable(one) for one in members if isinstance(one, StoredMatrix)]
    whole = [one for one in found if one is not None]
    if len(whole) != len(members) or len({one.scale.dtype for one in whole}) > 1:
        return []
    return whole


def _in_16_bits(scale: torch.Tensor) -> torch.Tensor | None:
    """The same scales in a 16-bit dtype; None where both would round them."""
    if scale.dtype != torch.float32:
        return scale
    for dtype in (torch.float16, torch.bfloat16):
        if torch.equal(scale.to(dtype).float(), scale):
            return scale.to(dtype)
    return None


def _words(codes: torch.Tensor) -> torch.Tensor:
    """Pack uint8 [R, C] to int32 [R, ceil(C / 8)], code i of a word in bits 4 i to 4 i + 3."""
    whole = pad(codes, (0, -codes.shape[1] % CODES_PER_WORD))
    pairs = whole[:, 0::2] | whole[:, 1::2] << 4
    return pairs.contiguous().view(torch.int32)  # little-endian, as the file format is


def _zero_points(matrix: PackableMatrix) -> torch.Tensor:
    if matrix.zero_point is not None:
        return matrix.zero_point.contiguous()
    rows, groups = matrix.scale.shape
    shape = (-(-rows // CODES_PER_WORD), groups)
    return torch.full(shape, _ALL_MIDDLE, dtype=torch.int32, device=matrix.scale.device)


def _dense(weight: Weight, dtype: torch.dtype, *, keep: bool = False) -> torch.Tensor:
    """An ordinary tensor in ``dtype``; with ``keep`` one that is ordinary keeps its own."""
    if isinstance(weight, StoredMatrix):
        return dequantized(weight, dtype)
    return weight if keep else weight.to(dtype)
