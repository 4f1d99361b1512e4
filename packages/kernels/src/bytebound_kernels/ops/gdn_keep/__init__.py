"""What moves on in the Gated DeltaNet layers between two passes of a weight stream."""

from bytebound_kernels.ops.gdn_keep.op import gdn_keep

__all__ = ["gdn_keep"]
