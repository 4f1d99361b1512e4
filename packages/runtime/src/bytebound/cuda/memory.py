"""What the CUDA backend will hold, from headers alone: nothing of the weights is read."""

from dataclasses import dataclass

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
    product_bytes: int,
) -> MemorySettings:
    """Settings for ``bytebound.memory``; ``packed`` None stands for random weights, all in 4 bits.

    ``product_bytes`` are the workspaces of the matrix products on this card.
    """
    shapes = {**names.model_shapes(config, prefix=prefix), **names.head_shape(config)}
    if with_mtp:
        shapes |= names.mtp_shapes(config)
    decoder, head, mtp = list[_Held](), list[_Held](), list[_Held]()
    for one in fusion.plan(config, prefix, with_mtp=with_mtp):
        is_mtp = one.name.startswith(names.MTP_PREFIX)
        group = mtp if is_mtp else head if one.name == fusion.HEAD else decoder
        group.append(_held(one, shapes, packed))
    kv_bytes: float = kv_dtype.itemsize
    if kv_dtype.itemsize == 1:
        kv_bytes += _SCALE_BYTES / config.head_dim
    chunk = min(PREFILL_CHUNK, max_len)
    workspaces = product_bytes + bk.attention_decode_workspace_bytes(
        MAX_ROWS, config.num_attention_heads, cache_positions(max_len)
    )
    unpacked = max((one.elements for one in decoder + mtp if one.packed), default=0)
    workspaces += int(unpacked * _BITS / 8)
    workspaces += many.gdn_prefill_workspace_bytes(
        chunk, key_heads=config.linear_num_key_heads, value_heads=config.linear_num_value_heads
    )
    return MemorySettings(
        bits_per_weight=_bits(decoder),
        head_bits=_bits(head),
        mtp_bits=_bits(mtp),
        small_bits=32.0,
        kv_bytes=kv_bytes,
        mtp=with_mtp,
        chunk_rows=PREFILL_CHUNK,
        verify_rows=MAX_ROWS,
        window_bytes=2.0,
        workspace_bytes=workspaces,
    )


@dataclass(frozen=True, slots=True)
class _Held:
    """One matrix on the GPU."""

    elements: int
    num_bytes: float
    packed: bool


def _bits(matrices: list[_Held]) -> float:
    """Bits that a weight takes on average over these matrices, padding rows included."""
    elements = sum(one.elements for one in matrices)
    return 8 * sum(one.num_bytes for one in matrices) / elements if elements else _BITS


def _held(one: Fusion, shapes: dict[str, Shape], packed: dict[str, PackedMatrix] | None) -> _Held:
    rows, columns = sum(shapes[name][0] for name in one.members), shapes[one.members[0]][1]
    schemes = [
        None if packed is None else packed[name].scheme
        for name in one.members
        if packed is None or name in packed
    ]
    odd = [each for each in schemes if each and (each.group_size != GROUP or each.reordered)]
    whole = len(schemes) == len(one.members) and not odd and columns % GROUP == 0
    if one.form == "dense" or not whole:
        return _Held(rows * columns, rows * columns * _BITS / 8, packed=False)
    gated = one.form == "gated"
    num_bytes = bk.w4_packed_bytes(
        rows // 2 if gated else rows,
        columns,
        asymmetric=any(each is not None and not each.symmetric for each in schemes),
        interleaved=gated,
    )
    return _Held(rows * columns, num_bytes, packed=True)
