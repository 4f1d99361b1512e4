"""What the CUDA backend will hold, from headers alone: nothing of the weights is read."""

import math

import bytebound_kernels as bk
import torch
from bytebound_kernels import prefill as many

from bytebound import tensor_names as names
from bytebound.config import ModelConfig
from bytebound.cuda import fusion
from bytebound.cuda.assembly import GROUP
from bytebound.cuda.executor import PREFILL_CHUNK
from bytebound.cuda.fusion import Fusion
from bytebound.cuda.state import MAX_ROWS, cache_positions
from bytebound.memory import MemorySettings
from bytebound.quantized import PackedMatrix
from bytebound.tensor_names import Shape

_BITS = 16.0  # of a matrix that is not packed, and of an activation
_SCALE_BYTES = 4  # of one key or value in a float8 cache


def memory_settings(
    config: ModelConfig,
    packed: dict[str, PackedMatrix] | None,
    prefix: str,
    *,
    with_mtp: bool,
    max_len: int,
    kv_dtype: torch.dtype,
    matvec_bytes: int,
) -> MemorySettings:
    """Settings for ``bytebound.memory``; ``packed`` None stands for random weights, all in 4 bits.

    ``matvec_bytes`` is the workspace of the matvec ops on this card.
    """
    shapes = {**names.model_shapes(config, prefix=prefix), **names.head_shape(config)}
    if with_mtp:
        shapes |= names.mtp_shapes(config)
    decoder, head, mtp = list[Fusion](), list[Fusion](), list[Fusion]()
    for one in fusion.plan(config, prefix, with_mtp=with_mtp):
        is_mtp = one.name.startswith(names.MTP_PREFIX)
        (mtp if is_mtp else head if one.name == fusion.HEAD else decoder).append(one)
    bits = [_bits(group, shapes, packed) for group in (decoder, head, mtp)]
    kv_bytes: float = kv_dtype.itemsize
    if kv_dtype.itemsize == 1:
        kv_bytes += _SCALE_BYTES / config.head_dim
    chunk = min(PREFILL_CHUNK, max_len)
    workspaces = matvec_bytes + bk.attention_decode_workspace_bytes(
        MAX_ROWS, config.num_attention_heads, cache_positions(max_len)
    )
    workspaces += many.gdn_prefill_workspace_bytes(
        chunk, key_heads=config.linear_num_key_heads, value_heads=config.linear_num_value_heads
    )
    return MemorySettings(
        bits_per_weight=bits[0],
        head_bits=bits[1],
        mtp_bits=bits[2],
        small_bits=32.0,
        kv_bytes=kv_bytes,
        mtp=with_mtp,
        chunk_rows=PREFILL_CHUNK,
        verify_rows=MAX_ROWS,
        window_bytes=2.0,
        workspace_bytes=workspaces,
    )


def _bits(
    fusions: list[Fusion], shapes: dict[str, Shape], packed: dict[str, PackedMatrix] | None
) -> float:
    """Bits that a weight takes on average over these matrices, padding rows included."""
    elements = sum(math.prod(shapes[name]) for one in fusions for name in one.members)
    if not elements:
        return _BITS
    return 8 * sum(_held_bytes(one, shapes, packed) for one in fusions) / elements


def _held_bytes(
    one: Fusion, shapes: dict[str, Shape], packed: dict[str, PackedMatrix] | None
) -> float:
    rows, columns = sum(shapes[name][0] for name in one.members), shapes[one.members[0]][1]
    schemes = [
        None if packed is None else packed[name].scheme
        for name in one.members
        if packed is None or name in packed
    ]
    odd = [each for each in schemes if each and (each.group_size != GROUP or each.reordered)]
    whole = len(schemes) == len(one.members) and not odd and columns % GROUP == 0
    if one.form == "dense" or not whole:
        return rows * columns * _BITS / 8
    gated = one.form == "gated"
    return bk.w4_packed_bytes(
        rows // 2 if gated else rows,
        columns,
        asymmetric=any(each is not None and not each.symmetric for each in schemes),
        interleaved=gated,
    )
