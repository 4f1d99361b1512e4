"""A packed four-bit matrix as an ordinary one."""

from bytebound_kernels.ops.w4_unpack.op import w4_unpack
from bytebound_kernels.ops.w4_unpack.reference import w4_unpack_reference

__all__ = ["w4_unpack", "w4_unpack_reference"]
