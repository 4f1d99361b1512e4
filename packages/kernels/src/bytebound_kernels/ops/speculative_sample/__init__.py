"""The sampled rule of a speculative cycle."""

from bytebound_kernels.ops.speculative_sample.op import (
    speculative_sample,
    speculative_sample_workspace_bytes,
)
from bytebound_kernels.ops.speculative_sample.reference import speculative_sample_reference

__all__ = [
    "speculative_sample",
    "speculative_sample_reference",
    "speculative_sample_workspace_bytes",
]
