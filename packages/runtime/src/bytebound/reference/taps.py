"""Shows the products of the reference model to somebody, without a hook in the reference model.

Every product with a weight goes through ``torch.nn.functional.linear``, and the embedding is an
index into its table. A mode of torch sees those calls and knows a weight by its identity.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from bytebound.taps import EMBEDDING, FUSED, HEAD, Place
from bytebound.weights import ModelWeights, iter_tensors

Multiply = Callable[[torch.Tensor], torch.Tensor]
AtProduct = Callable[[Place, torch.Tensor, Multiply], torch.Tensor]


class AtProducts(TorchFunctionMode):
    """Lets ``at_product(place, x, multiply)`` take the place of every product in a ``with`` block.

    ``multiply(x)`` is the product itself, and what ``at_product`` returns is what the model goes on
    with: a function that returns ``multiply(x)`` only looks on. Places have the names of the fields
    in ``bytebound.weights``. The embedding counts as a product of ids [T].
    """

    def __init__(self, weights: ModelWeights, at_product: AtProduct) -> None:
        super().__init__()
        self._at_product = at_product
        self._table = weights.embed_tokens
        self._places = {id(weights.lm_head): Place(None, HEAD)}
        for index, layer in enumerate(weights.layers):
            for path, tensor in iter_tensors(layer):
                name = path.rpartition(".")[2]
                if name in FUSED:
                    self._places[id(tensor)] = Place(index, name)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.__getitem__ and args[0] is self._table:
            return self._at_product(EMBEDDING, args[1], lambda ids: self._table[ids])
        place = self._places.get(id(args[1])) if func is linear else None
        if place is None:
            return func(*args, **(kwargs or {}))
        weight = args[1]
        return self._at_product(place, args[0], lambda x: linear(x, weight))


def weight_at(weights: ModelWeights, place: Place) -> torch.Tensor | None:
    """The matrix of that name, [N, K]; None where the op has none."""
    if place.layer is None:
        return weights.lm_head if place.op == HEAD else None
    for path, tensor in iter_tensors(weights.layers[place.layer]):
        if path.rpartition(".")[2] == place.op:
            return tensor
    return None
