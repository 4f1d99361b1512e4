"""The state of one sequence: KV per attention layer, recurrent state and conv window per GDN layer.

Everything is allocated once. KV beyond the committed length is garbage that the next rows
overwrite; recurrent state and conv window hold the committed value only, and a decode pass leaves
one candidate per row in ``pending``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from bytebound.config import ModelConfig


@dataclass(slots=True)
class KvCache:
    """Keys and values of one attention layer, [NKV, S, DH] each."""

    k: torch.Tensor
    v: torch.Tensor

    @classmethod
    def empty(
        cls, config: ModelConfig, max_len: int, dtype: torch.dtype, device: torch.device
    ) -> "KvCache":
        """Allocate ``max_len`` positions."""
        shape = (config.num_key_value_heads, max_len, config.head_dim)
        return cls(
            torch.zeros(shape, dtype=dtype, device=device),
            torch.zeros(shape, dtype=dtype, device=device),
        )


@dataclass(slots=True)
class GatedDeltaState:
    """State of one GDN layer after the committed rows."""

    recurrent: torch.Tensor
    """[HV, K, V] fp32."""
    conv_window: torch.Tensor
    """[C, conv_kernel - 1] fp32, the last inputs of the convolution, newest last."""
    pending: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """(recurrent, conv_window) after each row of the last decode pass."""

    @classmethod
    def empty(cls, config: ModelConfig, device: torch.device) -> "GatedDeltaState":
        """The state before the first token."""
        return cls(
            torch.zeros(
                config.linear_num_value_heads,
                config.linear_key_head_dim,
                config.linear_value_head_dim,
                device=device,
            ),
            torch.zeros(config.conv_channels, config.linear_conv_kernel_dim - 1, device=device),
        )

    def commit(self, count: int) -> None:
        """Keep the first ``count`` rows of the last decode pass."""
        self.recurrent, self.conv_window = self.pending[count - 1]
        self.pending = []


LayerState = KvCache | GatedDeltaState


@dataclass(slots=True)
class SequenceState:
    """All layers of one sequence."""

    layers: list[LayerState]
    position: int = 0

    @classmethod
    def empty(
        cls, config: ModelConfig, max_len: int, dtype: torch.dtype, device: torch.device
    ) -> "SequenceState":
        """Allocate the state of a sequence of at most ``max_len`` positions."""
        return cls(
            [
                KvCache.empty(config, max_len, dtype, device)
                if kind == "full_attention"
                else GatedDeltaState.empty(config, device)
                for kind in config.layer_types
            ]
        )

    def reset(self) -> None:
        """Back to the empty sequence. KV needs no clearing: only committed positions are read."""
        self.position = 0
        for layer in self._gated_delta_states():
            # New tensors, not zero_(): the old ones may be a snapshot that somebody kept.
            layer.recurrent = torch.zeros_like(layer.recurrent)
            layer.conv_window = torch.zeros_like(layer.conv_window)
            layer.pending = []

    def kept(self) -> tuple[torch.Tensor, ...]:
        """What a snapshot keeps: copies of recurrent state and conv window of every GDN layer."""
        layers = self._gated_delta_states()
        return tuple(t.clone() for layer in layers for t in (layer.recurrent, layer.conv_window))

    @property
    def kept_bytes(self) -> int:
        """Bytes of ``kept``."""
        layers = self._gated_delta_states()
        return sum(layer.recurrent.nbytes + layer.conv_window.nbytes for layer in layers)

    def restore(self, kept: Sequence[torch.Tensor], position: int) -> None:
        """Back to ``kept``, which was taken at ``position``. No pass writes into these tensors."""
        tensors = iter(kept)
        for layer in self._gated_delta_states():
            layer.recurrent, layer.conv_window = next(tensors), next(tensors)
            layer.pending = []
        self.position = position

    @property
    def caches(self) -> tuple[torch.Tensor, ...]:
        """Keys and values of every attention layer, in order: [NKV, S, DH] each."""
        layers = (layer for layer in self.layers if isinstance(layer, KvCache))
        return tuple(one for layer in layers for one in (layer.k, layer.v))

    def commit(self, count: int) -> None:
        """Keep the first ``count`` rows of the last decode pass in every layer."""
        for layer in self._gated_delta_states():
            layer.commit(count)
        self.position += count

    def _gated_delta_states(self) -> Iterator[GatedDeltaState]:
        return (layer for layer in self.layers if isinstance(layer, GatedDeltaState))
