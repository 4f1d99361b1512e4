"""A pass of one to eight rows as a few long kernels: the weight stream.

Between two attention layers everything is one launch of ``bytebound_kernels.weight_stream``: its
blocks read weights without a pause and hand each other the activations, each of which has its own
place in ``Activations`` for the whole pass:

    embedding -> residual
    [ norm, in_proj, gates, delta, out_proj, norm, gate_up, down ] x 3, norm, qkv      one launch
    attention                                                                          one launch
    [ o_proj, norm, gate_up, down, ( norm, in_proj, ... ) x 3, norm, qkv ]             one launch
    ...
    [ o_proj, ..., norm, lm_head ] -> logits

The arithmetic is that of ``step.py``, bit for bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import bytebound_kernels as bk
import torch
from bytebound_kernels import GdnRows

from bytebound.config import ModelConfig
from bytebound.cuda.buffers import split_qkv
from bytebound.cuda.matrices import SWIGLU_SCALE, DenseMatrix, Matrix, PackedMatrix
from bytebound.cuda.state import MAX_ROWS, GatedDeltaState, KvCache, SequenceState
from bytebound.cuda.step import Step
from bytebound.cuda.weights import AttentionWeights, GatedDeltaWeights, LayerWeights, ModelWeights

ALIGNMENT = 256  # bytes, of each activation


@dataclass(frozen=True, slots=True)
class Activations:
    """What the layers of a pass hand over, each at a place of its own.

    Every bit is set before a pass, which says that nothing has arrived. Rows come outermost, so
    that those of a pass are adjacent.
    """

    arena: torch.Tensor  # uint8 [MAX_ROWS, bytes]
    projected: torch.Tensor  # [MAX_ROWS, GDN layers, C + HV * V]
    gates: torch.Tensor  # [MAX_ROWS, GDN layers, 2 * HV]
    mixed: torch.Tensor  # [MAX_ROWS, GDN layers, HV * V]
    inner: torch.Tensor  # [MAX_ROWS, L, F]
    middle: torch.Tensor  # float32 [MAX_ROWS, L, D]: residual behind the mixer
    behind: torch.Tensor  # float32 [MAX_ROWS, L, D]: residual behind the MLP

    @classmethod
    def empty(cls, config: ModelConfig, device: torch.device) -> "Activations":
        """Allocate for passes of up to ``MAX_ROWS`` rows."""
        linear, layers = config.num_linear_layers, len(config.layer_types)
        heads = config.linear_num_value_heads
        half, full = torch.float16, torch.float32
        shapes = {
            "projected": (linear, config.conv_channels + config.value_dim, half),
            "gates": (linear, 2 * heads, half),
            "mixed": (linear, config.value_dim, half),
            "inner": (layers, config.intermediate_size, half),
            "middle": (layers, config.hidden_size, full),
            "behind": (layers, config.hidden_size, full),
        }
        sizes = [
            count * width * dtype.itemsize + -count * width * dtype.itemsize % ALIGNMENT
            for count, width, dtype in shapes.values()
        ]
        arena = torch.empty(MAX_ROWS, sum(sizes), dtype=torch.uint8, device=device)
        parts = {}
        for (name, (count, width, dtype)), part in zip(
            shapes.items(), torch.split(arena, sizes, dim=1), strict=True
        ):
            used = part[:, : count * width * dtype.itemsize].view(dtype)
            parts[name] = used.unflatten(1, (count, width))
        return cls(arena, **parts)


@dataclass(frozen=True, slots=True)
class Segment:
    """What one launch does, and the attention layer that follows it."""

    ops: tuple[bk.StreamOp, ...]
    attention: int | None  # a layer; None behind the last


@dataclass(frozen=True, slots=True)
class StreamStep(Step):
    """``Step`` whose ``verify`` is the weight stream; single layers run as before."""

    activations: Activations
    segments: tuple[Segment, ...]
    workspace: torch.Tensor  # uint8, all bits set between launches

    @classmethod
    def over(cls, step: Step, weights: ModelWeights, state: SequenceState) -> "StreamStep":
        """Plan the stream over addresses that never change."""
        device = weights.device
        activations = Activations.empty(step.config, device)
        size = bk.weight_stream_workspace_bytes(device.index or 0)
        return cls(
            **{field.name: getattr(step, field.name) for field in fields(Step)},
            activations=activations,
            segments=tuple(_segments(step, weights, state, activations)),
            workspace=torch.full((size,), 0xFF, dtype=torch.uint8, device=device),
        )

    def verify(self, weights: ModelWeights, state: SequenceState, rows: int) -> None:
        """As ``Step.verify``."""
        buffers, activations = self.buffers, self.activations
        activations.arena[:rows].fill_(0xFF)
        bk.embedding_gather(buffers.ids[:rows], weights.embed_tokens, out=buffers.residual[:rows])
        for segment in self.segments:
            bk.weight_stream(segment.ops, rows=rows, workspace=self.workspace)
            if segment.attention is not None:
                mixer = weights.layers[segment.attention].mixer
                kv = state.layers[segment.attention]
                if not isinstance(mixer, AttentionWeights) or not isinstance(kv, KvCache):
                    raise TypeError(f"layer {segment.attention} is no attention layer")
                self._attend(mixer, kv, rows)
        state.move_on(activations.projected[:rows], activations.gates[:rows])

    def _attend(self, mixer: AttentionWeights, kv: KvCache, rows: int) -> None:
        bk.attention_decode(
            *split_qkv(self.buffers.qkv[:rows], self.config),
            mixer.q_norm,
            mixer.k_norm,
            self.inv_freq,
            self.position,
            kv.k,
            kv.v,
            out=self.buffers.attended[:rows],
            workspace=self.workspaces.attention,
            k_scale=kv.k_scale,
            v_scale=kv.v_scale,
            eps=self.config.rms_norm_eps,
        )


def _segments(
    step: Step, weights: ModelWeights, state: SequenceState, activations: Activations
) -> Iterator[Segment]:
    buffers, eps = step.buffers, step.config.rms_norm_eps
    x = buffers.residual
    ops: list[bk.StreamOp] = []
    linear = 0
    for index, layer in enumerate(weights.layers):
        middle, behind = activations.middle[:, index], activations.behind[:, index]
        ops.append(bk.StreamNorm(x, layer.input_layernorm, eps=eps))
        if isinstance(layer.mixer, AttentionWeights):
            ops.append(bk.StreamProduct(_weight(layer.mixer.qkv), buffers.qkv))
            yield Segment(tuple(ops), index)
            ops = [bk.StreamProduct(_weight(layer.mixer.o_proj), middle, buffers.attended, x)]
        else:
            delta = state.layers[index]
            if not isinstance(delta, GatedDeltaState):
                raise TypeError(f"layer {index} has no recurrent state")
            projected, gates = activations.projected[:, linear], activations.gates[:, linear]
            step_op = _gated_delta(step, layer.mixer, delta, state, activations, linear)
            # The replay needs nothing of this pass: it runs while blocks wait for the norm's rows.
            ops.insert(-1, bk.StreamReplay(step_op))
            # Gates behind the large product: few warps have one, and the others would wait for them.
            ops.append(bk.StreamProduct(_weight(layer.mixer.in_proj), projected))
            ops.append(bk.StreamGates(_dense(layer.mixer.gates), gates))
            ops.append(step_op)
            mixed = activations.mixed[:, linear]
            ops.append(bk.StreamProduct(_weight(layer.mixer.out_proj), middle, mixed, x))
            linear += 1
        ops += _mlp(layer, middle, behind, activations.inner[:, index], eps)
        x = behind
    ops.append(bk.StreamNorm(x, weights.norm, buffers.hidden, eps))
    ops.append(bk.StreamProduct(_weight(weights.lm_head), buffers.logits))
    yield Segment(tuple(ops), None)


def _gated_delta(
    step: Step,
    weights: GatedDeltaWeights,
    delta: GatedDeltaState,
    state: SequenceState,
    activations: Activations,
    linear: int,
) -> bk.StreamGatedDelta:
    config = step.config
    projected, gates = activations.projected[:, linear], activations.gates[:, linear]
    qkv, z = torch.split(projected, [config.conv_channels, config.value_dim], dim=-1)
    a, b = gates.chunk(2, dim=-1)
    return bk.StreamGatedDelta(
        GdnRows(qkv, a, b),
        z,
        weights.constants,
        delta.settled,
        delta.pending,
        state.num_accepted,
        activations.mixed[:, linear],
        config.rms_norm_eps,
    )


def _mlp(
    layer: LayerWeights,
    middle: torch.Tensor,
    behind: torch.Tensor,
    inner: torch.Tensor,
    eps: float,
) -> list[bk.StreamOp]:
    scale = SWIGLU_SCALE[inner.dtype]
    return [
        bk.StreamNorm(middle, layer.post_attention_layernorm, eps=eps),
        bk.StreamProduct(_weight(layer.mlp.gate_up), inner, scale=scale),
        bk.StreamProduct(_weight(layer.mlp.down_proj), behind, inner, middle, 1 / scale),
    ]


def _weight(matrix: Matrix) -> bk.PackedW4:
    if not isinstance(matrix, PackedMatrix):
        raise TypeError(f"a weight stream has no product of a {type(matrix).__name__}")
    return matrix.weight


def _dense(matrix: Matrix) -> torch.Tensor:
    if not isinstance(matrix, DenseMatrix):
        raise TypeError(f"a weight stream has no gates of a {type(matrix).__name__}")
    return matrix.weight
