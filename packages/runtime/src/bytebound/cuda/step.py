"""A pass of one to eight rows: of decoding, of guesses to verify, of a draft, of a short prompt.

Every op gives a row the same bits whatever rows come with it, so a guess that stands has the very
logits that plain decoding would have had. Nothing here allocates, waits or asks for a value: the
ids, the position and the number of accepted rows are read on the device, so that a captured pass
serves every position.
"""

from dataclasses import dataclass

import bytebound_kernels as bk
import torch
from bytebound_kernels import GdnRows

from bytebound.config import ModelConfig
from bytebound.cuda.buffers import Buffers, split_qkv
from bytebound.cuda.matrices import SWIGLU_SCALE, Workspaces
from bytebound.cuda.state import MAX_ROWS, GatedDeltaState, KvCache, LayerState, SequenceState
from bytebound.cuda.weights import (
    AttentionWeights,
    GatedDeltaWeights,
    LayerWeights,
    MlpWeights,
    ModelWeights,
)


@dataclass(frozen=True, slots=True)
class Step:
    """What the layers of a pass share."""

    config: ModelConfig
    buffers: Buffers
    workspaces: Workspaces
    inv_freq: torch.Tensor  # float32 [rotary_dim / 2]
    position: torch.Tensor  # int32 [1]: of row 0

    def verify(
        self, weights: ModelWeights, state: SequenceState, rows: int, pending_rows: int = MAX_ROWS
    ) -> None:
        """Ids in ``buffers.ids`` to ``buffers.hidden`` and ``buffers.logits``.

        First the accepted rows of the pass before, which had at most ``pending_rows``, are taken
        into the state; then this one's rows become the pending ones, none of them accepted.
        """
        self._pass(weights, state, self.buffers.ids[:rows], pending_rows)
        state.accept_none()

    def advance(self, weights: ModelWeights, state: SequenceState, ids: torch.Tensor) -> None:
        """As ``verify`` of ``ids`` [1], with the same bits, accepted whatever comes.

        So the state takes the row in at once, and moves on to the next position. No row of the pass
        before may be pending.
        """
        self._pass(weights, state, ids, 0)
        state.position.add_(1)

    def read(self, weights: ModelWeights, state: SequenceState, ids: torch.Tensor) -> None:
        """Rows of a prompt, ``ids`` [R], to ``buffers.hidden``: as ``advance``, without logits."""
        self._hidden(weights, state, ids, 0)
        state.position.add_(ids.shape[0])

    def _pass(
        self, weights: ModelWeights, state: SequenceState, ids: torch.Tensor, pending_rows: int
    ) -> None:
        hidden = self._hidden(weights, state, ids, pending_rows)
        logits = self.buffers.logits[: ids.shape[0]]
        weights.lm_head.matvec(hidden, logits, self.workspaces)

    def _hidden(
        self, weights: ModelWeights, state: SequenceState, ids: torch.Tensor, pending_rows: int
    ) -> torch.Tensor:
        buffers, rows = self.buffers, ids.shape[0]
        x = buffers.residual[:rows]
        bk.embedding_gather(ids, weights.embed_tokens, out=x)
        for layer, layer_state in zip(weights.layers, state.layers, strict=True):
            self.layer(x, layer, layer_state, state.num_accepted, pending_rows)
        hidden = buffers.hidden[:rows]
        self.norm(x, weights.norm, hidden)
        return hidden

    def layer(
        self,
        x: torch.Tensor,
        weights: LayerWeights,
        state: LayerState,
        num_accepted: torch.Tensor | None = None,
        pending_rows: int = MAX_ROWS,
    ) -> None:
        """``x += mixer(norm(x))``, then ``x += mlp(norm(x))``; x float32 [R, D]."""
        y = self.buffers.normed[: x.shape[0]]
        match weights.mixer, state:
            case AttentionWeights() as mixer, KvCache() as kv:
                self.norm(x, weights.input_layernorm, y)
                self._attention(x, y, mixer, kv)
            case GatedDeltaWeights() as mixer, GatedDeltaState() as delta:
                projected, gates = (kept[: x.shape[0]] for kept in (delta.projected, delta.gates))
                mixer.in_proj.norm_matvec_beside(
                    x,
                    weights.input_layernorm,
                    y,
                    projected,
                    self.workspaces,
                    small=mixer.gates,
                    small_out=gates,
                    eps=self.config.rms_norm_eps,
                )
                self._gated_delta_net(x, mixer, delta, num_accepted, pending_rows)
            case mixer, other:
                raise TypeError(f"{type(mixer).__name__} with {type(other).__name__}")
        self.norm(x, weights.post_attention_layernorm, y)
        self._mlp(x, y, weights.mlp)

    def norm(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """``out = x * rsqrt(mean(x^2) + eps) * (1 + weight)`` in float32, rounded once."""
        bk.rms_norm(x, weight, eps=self.config.rms_norm_eps, out=out)

    def _attention(
        self, x: torch.Tensor, y: torch.Tensor, weights: AttentionWeights, kv: KvCache
    ) -> None:
        rows = x.shape[0]
        weights.qkv.matvec(y, self.buffers.qkv[:rows], self.workspaces)
        out = self.attend(weights, kv, rows)
        weights.o_proj.matvec(out, x, self.workspaces, residual=x)

    def attend(self, weights: AttentionWeights, kv: KvCache, rows: int) -> torch.Tensor:
        """Rows in ``buffers.qkv`` to the cache, and what they find there, [R, NQ * DH]."""
        out = self.buffers.attended[:rows]
        return bk.attention_decode(
            *split_qkv(self.buffers.qkv[:rows], self.config),
            weights.q_norm,
            weights.k_norm,
            self.inv_freq,
            self.position,
            kv.k,
            kv.v,
            out=out,
            workspace=self.workspaces.attention,
            k_scale=kv.k_scale,
            v_scale=kv.v_scale,
            eps=self.config.rms_norm_eps,
        )

    def _gated_delta_net(
        self,
        x: torch.Tensor,
        weights: GatedDeltaWeights,
        state: GatedDeltaState,
        num_accepted: torch.Tensor | None,
        pending_rows: int,
    ) -> None:
        rows = x.shape[0]
        projected, gates = state.projected[:rows], state.gates[:rows]
        out = self.buffers.mixed[:rows]
        current, z = delta_rows(projected, gates, self.config)
        bk.gdn_step(
            current,
            z,
            weights.constants,
            state.settled,
            commit=pending_rows == 0,
            pending=state.pending if pending_rows else None,
            num_accepted=num_accepted if pending_rows else None,
            pending_rows=pending_rows if pending_rows else None,
            eps=self.config.rms_norm_eps,
            out=out,
            # An ordinary launch, the last of each pass, lies between this one and what wrote it.
            state_settled=True,
        )
        weights.out_proj.matvec(out, x, self.workspaces, residual=x)

    def _mlp(self, x: torch.Tensor, y: torch.Tensor, weights: MlpWeights) -> None:
        inner, scale = self.buffers.inner[: x.shape[0]], SWIGLU_SCALE[y.dtype]
        weights.gate_up.matvec(y, inner, self.workspaces, scale=scale)
        weights.down_proj.matvec(inner, x, self.workspaces, residual=x, scale=1 / scale)


def settle(weights: ModelWeights, state: SequenceState, config: ModelConfig) -> None:
    """Take the accepted pending rows into the state, with no rows of a new pass."""
    for layer, layer_state in zip(weights.layers, state.layers, strict=True):
        if isinstance(layer.mixer, GatedDeltaWeights) and isinstance(layer_state, GatedDeltaState):
            none, z = delta_rows(layer_state.projected[:0], layer_state.gates[:0], config)
            bk.gdn_step(
                none,
                z,
                layer.mixer.constants,
                layer_state.settled,
                commit=False,
                pending=layer_state.pending,
                num_accepted=state.num_accepted,
                eps=config.rms_norm_eps,
                out=z,
            )
    state.num_accepted.zero_()


def delta_rows(
    projected: torch.Tensor, gates: torch.Tensor, config: ModelConfig
) -> tuple[GdnRows, torch.Tensor]:
    """The fused projections of a GDN layer as what its kernels take: rows, and z [R, HV * V]."""
    qkv, z = torch.split(projected, [config.conv_channels, config.value_dim], dim=-1)
    a, b = gates.chunk(2, dim=-1)
    return GdnRows(qkv, a, b), z
