"""Layers of a model as one kernel that never stops reading weights."""

from bytebound_kernels.ops.weight_stream.op import (
    StreamProgram,
    weight_stream,
    weight_stream_slots,
    weight_stream_table_bytes,
    weight_stream_workspace_bytes,
)
from bytebound_kernels.ops.weight_stream.records import (
    STREAM_MAX_OPS,
    StreamAttention,
    StreamEmbedding,
    StreamGatedDelta,
    StreamGates,
    StreamNorm,
    StreamOp,
    StreamProduct,
    StreamReplay,
)
from bytebound_kernels.ops.weight_stream.reference import weight_stream_reference

__all__ = [
    "STREAM_MAX_OPS",
    "StreamAttention",
    "StreamEmbedding",
    "StreamGatedDelta",
    "StreamGates",
    "StreamNorm",
    "StreamOp",
    "StreamProduct",
    "StreamProgram",
    "StreamReplay",
    "weight_stream",
    "weight_stream_reference",
    "weight_stream_slots",
    "weight_stream_table_bytes",
    "weight_stream_workspace_bytes",
]
