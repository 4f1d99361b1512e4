"""RMSNorm with the "1 + w" convention."""

from bytebound_kernels.ops.rms_norm.op import rms_norm
from bytebound_kernels.ops.rms_norm.reference import rms_norm_reference

__all__ = ["rms_norm", "rms_norm_reference"]
