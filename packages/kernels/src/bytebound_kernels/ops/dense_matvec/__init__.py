"""A 16-bit matrix in its ordinary layout times a few vectors."""

from bytebound_kernels.ops.dense_matvec.op import dense_matvec
from bytebound_kernels.ops.dense_matvec.reference import dense_matvec_reference

__all__ = ["dense_matvec", "dense_matvec_reference"]
