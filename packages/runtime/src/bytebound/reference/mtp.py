"""The multi-token-prediction head: one decoder layer that guesses the token after next.

At position p, with h the target's hidden after the final norm (for later drafts: this head's own
output) and e the embedding of the token at p+1:

    x = fc([norm_e(e), norm_h(h)]);  x = decoder_layer(x) at position p, own KV;  out = norm(x);
    logits by lm_head
"""

import torch
from torch.nn.functional import linear

from bytebound.config import ModelConfig
from bytebound.reference.model import decoder_layer
from bytebound.reference.norm import rms_norm
from bytebound.reference.rotary import rotary_angles
from bytebound.reference.rows import Rows
from bytebound.reference.state import KvCache
from bytebound.weights import ModelWeights, MtpWeights


def mtp_forward(
    next_ids: torch.Tensor,
    hidden: torch.Tensor,
    weights: ModelWeights,
    mtp: MtpWeights,
    config: ModelConfig,
    kv: KvCache,
    start: int,
) -> torch.Tensor:
    """Rows from position ``start``: ``hidden`` [n, D] and the id after each, ``next_ids`` [n].

    Returns [n, D] after the head's own norm and appends n positions to ``kv``. Earlier positions
    must be filled.
    """
    rows = Rows(start, len(next_ids), wide=True)
    eps = config.rms_norm_eps
    embedded = rms_norm(weights.embed_tokens[next_ids], mtp.pre_fc_norm_embedding, eps)
    x = linear(torch.cat((embedded, rms_norm(hidden, mtp.pre_fc_norm_hidden, eps)), dim=-1), mtp.fc)
    angles = rotary_angles(rows.positions(x.device), config)
    for layer in mtp.layers:
        x = decoder_layer(x, layer, config, kv, rows, angles)
    return rms_norm(x, mtp.norm, eps)
