"""The bytes of a packed four-bit matrix, in plain PyTorch: the definition for csrc/cuda/w4.cuh.

An item is 64 rows by 128 columns, that is four tiles of 16 rows. Its words lie as
[tile][half of the steps][lane][step], and the eight codes of a word are those of two rows and four
columns:

    lane = 4 quad + pair, step s:  rows quad and quad + 8 of the tile, columns 32 pair + 4 s + j
    column j of row quad: bits 0, 16, 8, 24 for j = 0 .. 3; of row quad + 8: four bits higher
"""

from typing import Any

from bytebound_kernels.ops.w4_matvec.packed import GROUP, ITEM_ROWS, item_bytes

__all__ = ["PACKED_LAYOUT_VERSION", "interleave", "pack_reference", "unpack_reference"]

PACKED_LAYOUT_VERSION = 1
"""Raised with every change of the packed bytes: who keeps packed matrices holds them against it."""

_SHIFT = (0, 16, 8, 24)
_WORDS = ITEM_ROWS * GROUP // 8


def interleave(gate: Any, up: Any) -> Any:
    """Return rows in the order of an interleaved matrix: eight of gate, eight of up, and so on.

    [N, ...] and [N, ...] to [2 N rounded up to 16, ...]; missing rows are zero.
    """
    import torch

    n = gate.shape[0]
    padded = -(-n // 8) * 8
    both = []
    for part in (gate, up):
        full = part.new_zeros((padded, *part.shape[1:]))
        full[:n] = part
        both.append(full.unflatten(0, (-1, 8)))
    return torch.stack(both, 1).flatten(0, 2)


def pack_reference(codes: Any, scale: Any, zero: Any = None) -> Any:
    """Pack codes 0 to 15 as uint8 [N, K], scale [N, K / 128] of two bytes, zero uint8 like scale.

    Returns:
        uint8 [w4_packed_bytes(N, K)]. Rows that fill up the last item have codes, scale and zero 0.
    """
    import torch

    n, k = codes.shape
    blocks, groups = -(-n // ITEM_ROWS), k // GROUP
    full = codes.new_zeros((blocks * ITEM_ROWS, k))
    full[:n] = codes
    # [block, tile, half, quad, group, pair, step high, step low, j]
    parts = full.to(torch.int64).view(blocks, 4, 2, 8, groups, 4, 2, 4, 4)
    shifts = torch.tensor(_SHIFT, device=codes.device)
    words = (parts << shifts).sum(-1)  # [block, tile, half, quad, group, pair, high, low]
    words = words[:, :, 0] | words[:, :, 1] << 4  # [block, tile, quad, group, pair, high, low]
    words = words.permute(0, 3, 1, 5, 2, 4, 6)  # [block, group, tile, high, quad, pair, low]
    words = words.reshape(blocks, groups, _WORDS)
    low = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    fields = [low.contiguous().view(torch.uint8).view(blocks, groups, -1)]
    fields.append(_by_quad(scale, blocks).contiguous().view(torch.uint8).view(blocks, groups, -1))
    if zero is not None:
        nibbles = _by_quad(zero, blocks)  # [block, group, quad, place]
        fields.append(nibbles[..., 0::2] | nibbles[..., 1::2] << 4)
        fields[-1] = fields[-1].reshape(blocks, groups, -1)
    return torch.cat(fields, -1).reshape(-1)


def _by_quad(values: Any, blocks: int) -> Any:
    """[N, groups] to [block, group, quad, place], place = 2 tile + half."""
    n, groups = values.shape
    full = values.new_zeros((blocks * ITEM_ROWS, groups))
    full[:n] = values
    return full.view(blocks, 4, 2, 8, groups).permute(0, 4, 3, 1, 2).reshape(blocks, groups, 8, 8)


def unpack_reference(
    data: Any, n: int, k: int, *, asymmetric: bool = False, scale_dtype: str = "float16"
) -> Any:
    """Return the weights [N, K] in float64: scale * (code - zero), the inverse of packing."""
    import torch

    blocks, groups = -(-n // ITEM_ROWS), k // GROUP
    items = data.view(blocks, groups, item_bytes(asymmetric))
    word_bytes = _WORDS * 4
    words = items[..., :word_bytes].contiguous().view(torch.int32).to(torch.int64)
    # [block, group, tile, high, quad, pair, low]
    words = (words & 0xFFFFFFFF).view(blocks, groups, 4, 2, 8, 4, 4)
    shifts = torch.tensor(_SHIFT, device=data.device)
    halves = [words.unsqueeze(-1) >> shifts + 4 * half & 15 for half in range(2)]
    # [half, block, group, tile, high, quad, pair, low, j] to [block, tile, half, quad, group, ...]
    codes = torch.stack(halves).permute(1, 3, 0, 5, 2, 6, 4, 7, 8)
    codes = codes.reshape(blocks * ITEM_ROWS, k)
    parameters = items[..., word_bytes:].contiguous()
    scale = parameters[..., : ITEM_ROWS * 2].contiguous().view(getattr(torch, scale_dtype))
    scale = _by_row(scale.view(blocks, groups, 8, 8))
    if asymmetric:
        pairs = parameters[..., ITEM_ROWS * 2 :].view(blocks, groups, 8, 4)
        zero = _by_row(torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2))
    else:
        zero = torch.full_like(scale, 8)
    weights = scale.double().repeat_interleave(GROUP, 1) * (
        codes.double() - zero.double().repeat_interleave(GROUP, 1)
    )
    return weights[:n]


def _by_row(values: Any) -> Any:
    """[block, group, quad, place] to [row, group], the inverse of _by_quad."""
    blocks, groups = values.shape[:2]
    return (
        values.view(blocks, groups, 8, 4, 2)
        .permute(0, 3, 4, 2, 1)
        .reshape(blocks * ITEM_ROWS, groups)
    )
