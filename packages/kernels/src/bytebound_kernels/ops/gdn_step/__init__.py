"""One Gated DeltaNet layer between its projections, for the few rows of a decode pass."""

from bytebound_kernels.ops.gdn_step.op import (
    GdnPending,
    GdnRows,
    GdnState,
    GdnWeights,
    gdn_step,
    gdn_updates_width,
)
from bytebound_kernels.ops.gdn_step.reference import (
    gdn_replay_reference,
    gdn_step_reference,
    gdn_updates_reference,
)

__all__ = [
    "GdnPending",
    "GdnRows",
    "GdnState",
    "GdnWeights",
    "gdn_replay_reference",
    "gdn_step",
    "gdn_step_reference",
    "gdn_updates_reference",
    "gdn_updates_width",
]
