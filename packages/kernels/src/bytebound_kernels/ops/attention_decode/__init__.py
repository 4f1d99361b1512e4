"""Gated attention of a few consecutive rows to a cache that they extend."""

from bytebound_kernels.ops.attention_decode.op import (
    attention_decode,
    attention_decode_workspace_bytes,
)
from bytebound_kernels.ops.attention_decode.reference import attention_decode_reference

__all__ = [
    "attention_decode",
    "attention_decode_reference",
    "attention_decode_workspace_bytes",
]
