"""A pass of one to eight rows as one long kernel: the weight stream.

From the ids to the logits everything is one launch of ``bytebound_kernels.weight_stream``: its
blocks read weights without a pause and hand each other the activations, each of which has its own
place in ``Activations`` for the whole pass:

    embedding
    [ replay, norm, in_proj, gates, delta, out_proj, norm, gate_up, down ] x 3
    [ norm, qkv, attention, o_proj, norm, gate_up, down ]
    ...
    norm, lm_head -> logits

The arithmetic is that of ``step.py``, bit for bit.
"""

from dataclasses import dataclass, fields

import bytebound_kernels as bk
import torch

from bytebound.config import ModelConfig
from bytebound.cuda.buffers import split_qkv
from bytebound.cuda.matrices import SWIGLU_SCALE, DenseMatrix, Matrix, PackedMatrix
from bytebound.cuda.state import (
    MAX_ROWS,
    GatedDeltaState,
    KvCache,
    SequenceState,
    updates_width,
)
from bytebound.cuda.step import Step, delta_rows
from bytebound.cuda.weights import AttentionWeights, GatedDeltaWeights, LayerWeights, ModelWeights

ALIGNMENT = 256  # bytes, of each activation
DELTA_LAYER_OPS = 9
ATTENTION_LAYER_OPS = 7
OTHER_OPS = 3  # embedding, the last norm, head


@dataclass(frozen=True, slots=True)
class Activations:
    """What the layers of a pass hand over, each at a place of its own.

    Every bit is set before a pass, which says that nothing has arrived. Counters come first, then
    the rows, so that all of a pass is adjacent.
    """

    memory: torch.Tensor  # uint8: all of the following
    arrived: torch.Tensor  # int32 [attention layers, 1]: counters
    arena: torch.Tensor  # uint8 [MAX_ROWS, bytes]: the rows, as follows
    embedded: torch.Tensor  # float32 [MAX_ROWS, 1, D]
    qkv: torch.Tensor  # [MAX_ROWS, attention layers, NH * 2 * DH + 2 * NKV * DH]
    attended: torch.Tensor  # [MAX_ROWS, attention layers, NH * DH]
    projected: torch.Tensor  # [MAX_ROWS, GDN layers, C + HV * V]
    gates: torch.Tensor  # [MAX_ROWS, GDN layers, 2 * HV]
    mixed: torch.Tensor  # [MAX_ROWS, GDN layers, HV * V]
    inner: torch.Tensor  # [MAX_ROWS, L, F]
    middle: torch.Tensor  # float32 [MAX_ROWS, L, D]: residual behind the mixer
    behind: torch.Tensor  # float32 [MAX_ROWS, L, D]: residual behind the MLP

    @classmethod
    def empty(cls, config: ModelConfig, device: torch.device) -> "Activations":
        """Allocate for passes of up to ``MAX_ROWS`` rows."""
        places = _places(config)
        counters = config.num_attention_layers
        memory = torch.empty(activation_bytes(config), dtype=torch.uint8, device=device)
        arrived = memory[: 4 * counters].view(torch.int32).view(counters, 1)
        arena = memory[_counter_bytes(config) :].view(MAX_ROWS, row_bytes(config))
        parts = {}
        for place, part in zip(
            places, torch.split(arena, [place.room for place in places], dim=1), strict=True
        ):
            used = part[:, : place.num_bytes].view(place.dtype)
            parts[place.name] = used.view(MAX_ROWS, place.layers, place.width)
        return cls(memory, arrived, arena, **parts)

    def mark(self, rows: int) -> None:
        """Set every bit of the counters and of the first ``rows`` rows."""
        end = self.memory.shape[0] - (MAX_ROWS - rows) * self.arena.shape[1]
        self.memory[:end].fill_(0xFF)


@dataclass(frozen=True, slots=True)
class _Place:
    """One activation of all layers, in one row."""

    name: str  # a field of Activations
    layers: int
    width: int
    dtype: torch.dtype = torch.float16

    @property
    def num_bytes(self) -> int:
        return self.layers * self.width * self.dtype.itemsize

    @property
    def room(self) -> int:
        return self.num_bytes + -self.num_bytes % ALIGNMENT


def _places(config: ModelConfig) -> tuple[_Place, ...]:
    linear, layers = config.num_linear_layers, len(config.layer_types)
    attention = config.num_attention_layers
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    return (
        _Place("embedded", 1, config.hidden_size, torch.float32),
        _Place("qkv", attention, 2 * queries + 2 * keys),
        _Place("attended", attention, queries),
        _Place("projected", linear, config.conv_channels + config.value_dim),
        _Place("gates", linear, 2 * config.linear_num_value_heads),
        _Place("mixed", linear, config.value_dim),
        _Place("inner", layers, config.intermediate_size),
        _Place("middle", layers, config.hidden_size, torch.float32),
        _Place("behind", layers, config.hidden_size, torch.float32),
    )


def row_bytes(config: ModelConfig) -> int:
    """Bytes of one row of ``Activations.arena``."""
    return sum(place.room for place in _places(config))


def _counter_bytes(config: ModelConfig) -> int:
    used = 4 * config.num_attention_layers
    return used + -used % ALIGNMENT


def activation_bytes(config: ModelConfig) -> int:
    """Bytes of ``Activations.memory``."""
    return _counter_bytes(config) + MAX_ROWS * row_bytes(config)


def num_ops(config: ModelConfig) -> int:
    """Count the ops of a pass."""
    return (
        DELTA_LAYER_OPS * config.num_linear_layers
        + ATTENTION_LAYER_OPS * config.num_attention_layers
        + OTHER_OPS
    )


@dataclass(frozen=True, slots=True)
class StreamStep(Step):
    """``Step`` whose ``verify`` is the weight stream."""

    activations: Activations
    updates: torch.Tensor  # float32 [MAX_ROWS, GDN layers, W]: what the next pass replays
    program: bk.StreamProgram
    workspace: torch.Tensor  # uint8, all bits set between launches

    @classmethod
    def over(cls, step: Step, weights: ModelWeights, state: SequenceState) -> "StreamStep":
        """Plan the stream over the buffers of ``step``, ``weights`` and ``state``, once for all.

        Raises:
            TypeError: a matrix is not in the form that a stream reads (``stream_limits.py``).
        """
        device = weights.device
        config = step.config
        activations = Activations.empty(config, device)
        updates = torch.zeros(
            MAX_ROWS, config.num_linear_layers, updates_width(config), device=device
        )
        size = bk.weight_stream_workspace_bytes(device.index or 0)
        ops = _Planner(step, state, activations, updates).ops(weights)
        table = torch.empty(
            bk.weight_stream_table_bytes(len(ops)), dtype=torch.uint8, device=device
        )
        return cls(
            **{field.name: getattr(step, field.name) for field in fields(Step)},
            activations=activations,
            updates=updates,
            program=bk.StreamProgram(ops, table=table),
            workspace=torch.full((size,), 0xFF, dtype=torch.uint8, device=device),
        )

    def verify(
        self, weights: ModelWeights, state: SequenceState, rows: int, pending_rows: int = MAX_ROWS
    ) -> None:
        """As ``Step.verify``, of the weights and the state that the stream was planned over."""
        self._stream(state, rows)

    def advance(self, weights: ModelWeights, state: SequenceState, ids: torch.Tensor) -> None:
        """As ``Step.advance``, but that the next pass takes the row into the state."""
        self.buffers.ids[: ids.shape[0]].copy_(ids)
        self._stream(state, ids.shape[0])
        state.num_accepted.fill_(1)
        state.position.add_(1)

    def _stream(self, state: SequenceState, rows: int) -> None:
        activations = self.activations
        activations.mark(rows)
        bk.weight_stream(self.program, rows=rows, workspace=self.workspace)
        state.move_on(activations.projected[:rows], self.updates[:rows])


class _Planner:
    """Makes the ops of all launches over addresses that never change."""

    def __init__(
        self, step: Step, state: SequenceState, activations: Activations, updates: torch.Tensor
    ) -> None:
        self._step = step
        self._state = state
        self._activations = activations
        self._updates = updates
        self._eps = step.config.rms_norm_eps

    def ops(self, weights: ModelWeights) -> list[bk.StreamOp]:
        buffers, activations = self._step.buffers, self._activations
        x = activations.embedded[:, 0]
        ops: list[bk.StreamOp] = [bk.StreamEmbedding(buffers.ids, weights.embed_tokens, x)]
        linear = attention = 0
        for index, layer in enumerate(weights.layers):
            middle, behind = activations.middle[:, index], activations.behind[:, index]
            norm = bk.StreamNorm(x, layer.input_layernorm, eps=self._eps)
            match layer.mixer, self._state.layers[index]:
                case AttentionWeights() as mixer, KvCache() as kv:
                    ops += self._attention(norm, mixer, kv, attention)
                    mixed, mixed_proj = activations.attended[:, attention], mixer.o_proj
                    attention += 1
                case GatedDeltaWeights() as mixer, GatedDeltaState() as delta:
                    ops += self._gated_delta_net(norm, mixer, delta, linear)
                    mixed, mixed_proj = activations.mixed[:, linear], mixer.out_proj
                    linear += 1
                case mixer, other:
                    raise TypeError(f"{type(mixer).__name__} with {type(other).__name__}")
            ops.append(bk.StreamProduct(_packed(mixed_proj), middle, mixed, x))
            ops += self._mlp(layer, middle, behind, activations.inner[:, index])
            x = behind
        ops.append(bk.StreamNorm(x, weights.norm, buffers.hidden, self._eps))
        ops.append(bk.StreamProduct(_packed(weights.lm_head), buffers.logits))
        return ops

    def _attention(
        self, norm: bk.StreamNorm, weights: AttentionWeights, kv: KvCache, attention: int
    ) -> list[bk.StreamOp]:
        activations, step = self._activations, self._step
        qkv = activations.qkv[:, attention]
        return [
            norm,
            bk.StreamProduct(_packed(weights.qkv), qkv),
            bk.StreamAttention(
                *split_qkv(qkv, step.config),
                weights.q_norm,
                weights.k_norm,
                step.inv_freq,
                step.position,
                kv.k,
                kv.v,
                step.workspaces.attention,
                activations.arrived[attention],
                activations.attended[:, attention],
                kv.k_scale,
                kv.v_scale,
                self._eps,
            ),
        ]

    def _gated_delta_net(
        self, norm: bk.StreamNorm, weights: GatedDeltaWeights, state: GatedDeltaState, linear: int
    ) -> list[bk.StreamOp]:
        activations = self._activations
        projected, gates = activations.projected[:, linear], activations.gates[:, linear]
        current, z = delta_rows(projected, gates, self._step.config)
        delta = bk.StreamGatedDelta(
            current,
            z,
            weights.constants,
            state.settled,
            state.pending,
            self._state.num_accepted,
            activations.mixed[:, linear],
            self._updates[:, linear],
            self._eps,
        )
        return [
            # It needs nothing of this pass: it runs while blocks wait for the norm's rows.
            bk.StreamReplay(delta),
            norm,
            # Before the gates: few warps have one, and the others would wait for them.
            bk.StreamProduct(_packed(weights.in_proj), projected),
            bk.StreamGates(_dense(weights.gates), gates),
            delta,
        ]

    def _mlp(
        self, layer: LayerWeights, middle: torch.Tensor, behind: torch.Tensor, inner: torch.Tensor
    ) -> list[bk.StreamOp]:
        scale = SWIGLU_SCALE[inner.dtype]
        return [
            bk.StreamNorm(middle, layer.post_attention_layernorm, eps=self._eps),
            bk.StreamProduct(_packed(layer.mlp.gate_up), inner, scale=scale),
            bk.StreamProduct(_packed(layer.mlp.down_proj), behind, inner, middle, 1 / scale),
        ]


def _packed(matrix: Matrix) -> bk.PackedW4:
    if not isinstance(matrix, PackedMatrix):
        raise TypeError(f"a weight stream has no product of a {type(matrix).__name__}")
    return matrix.weight


def _dense(matrix: Matrix) -> torch.Tensor:
    if not isinstance(matrix, DenseMatrix):
        raise TypeError(f"a weight stream has no gates of a {type(matrix).__name__}")
    return matrix.weight
