"""One decoder layer, quantized matrix by matrix on the outputs of what was quantized before it.

The hidden states of all calibration windows lie in host memory and visit the device one window at
a time (``transfer.py``); each window is a sequence of its own with fresh state. Matrices that read
the same input share one Hessian:

    q, k, v  (or in_proj_qkv, in_proj_z)  ->  o_proj (out_proj)  ->  gate, up  ->  down

With a 16-bit run beside the quantized one, a second set of states holds what the model as it was
has at the same place. A matrix is then fitted to what its 16-bit form gives there, and the last one
of mixer and MLP also makes up for what the residual stream lacks by then.

The layer is the reference model's; only its residual sums are repeated here, so that the mixer,
the slow part, runs once per window. Knows no file.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

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
from bytebound_quant.replay import Replayed
from bytebound_quant.transfer import Transfer

ATTENTION_INPUTS, ATTENTION_OUTPUT = ("q_proj", "k_proj", "v_proj"), "o_proj"
GATED_DELTA_INPUTS, GATED_DELTA_OUTPUT = ("in_proj_qkv", "in_proj_z"), "out_proj"
MLP_INPUTS, MLP_OUTPUT = ("gate_proj", "up_proj"), "down_proj"

# Windows that a Hessian takes in at a time, by device type. One where a window on the device is the
# host's own memory, which the 16-bit run overwrites when it goes on.
TOGETHER = {"cpu": 1, "cuda": 4}

T = TypeVar("T")


class Seen(NamedTuple):
    """One window at one place of a layer, on the device."""

    x: torch.Tensor  # [T, K], what the matrix is multiplied with
    stream: torch.Tensor  # [T, D], the residual stream that its product, or a later one, joins


Inputs = Callable[["LayerJob", LayerWeights], Iterator[Seen]]
"""(whose states, through which form of the layer) -> the inputs of one group, window by window."""

Solve = Callable[[str, Hessian], torch.Tensor]
"""(field of the record, Hessian of its input) -> the matrix to go on with, on the device."""


class LayerJob:
    """Takes hidden states through layers, quantizing on the way where asked to.

    ``states`` [n, T, D] on the host is changed in place: a layer's input becomes its output. So is
    ``ideal``, a tensor of the same form for the 16-bit run; None for no such run.
    """

    def __init__(
        self,
        config: ModelConfig,
        states: torch.Tensor,
        device: torch.device,
        ideal: torch.Tensor | None = None,
        *,
        transfer: Transfer | None = None,
    ) -> None:
        self.config = config
        self.states = states
        self.device = device
        self._transfer = transfer or Transfer(device)
        self._mixed: list[torch.Tensor] = []  # on the host, one per window
        self.ideal = None
        if ideal is not None:
            self.ideal = LayerJob(config, ideal, device, transfer=self._transfer)
        self._rows = Rows(0, states.shape[1], wide=True)
        self._angles = rotary_angles(self._rows.positions(device), config)

    @torch.inference_mode()
    def quantize(self, layer: LayerWeights, wanted: Iterable[str], solve: Solve) -> LayerWeights:
        """Replace the ``wanted`` matrices of ``layer`` and advance the states through the result.

        A field that is not wanted stays as it is. Returns the layer that the states went through.
        """
        fit = _Fit(self, layer, frozenset(wanted), solve)
        inputs, output = _mixer_fields(layer)
        fit.group("mixer", inputs, lambda job, one: job._mixer_inputs(one, inputs[0]))
        # The mixer, the slow part, runs once behind its inputs, so what it gives is kept.
        for index, seen in enumerate(self._mixer_inputs(fit.layer, output)):
            self._keep_mixed(index, seen.x)
        self._release()
        fit.last(
            "mixer",
            output,
            lambda job, one: job._through_mixer(one) if job is not self else job._kept_mixed(),
        )
        for index, (mixed, x) in enumerate(self._kept_mixed()):
            self._add_mixer(index, x, mixed, fit.layer)
        fit.group("mlp", MLP_INPUTS, LayerJob._normed)
        self._release()
        fit.last(
            "mlp",
            MLP_OUTPUT,
            lambda job, one: job._through_mlp(one) if job is not self else job._down_inputs(one),
        )
        for index, x in enumerate(self.windows()):
            self._add_mlp(index, x, fit.layer)
        self._release()
        return fit.layer

    @torch.inference_mode()
    def advance(self, layer: LayerWeights, ideal: LayerWeights | None = None) -> None:
        """Advance the states through ``layer`` as it is, with the same bits as ``quantize``.

        ``ideal`` is the layer as it was, for the 16-bit run where there is one.
        """
        if self.ideal is not None and ideal is not None:
            self.ideal.advance(ideal)
        _, output = _mixer_fields(layer)
        for index, (mixed, x) in enumerate(self._mixer_inputs(layer, output)):
            self._add_mlp(index, _behind_mixer(x, mixed, layer), layer)
        self._release()

    def windows(self) -> Iterator[torch.Tensor]:
        """The states of each window [T, D], on the device."""
        for index in range(len(self.states)):
            yield self._window(index)

    def _window(self, index: int) -> torch.Tensor:
        return self._transfer.load(self.states[index])

    def _release(self) -> None:
        """All states are on the host, and the device's unused memory is free for others."""
        self._transfer.finish()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _mixer_inputs(self, layer: LayerWeights, field: str) -> Iterator[Seen]:
        """What the mixer's matrix ``field`` is multiplied with, window by window."""
        weight = getattr(layer.mixer, field)

        def one_window(x: torch.Tensor) -> torch.Tensor:
            state = self._fresh_state(layer, x.dtype)
            run = partial(decoder_layer, x, layer, self.config, state, self._rows, self._angles)
            return input_of(weight, run).contiguous()

        mixer = Replayed(one_window)
        for x in self.windows():
            found = mixer(x)
            yield Seen(found.clone() if found.is_cuda else found, x)

    def _fresh_state(self, layer: LayerWeights, dtype: torch.dtype) -> LayerState:
        if isinstance(layer.mixer, AttentionWeights):
            return KvCache.empty(self.config, self._rows.count, dtype, self.device)
        return GatedDeltaState.empty(self.config, self.device)

    def _keep_mixed(self, index: int, mixed: torch.Tensor) -> None:
        """Keep one window's product of the mixer on the host."""
        if index == len(self._mixed):
            self._mixed.append(torch.empty_like(mixed, device="cpu"))
        elif self._mixed[index].shape != mixed.shape:  # of the other kind of layer
            self._mixed[index] = torch.empty_like(mixed, device="cpu")
        self._transfer.store(self._mixed[index], mixed)

    def _kept_mixed(self) -> Iterator[Seen]:
        for index, x in enumerate(self.windows()):
            yield Seen(self._transfer.load(self._mixed[index]), x)

    def _normed(self, layer: LayerWeights) -> Iterator[Seen]:
        for x in self.windows():
            yield Seen(rms_norm(x, layer.post_attention_layernorm, self.config.rms_norm_eps), x)

    def _down_inputs(self, layer: LayerWeights) -> Iterator[Seen]:
        for y, x in self._normed(layer):
            yield Seen(input_of(layer.mlp.down_proj, partial(mlp, y, layer.mlp)), x)

    def _through_mixer(self, layer: LayerWeights) -> Iterator[Seen]:
        """What the mixer's last matrix is multiplied with.

        A window's states go behind the mixer when the next one, or the end, is asked for.
        """
        _, output = _mixer_fields(layer)
        for index, seen in enumerate(self._mixer_inputs(layer, output)):
            yield seen
            self._add_mixer(index, seen.stream, seen.x, layer)

    def _through_mlp(self, layer: LayerWeights) -> Iterator[Seen]:
        """The same for the MLP's last matrix."""
        for index, seen in enumerate(self._down_inputs(layer)):
            yield seen
            self._put(index, seen.stream + linear(seen.x, layer.mlp.down_proj))

    def _add_mixer(
        self, index: int, x: torch.Tensor, mixed: torch.Tensor, layer: LayerWeights
    ) -> None:
        self._put(index, _behind_mixer(x, mixed, layer))

    def _add_mlp(self, index: int, x: torch.Tensor, layer: LayerWeights) -> None:
        y = rms_norm(x, layer.post_attention_layernorm, self.config.rms_norm_eps)
        self._put(index, x + mlp(y, layer.mlp))

    def _put(self, index: int, x: torch.Tensor) -> None:
        self._transfer.store(self.states[index], x)


class _Fit:
    """A layer on its way: ``layer`` with what is quantized so far, beside the layer as it was."""

    def __init__(
        self, job: LayerJob, layer: LayerWeights, wanted: frozenset[str], solve: Solve
    ) -> None:
        self.layer = layer
        self._job = job
        self._original = layer
        self._wanted = wanted
        self._solve = solve

    def group(self, part: str, group: Sequence[str], inputs: Inputs) -> None:
        """Quantize the wanted fields of one group, which share the input."""
        fields = [name for name in group if name in self._wanted]
        if fields:
            weight = getattr(getattr(self.layer, part), fields[0])
            self._replace(part, fields, self._moment(weight, inputs, last=False))

    def last(self, part: str, field: str, inputs: Inputs) -> None:
        """Quantize the field whose product is added to the residual stream, if it is wanted.

        Either way the 16-bit run, whose ``inputs`` advance it, goes on behind it.
        """
        if field in self._wanted:
            weight = getattr(getattr(self.layer, part), field)
            self._replace(part, [field], self._moment(weight, inputs, last=True))
        elif self._job.ideal is not None:
            for _ in inputs(self._job.ideal, self._original):
                pass

    def _replace(self, part: str, fields: Sequence[str], moment: Hessian) -> None:
        record: Any = getattr(self.layer, part)
        for field in fields:
            record = dataclasses.replace(record, **{field: self._solve(field, moment)})
        self.layer = dataclasses.replace(self.layer, **{part: record})

    def _moment(self, weight: torch.Tensor, inputs: Inputs, *, last: bool) -> Hessian:
        job, ideal = self._job, self._job.ideal
        outputs, features = weight.shape
        moment = Hessian(
            features,
            job.device,
            drift=ideal is not None,
            outputs=outputs if last and ideal is not None else 0,
        )
        together = TOGETHER.get(job.device.type, 1)
        if ideal is None:
            for batch in _batches((seen.x for seen in inputs(job, self.layer)), together):
                moment.add(_joined(batch))
            return moment
        # strict: the 16-bit side is asked for its end, which takes its last window on.
        both = zip(inputs(job, self.layer), inputs(ideal, self._original), strict=True)
        for pairs in _batches(both, together):
            lacks = [best.stream.float() - seen.stream.float() for seen, best in pairs if last]
            moment.add(
                _joined([seen.x for seen, _ in pairs]),
                _joined([best.x for _, best in pairs]),
                _joined(lacks) if last else None,
            )
        return moment


def _batches(items: Iterable[T], count: int) -> Iterator[list[T]]:
    """``items``, ``count`` at a time."""
    rest = iter(items)
    while batch := list(islice(rest, count)):
        yield batch


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _behind_mixer(x: torch.Tensor, mixed: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
    """The residual stream behind the mixer, from the input of its last matrix."""
    _, output = _mixer_fields(layer)
    return x + linear(mixed, getattr(layer.mixer, output))


def _mixer_fields(layer: LayerWeights) -> tuple[tuple[str, ...], str]:
    if isinstance(layer.mixer, AttentionWeights):
        return ATTENTION_INPUTS, ATTENTION_OUTPUT
    return GATED_DELTA_INPUTS, GATED_DELTA_OUTPUT
