"""The index of the largest value of each row."""

from bytebound_kernels.ops.argmax.op import argmax, argmax_workspace_bytes
from bytebound_kernels.ops.argmax.reference import argmax_reference

__all__ = ["argmax", "argmax_reference", "argmax_workspace_bytes"]
