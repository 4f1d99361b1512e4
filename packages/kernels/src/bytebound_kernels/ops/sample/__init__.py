"""Seeded draws from logits with temperature, top_k, top_p and min_p."""

from bytebound_kernels.ops.sample.op import Purpose, sample, sample_workspace_bytes
from bytebound_kernels.ops.sample.reference import (
    draw_reference,
    philox_uniform_reference,
    sample_reference,
    weights_reference,
)

__all__ = [
    "Purpose",
    "draw_reference",
    "philox_uniform_reference",
    "sample",
    "sample_reference",
    "sample_workspace_bytes",
    "weights_reference",
]
