"""Log-probabilities of chosen ids and of the likeliest ones."""

from bytebound_kernels.ops.logprobs.op import logprobs, logprobs_workspace_bytes
from bytebound_kernels.ops.logprobs.reference import logprobs_reference

__all__ = ["logprobs", "logprobs_reference", "logprobs_workspace_bytes"]
