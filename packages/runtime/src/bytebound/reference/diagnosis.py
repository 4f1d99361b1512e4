"""The reference's part of ``bytebound.diagnosis``."""

from collections.abc import Sequence

import torch

from bytebound.diagnosis import FiniteWatch, in_words
from bytebound.reference.executor import ReferenceExecutor
from bytebound.reference.rows import WINDOW
from bytebound.reference.taps import AtProducts, Multiply, weight_at
from bytebound.taps import EMBEDDING, PARTS, Place
from bytebound.weights import AttentionWeights, GatedDeltaWeights, ModelWeights


def explain_non_finite(executor: ReferenceExecutor, ids: Sequence[int]) -> str:
    """See ``bytebound.diagnosis.explain_non_finite``."""
    watch = FiniteWatch(executor, ids)
    slot = (len(ids) - 1) % WINDOW

    def look(place: Place, x: torch.Tensor, multiply: Multiply) -> torch.Tensor:
        out = multiply(x)
        if place == EMBEDDING:
            return out  # in_words has looked at the table
        # The other slots of a decode pass hold no row.
        rows = slice(slot, slot + 1) if watch.decoding else slice(None)
        watch.look(place, x[rows], out[rows])
        return out

    weights = executor.weights
    with AtProducts(weights, look):
        return in_words(watch, weights.embed_tokens, lambda place: _weights_of(weights, place))


def _weights_of(weights: ModelWeights, place: Place) -> dict[str, torch.Tensor]:
    if place.layer is None:
        return {"weight": weights.norm if place.op == "norm" else weights.lm_head}
    layer = weights.layers[place.layer]
    match place.op, layer.mixer:
        case "input_layernorm" | "post_attention_layernorm", _:
            return {"weight": getattr(layer, place.op)}
        case "attention", AttentionWeights() as mixer:
            return {"q_norm": mixer.q_norm, "k_norm": mixer.k_norm}
        case "gated_delta_net", GatedDeltaWeights() as mixer:
            names = ("conv1d", "A_log", "dt_bias", "norm")
            return {name: getattr(mixer, name) for name in names}
    parts = PARTS.get(place.op, (place.op,))
    found = {part: weight_at(weights, Place(place.layer, part)) for part in parts}
    tensors = {part: weight for part, weight in found.items() if weight is not None}
    return {"weight" if part == place.op else part: weight for part, weight in tensors.items()}
