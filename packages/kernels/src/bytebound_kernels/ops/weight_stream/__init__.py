"""Layers of a model as one kernel that never stops reading weights."""

from bytebound_kernels.ops.weight_stream.op import (
    StreamGatedDelta,
    StreamGates,
    StreamNorm,
    StreamOp,
    StreamProduct,
    StreamReplay,
    weight_stream,
    weight_stream_slots,
    weight_stream_workspace_bytes,
)

__all__ = [
    "StreamGatedDelta",
    "StreamGates",
    "StreamNorm",
    "StreamOp",
    "StreamProduct",
    "StreamReplay",
    "weight_stream",
    "weight_stream_slots",
    "weight_stream_workspace_bytes",
]
