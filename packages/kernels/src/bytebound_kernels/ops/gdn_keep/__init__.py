"""What moves on in the Gated DeltaNet layers between two passes of a weight stream."""

from bytebound_kernels.ops.gdn_keep.op import gdn_keep
from bytebound_kernels.ops.gdn_keep.reference import gdn_keep_reference

__all__ = ["gdn_keep", "gdn_keep_reference"]
