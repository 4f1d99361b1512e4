"""The greedy rule of a speculative cycle, and what the cycle leaves on the device."""

from bytebound_kernels.ops.speculative_accept.op import (
    CYCLE_HEADER,
    CYCLE_NEXT_TOKEN,
    CYCLE_NUM_ACCEPTED,
    CYCLE_NUM_EMITTED,
    CYCLE_POSITION,
    CYCLE_TOTAL_EMITTED,
    MAX_CYCLE_ROWS,
    speculative_accept,
)
from bytebound_kernels.ops.speculative_accept.reference import speculative_accept_reference

__all__ = [
    "CYCLE_HEADER",
    "CYCLE_NEXT_TOKEN",
    "CYCLE_NUM_ACCEPTED",
    "CYCLE_NUM_EMITTED",
    "CYCLE_POSITION",
    "CYCLE_TOTAL_EMITTED",
    "MAX_CYCLE_ROWS",
    "speculative_accept",
    "speculative_accept_reference",
]
