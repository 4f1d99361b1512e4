"""RMSNorm of a few rows, and the product of the result with a small matrix."""

from bytebound_kernels.ops.rms_norm_project.op import rms_norm_project
from bytebound_kernels.ops.rms_norm_project.reference import rms_norm_project_reference

__all__ = ["rms_norm_project", "rms_norm_project_reference"]
