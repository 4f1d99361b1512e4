"""The CUDA backend's part of ``bytebound.diagnosis``."""

from collections.abc import Sequence

import torch

from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.pairing import values_of
from bytebound.cuda.taps import matrix_at, tapping
from bytebound.cuda.weights import AttentionWeights, GatedDeltaWeights, ModelWeights
from bytebound.diagnosis import FiniteWatch, in_words
from bytebound.taps import PARTS, Place


@torch.inference_mode()
def explain_non_finite(executor: CudaExecutor, ids: Sequence[int]) -> str:
    """See ``bytebound.diagnosis.explain_non_finite``. Passes run op by op."""
    watch = FiniteWatch(executor, ids)
    weights = executor.weights
    with tapping(executor, lambda one: watch.look(one.place, one.x, one.out)):
        return in_words(watch, weights.embed_tokens, lambda place: _weights_of(weights, place))


def _weights_of(weights: ModelWeights, place: Place) -> dict[str, torch.Tensor]:
    matrix = matrix_at(weights, place)
    if matrix is not None:
        values = values_of(matrix)
        names = PARTS[place.op] if len(values) > 1 else ("weight",)
        return dict(zip(names, values, strict=True))
    if place.layer is None:
        return {"weight": weights.norm}
    layer = weights.layers[place.layer]
    match place.op, layer.mixer:
        case "attention", AttentionWeights() as mixer:
            return {"q_norm": mixer.q_norm, "k_norm": mixer.k_norm}
        case "gated_delta_net", GatedDeltaWeights() as mixer:
            return dict(mixer.constants._asdict())
    return {"weight": getattr(layer, place.op)}
