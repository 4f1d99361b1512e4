"""A four-bit matrix times a few vectors, and the form in which the matrix lies."""

from bytebound_kernels.ops.w4_matvec.op import w4_matvec
from bytebound_kernels.ops.w4_matvec.packed import PackedW4, w4_pack, w4_packed_bytes
from bytebound_kernels.ops.w4_matvec.reference import w4_matvec_reference

__all__ = ["PackedW4", "w4_matvec", "w4_matvec_reference", "w4_pack", "w4_packed_bytes"]
