"""One decoder layer, quantized matrix by matrix on the outputs of what was quantized before it.

The hidden states of all calibration windows lie in host memory and visit the device one window at
a time; each window is a sequence of its own with fresh state. Matrices that read the same input
share one Hessian:

    q, k, v  (or in_proj_qkv, in_proj_z)  ->  o_proj (out_proj)  ->  gate, up  ->  down

The layer is the reference model's; only its residual sums are repeated here, so that the mixer,
the slow part, runs once per window. Knows no file.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from bytebound.config import ModelConfig
from bytebound.reference.model import decoder_layer, mlp
from bytebound.reference.norm import rms_norm
from bytebound.reference.rotary import rotary_angles
from bytebound.reference.rows import Rows
from bytebound.reference.state import GatedDeltaState, KvCache, LayerState
from bytebound.weights import AttentionWeights, LayerWeights
from torch.nn.functional import linear

from bytebound_quant.capture import input_of
from bytebound_quant.hessian import Hessian

ATTENTION_INPUTS, ATTENTION_OUTPUT = ("q_proj", "k_proj", "v_proj"), "o_proj"
GATED_DELTA_INPUTS, GATED_DELTA_OUTPUT = ("in_proj_qkv", "in_proj_z"), "out_proj"
MLP_INPUTS, MLP_OUTPUT = ("gate_proj", "up_proj"), "down_proj"

Solve = Callable[[str, Hessian], torch.Tensor]
"""(field of the record, Hessian of its input) -> the matrix to go on with, on the device."""


class LayerJob:
    """Takes hidden states through layers, quantizing on the way where asked to.

    ``states`` [n, T, D] on the host is changed in place: a layer's input becomes its output.
    """

    def __init__(self, config: ModelConfig, states: torch.Tensor, device: torch.device) -> None:
        self.config = config
        self.states = states
        self.device = device
        self._rows = Rows(0, states.shape[1], wide=True)
        self._angles = rotary_angles(self._rows.positions(device), config)

    @torch.inference_mode()
    def quantize(self, layer: LayerWeights, wanted: Iterable[str], solve: Solve) -> LayerWeights:
        """Replace the ``wanted`` matrices of ``layer`` and advance the states through the result.

        A field that is not wanted stays as it is. Returns the layer that the states went through.
        """
        fields = frozenset(wanted)
        inputs, output = _mixer_fields(layer)
        layer = self._fit(
            layer, "mixer", inputs, fields, solve, lambda one: self._mixer_inputs(one, inputs[0])
        )
        layer = self._quantize_mixer_output(layer, output, fields, solve)
        layer = self._fit(layer, "mlp", MLP_INPUTS, fields, solve, self._normed)
        layer = self._fit(layer, "mlp", (MLP_OUTPUT,), fields, solve, self._down_inputs)
        for index, x in enumerate(self.windows()):
            self._add_mlp(index, x, layer)
        return layer

    @torch.inference_mode()
    def advance(self, layer: LayerWeights) -> None:
        """Advance the states through ``layer`` as it is, with the same bits as ``quantize``."""
        _, output = _mixer_fields(layer)
        for index, mixed in enumerate(self._mixer_inputs(layer, output)):
            self._add_mixer(index, self._window(index), mixed, layer)
            self._add_mlp(index, self._window(index), layer)

    def windows(self) -> Iterator[torch.Tensor]:
        """The states of each window [T, D], on the device."""
        for index in range(len(self.states)):
            yield self._window(index)

    def _window(self, index: int) -> torch.Tensor:
        return self.states[index].to(self.device)

    def _quantize_mixer_output(
        self, layer: LayerWeights, output: str, wanted: frozenset[str], solve: Solve
    ) -> LayerWeights:
        """The last matrix of the mixer, and the residual sum behind it; the mixer runs once."""
        mixed = [x.to("cpu") for x in self._mixer_inputs(layer, output)]

        def inputs(_: LayerWeights) -> Iterator[torch.Tensor]:
            return (x.to(self.device) for x in mixed)

        layer = self._fit(layer, "mixer", (output,), wanted, solve, inputs)
        for index, x in enumerate(self.windows()):
            self._add_mixer(index, x, mixed[index].to(self.device), layer)
        return layer

    def _fit(
        self,
        layer: LayerWeights,
        part: str,
        group: Sequence[str],
        wanted: frozenset[str],
        solve: Solve,
        inputs: Callable[[LayerWeights], Iterator[torch.Tensor]],
    ) -> LayerWeights:
        """Quantize the wanted fields of one group, which share the input."""
        names = [name for name in group if name in wanted]
        if not names:
            return layer
        record: Any = getattr(layer, part)
        moment = hessian(getattr(record, names[0]).shape[1], self.device, inputs(layer))
        for name in names:
            record = dataclasses.replace(record, **{name: solve(name, moment)})
        return dataclasses.replace(layer, **{part: record})

    def _mixer_inputs(self, layer: LayerWeights, field: str) -> Iterator[torch.Tensor]:
        """What the mixer's matrix ``field`` is multiplied with, window by window."""
        weight = getattr(layer.mixer, field)
        for x in self.windows():
            state = self._fresh_state(layer, x.dtype)
            run = partial(decoder_layer, x, layer, self.config, state, self._rows, self._angles)
            yield input_of(weight, run).contiguous()

    def _fresh_state(self, layer: LayerWeights, dtype: torch.dtype) -> LayerState:
        if isinstance(layer.mixer, AttentionWeights):
            return KvCache.empty(self.config, self._rows.count, dtype, self.device)
        return GatedDeltaState.empty(self.config, self.device)

    def _normed(self, layer: LayerWeights) -> Iterator[torch.Tensor]:
        for x in self.windows():
            yield rms_norm(x, layer.post_attention_layernorm, self.config.rms_norm_eps)

    def _down_inputs(self, layer: LayerWeights) -> Iterator[torch.Tensor]:
        for y in self._normed(layer):
            yield input_of(layer.mlp.down_proj, partial(mlp, y, layer.mlp))

    def _add_mixer(
        self, index: int, x: torch.Tensor, mixed: torch.Tensor, layer: LayerWeights
    ) -> None:
        _, output = _mixer_fields(layer)
        self.states[index] = x + linear(mixed, getattr(layer.mixer, output))

    def _add_mlp(self, index: int, x: torch.Tensor, layer: LayerWeights) -> None:
        y = rms_norm(x, layer.post_attention_layernorm, self.config.rms_norm_eps)
        self.states[index] = x + mlp(y, layer.mlp)


def hessian(features: int, device: torch.device, inputs: Iterable[torch.Tensor]) -> Hessian:
    """The Hessian over all ``inputs`` [T, features]."""
    moment = Hessian(features, device)
    for x in inputs:
        moment.add(x)
    return moment


def _mixer_fields(layer: LayerWeights) -> tuple[tuple[str, ...], str]:
    if isinstance(layer.mixer, AttentionWeights):
        return ATTENTION_INPUTS, ATTENTION_OUTPUT
    return GATED_DELTA_INPUTS, GATED_DELTA_OUTPUT
