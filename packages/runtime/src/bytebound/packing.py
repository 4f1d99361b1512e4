"""Arithmetic of 4-bit storage: eight codes to an int32 word, and codes back to weights.

Nothing here knows a file or a config. Codes are unsigned, 0 to 15, whatever the layout calls them;
one formula serves every layout::

    W[n, k] = (codes[n, k] - zeros[n, groups[k]]) * scales[n, groups[k]]

``codes`` uint8 [N, K]; ``zeros`` uint8 [N, S] (8 everywhere for a symmetric matrix); ``scales``
float32 [N, S]; ``groups`` int64 [K], the group of each column, ``k // G`` where columns keep their
order; S groups a row. The product is computed in float32, where it is exact for scales of 16 bits,
and rounded once to the dtype asked for.
"""

import torch

CODES_PER_WORD = 8
MIDDLE = 8  # the zero point of a symmetric code
HIGHEST = 15

# Column of a word's eight, by nibble: the order in which AWQ's gemm kernels want to read them.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

# Rows turned to floats at once: a whole output head in float32 would be several GB.
_BLOCK_ELEMENTS = 1 << 24


def words(count: int) -> int:
    """How many int32 words ``count`` codes take; the last one may be partly filled."""
    return -(-count // CODES_PER_WORD)


def unpack(packed: torch.Tensor, count: int) -> torch.Tensor:
    """Codes of each row: int32 [R, words] to uint8 [R, count].

    Code ``i`` of a word is in its bits ``4 * i`` to ``4 * i + 3``; what fills up the last word is
    dropped.
    """
    # A copy, since contiguous() may keep a stride that view() refuses where a row is one word.
    whole = packed.clone(memory_format=torch.contiguous_format)
    pairs = whole.view(torch.uint8)  # little-endian, as the file format is
    codes = torch.stack((pairs & HIGHEST, pairs >> 4), dim=-1)
    return codes.view(packed.shape[0], -1)[:, :count]


def unpack_awq(packed: torch.Tensor) -> torch.Tensor:
    """Codes of each row in AWQ's interleaved order: int32 [R, N / 8] to uint8 [R, N]."""
    rows, width = packed.shape
    nibbles = unpack(packed, width * CODES_PER_WORD).reshape(rows, width, CODES_PER_WORD)
    # Nibble i holds column AWQ_ORDER[i]; the inverse says which nibble holds column c.
    nibble_of = torch.tensor([AWQ_ORDER.index(column) for column in range(CODES_PER_WORD)])
    return nibbles[..., nibble_of.to(packed.device)].reshape(rows, -1)


def dequantize(
    codes: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    groups: torch.Tensor,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Weights [N, K] in ``dtype`` by the formula of this module; all tensors on one device."""
    rows, columns = codes.shape
    weights = torch.empty((rows, columns), dtype=dtype, device=codes.device)
    block = max(1, _BLOCK_ELEMENTS // max(1, columns))
    for start in range(0, rows, block):
        part = slice(start, start + block)
        zero = zeros[part].float()[:, groups]
        scale = scales[part].float()[:, groups]
        weights[part] = codes[part].float().sub_(zero).mul_(scale)
    return weights
