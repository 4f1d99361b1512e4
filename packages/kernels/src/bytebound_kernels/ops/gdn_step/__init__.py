"""One Gated DeltaNet layer between its projections, for the few rows of a decode pass."""

from bytebound_kernels.ops.gdn_step.op import GdnRows, GdnState, GdnWeights, gdn_step
from bytebound_kernels.ops.gdn_step.reference import gdn_step_reference

__all__ = ["GdnRows", "GdnState", "GdnWeights", "gdn_step", "gdn_step_reference"]
