"""A four-bit matrix times the rows of a prompt."""

from bytebound_kernels.ops.w4_matmul.op import w4_matmul, w4_matmul_workspace_bytes
from bytebound_kernels.ops.w4_matmul.reference import w4_matmul_reference

__all__ = ["w4_matmul", "w4_matmul_reference", "w4_matmul_workspace_bytes"]
