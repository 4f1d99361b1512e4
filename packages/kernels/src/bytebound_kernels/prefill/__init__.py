"""The passes over many tokens, in Triton: chunked Gated DeltaNet and gated attention.

Unlike the ops of the package itself these need PyTorch and Triton, so nothing else imports them.
"""

try:
    import torch as _torch
    import triton as _triton
except ImportError as error:
    raise ImportError(
        f"bytebound_kernels.prefill needs PyTorch and Triton, and {error.name} cannot be imported "
        f"({error}); install both with: pip install 'bytebound-kernels[prefill]'",
        name=error.name,
    ) from error

from bytebound_kernels.prefill.attention import (
    attention_prefill,
    attention_prefill_workspace_bytes,
)
from bytebound_kernels.prefill.gdn import gdn_prefill, gdn_prefill_workspace_bytes

__all__ = [
    "attention_prefill",
    "attention_prefill_workspace_bytes",
    "gdn_prefill",
    "gdn_prefill_workspace_bytes",
]

del _torch, _triton
