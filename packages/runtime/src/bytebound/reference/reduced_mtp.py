"""The reference's MTP draft over a draft vocabulary. The definition for a reduced head."""

import torch

from bytebound.config import ModelConfig
from bytebound.draft_vocab import only_ids
from bytebound.drafts import MtpDraft
from bytebound.weights import ModelWeights


class ReducedMtpDraft(MtpDraft):
    """Guesses only ids of the draft vocabulary; its distributions give every other id 0."""

    def __init__(
        self, weights: ModelWeights, config: ModelConfig, ids: torch.Tensor, *, max_len: int
    ) -> None:
        super().__init__(weights, config, max_len=max_len)
        self.ids = ids.long().to(weights.lm_head.device)

    def _logits(self, out: torch.Tensor) -> torch.Tensor:
        return only_ids(super()._logits(out), self.ids)
