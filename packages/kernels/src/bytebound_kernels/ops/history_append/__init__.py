"""The history that penalties look at."""

from bytebound_kernels.ops.history_append.op import history_append
from bytebound_kernels.ops.history_append.reference import history_append_reference

__all__ = ["history_append", "history_append_reference"]
