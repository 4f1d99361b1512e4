"""Bias, penalties and masks on rows of logits."""

from bytebound_kernels.ops.logit_adjust.op import logit_adjust
from bytebound_kernels.ops.logit_adjust.reference import logit_adjust_reference

__all__ = ["logit_adjust", "logit_adjust_reference"]
