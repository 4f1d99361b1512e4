"""What the GPU holds of one sequence. Everything is allocated once: no address ever changes.

KV beyond the committed length is garbage that the next rows overwrite. Recurrent state and conv
window hold the committed rows but those of the last verify pass: what that pass computed of them
waits in ``pending``, and the next one replays the first ``num_accepted`` before its own rows. So a
rejected guess never touches the state, and each pass reads and writes it once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import bytebound_kernels as bk
import torch
from bytebound_kernels import GdnPending, GdnState

from bytebound.config import ModelConfig

MAX_ROWS = 8  # of one verify pass: what gdn_step and attention_decode take


@dataclass(frozen=True, slots=True)
class KvCache:
    """Keys and values of one attention layer; the scales belong to a float8 cache."""

    k: torch.Tensor  # [NKV, S, DH]
    v: torch.Tensor  # [NKV, S, DH]
    k_scale: torch.Tensor | None  # float32 [NKV, S]
    v_scale: torch.Tensor | None  # float32 [NKV, S]

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that is there."""
        return tuple(one for one in (self.k, self.v, self.k_scale, self.v_scale) if one is not None)

    @classmethod
    def empty(
        cls, config: ModelConfig, max_len: int, dtype: torch.dtype, device: torch.device
    ) -> "KvCache":
        """Allocate ``max_len`` positions, and room for guesses behind them."""
        positions = cache_positions(max_len)
        shape = (config.num_key_value_heads, positions, config.head_dim)
        k, v = (torch.zeros(shape, dtype=dtype, device=device) for _ in "kv")
        if dtype.itemsize > 1:
            return cls(k, v, None, None)
        k_scale, v_scale = (torch.zeros(shape[:2], device=device) for _ in "kv")
        return cls(k, v, k_scale, v_scale)


@dataclass(frozen=True, slots=True)
class GatedDeltaState:
    """State of one GDN layer, and the projections of the rows that are not in it yet."""

    settled: GdnState  # conv_window [C, 3] as the activations, recurrent [HV, K, V] float32
    projected: torch.Tensor  # [MAX_ROWS, C + HV * V], of the pass that runs
    gates: torch.Tensor  # [MAX_ROWS, 2 * HV], likewise: a, b
    pending: GdnPending  # MAX_ROWS rows of the pass before


LayerState = KvCache | GatedDeltaState


@dataclass(frozen=True, slots=True)
class SequenceState:
    """All layers of one sequence; the two numbers are read by the kernels, not by the host."""

    layers: tuple[LayerState, ...]
    position: torch.Tensor  # int32 [1]: of row 0 of the next pass
    num_accepted: torch.Tensor  # int32 [1]: pending rows that the next pass replays
    _recurrent: torch.Tensor  # float32 [GDN layers, HV, K, V]
    _windows: torch.Tensor  # [GDN layers, C, 3]
    _projected: torch.Tensor  # [GDN layers, MAX_ROWS, C + HV * V]
    _gates: torch.Tensor  # [GDN layers, MAX_ROWS, 2 * HV]
    _pending_qkv: torch.Tensor  # [GDN layers, MAX_ROWS, C]
    _pending_updates: torch.Tensor  # float32 [GDN layers, MAX_ROWS, W]

    @classmethod
    def empty(
        cls,
        config: ModelConfig,
        max_len: int,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        device: torch.device,
    ) -> "SequenceState":
        """Allocate the state of a sequence of at most ``max_len`` positions."""

        def rows(width: int) -> torch.Tensor:
            shape = (config.num_linear_layers, MAX_ROWS, width)
            return torch.zeros(shape, dtype=dtype, device=device)

        heads, channels = config.linear_num_value_heads, config.conv_channels
        projected, gates = rows(channels + config.value_dim), rows(2 * heads)
        pending_qkv = rows(channels)
        linear = config.num_linear_layers
        pending_updates = torch.zeros(linear, MAX_ROWS, updates_width(config), device=device)
        # One tensor of each kind for all layers, so that a snapshot is two copies.
        windows = torch.zeros(
            linear, channels, config.linear_conv_kernel_dim - 1, dtype=dtype, device=device
        )
        recurrent = torch.zeros(
            linear,
            heads,
            config.linear_key_head_dim,
            config.linear_value_head_dim,
            device=device,
        )
        layers: list[LayerState] = []
        index = 0
        for kind in config.layer_types:
            if kind == "full_attention":
                layers.append(KvCache.empty(config, max_len, kv_dtype, device))
                continue
            settled = GdnState(windows[index], recurrent[index])
            pending = GdnPending(pending_qkv[index], pending_updates[index])
            layers.append(GatedDeltaState(settled, projected[index], gates[index], pending))
            index += 1
        numbers = torch.zeros(2, 1, dtype=torch.int32, device=device)
        return cls(
            tuple(layers),
            numbers[0],
            numbers[1],
            recurrent,
            windows,
            projected,
            gates,
            pending_qkv,
            pending_updates,
        )

    @property
    def caches(self) -> tuple[torch.Tensor, ...]:
        """What every attention layer holds by position, in order: [NKV, S, ...] each."""
        layers = (layer for layer in self.layers if isinstance(layer, KvCache))
        return tuple(one for layer in layers for one in layer.tensors)

    def accept_none(self) -> None:
        """The rows of this pass are pending; none of them is accepted yet."""
        self.num_accepted.zero_()

    def move_on(self, projected: torch.Tensor, updates: torch.Tensor) -> None:
        """As ``accept_none``, of rows [R, GDN layers, ...] that nobody has made pending."""
        bk.gdn_keep(
            projected[..., : self._pending_qkv.shape[-1]],
            updates,
            pending_qkv=self._pending_qkv.transpose(0, 1),
            pending_updates=self._pending_updates.transpose(0, 1),
            windows=self._windows,
            num_accepted=self.num_accepted,
        )
        self.num_accepted.zero_()

    def reset(self) -> None:
        """Back to the empty sequence. KV needs no clearing: only committed positions are read."""
        self.position.zero_()
        self.num_accepted.zero_()
        self._recurrent.zero_()
        self._windows.zero_()

    def kept(self) -> tuple[torch.Tensor, ...]:
        """What a snapshot keeps: copies of what is settled. No row may be pending."""
        return self._recurrent.clone(), self._windows.clone()

    @property
    def kept_bytes(self) -> int:
        """Bytes of ``kept``."""
        return self._recurrent.nbytes + self._windows.nbytes

    def restore(self, kept: Sequence[torch.Tensor]) -> None:
        """Back to ``kept``, with no row pending. The position is the caller's to set."""
        recurrent, windows = kept
        self._recurrent.copy_(recurrent)
        self._windows.copy_(windows)
        self.num_accepted.zero_()


def updates_width(config: ModelConfig) -> int:
    """Floats that a GDN layer keeps of a pending row."""
    return bk.gdn_updates_width(config.linear_num_key_heads, config.linear_num_value_heads)


def cache_positions(max_len: int) -> int:
    """Positions of a cache: guesses may lie behind the last one that counts."""
    return max_len + MAX_ROWS + -max_len % 8
