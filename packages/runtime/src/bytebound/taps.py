"""Where the products of a model happen, and what lies between two of them.

Every op of a layer meets a product: its input is what the op before gave, its output what the op
behind takes. So whoever sees the products sees every op, on either backend, and neither backend
holds a hook: ``reference/taps.py`` and ``cuda/taps.py`` show them from outside.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

HEAD = "lm_head"
# The op whose output a product takes, by the fused matrix. Both matrices of a Gated DeltaNet layer
# take the same input, so the norm before them is named by whichever comes first.
FEEDS = {
    "qkv": "input_layernorm",
    "o_proj": "attention",
    "in_proj": "input_layernorm",
    "gates": "input_layernorm",
    "out_proj": "gated_delta_net",
    "gate_up": "post_attention_layernorm",
    "down_proj": "gate_up",
    HEAD: "norm",
}
# Where the reference has several matrices in the place of one: theirs, in the order of its rows.
PARTS = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o_proj": ("o_proj",),
    "in_proj": ("in_proj_qkv", "in_proj_z"),
    "gates": ("in_proj_a", "in_proj_b"),
    "out_proj": ("out_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down_proj": ("down_proj",),
    HEAD: (HEAD,),
}
FUSED = {part: matrix for matrix, parts in PARTS.items() for part in parts}


@dataclass(frozen=True, slots=True)
class Place:
    """An op of the model by its layer, and its name there."""

    layer: int | None  # None: of the model, not of a layer
    op: str

    def __str__(self) -> str:
        return self.op if self.layer is None else f"layer {self.layer} {self.op}"

    def feed(self) -> "Place":
        """The op whose output this product takes."""
        return Place(self.layer, FEEDS[FUSED.get(self.op, self.op)])


EMBEDDING = Place(None, "embed_tokens")


@dataclass(frozen=True, slots=True)
class Product:
    """A product that has run."""

    place: Place
    x: torch.Tensor  # [T, K]
    residual: torch.Tensor | None  # [T, N] before the product was added to it
    out: torch.Tensor  # [T, N]


Tap = Callable[[Product], None]
