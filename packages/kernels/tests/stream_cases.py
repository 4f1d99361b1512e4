"""Layers for the tests of the weight stream: small, with results in wider tensors of set bits."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from bytebound_kernels import (
    GdnRows,
    PackedW4,
    StreamAttention,
    StreamEmbedding,
    StreamGatedDelta,
    StreamGates,
    StreamNorm,
    StreamOp,
    StreamProduct,
    StreamProgram,
    StreamReplay,
    attention_decode_workspace_bytes,
    gdn_updates_width,
    weight_stream_table_bytes,
)
from bytebound_kernels.ops.w4_matvec.layout import interleave, pack_reference

from .gdn_cases import V, make, some_pending

MAX_ROWS = 8
MARGIN = 8  # elements on either side of a result
HALF, FULL = torch.float16, torch.float32
HEAD_DIM = 256  # of attention


class Sizes(NamedTuple):
    d: int
    h: int
    hv: int
    f: int

    def __str__(self) -> str:
        return f"D{self.d}-H{self.h}-HV{self.hv}-F{self.f}"


class Attention(NamedTuple):
    """Heads, and a cache in which ``position`` rows are."""

    heads: int
    kv_heads: int
    position: int
    cache: str = "float16"
    positions: int = 320
    norm: torch.dtype = FULL


def program_of(ops: Sequence[StreamOp], device: str = "cuda") -> StreamProgram:
    """Make a program with a table of its own."""
    size = weight_stream_table_bytes(len(ops))
    return StreamProgram(ops, table=torch.empty(size, dtype=torch.uint8, device=device))


def run_stream(ops: Sequence[StreamOp], **arguments: Any) -> None:
    """Launch ops that are run once."""
    program_of(ops).run(**arguments)


class Layers:
    """Ops over random weights, and all that they touch; copy.deepcopy gives a twin of its own."""

    def __init__(self, device: str, *, asymmetric: bool = False, seed: int = 0) -> None:
        self.device, self.asymmetric, self._seed = device, asymmetric, seed
        self.ops: list[StreamOp] = []
        self.wide: list[torch.Tensor] = []  # that the results lie in
        self.results: list[torch.Tensor] = []
        self.counters: list[torch.Tensor] = []  # of attention
        self._workspace: torch.Tensor | None = None  # likewise

    def random(self, *shape: int, dtype: torch.dtype = FULL, scale: float = 1.0) -> torch.Tensor:
        self._seed += 1
        draw = torch.Generator(self.device).manual_seed(self._seed)
        return (torch.randn(shape, generator=draw, device=self.device) * scale).to(dtype)

    def result(self, width: int, dtype: torch.dtype = HALF) -> torch.Tensor:
        # A distance that keeps rows at multiples of 16 bytes where the width does.
        wide = torch.empty(MAX_ROWS, width + 2 * MARGIN, dtype=dtype, device=self.device)
        self.wide.append(wide)
        self.results.append(wide[:, MARGIN:-MARGIN])
        return self.results[-1]

    def poison(self) -> None:
        """Set every bit of every result, and around it."""
        for wide in self.wide:
            wide.view(torch.uint8).fill_(255)
        for counter in self.counters:
            counter.fill_(-1)

    def weight(self, n: int, k: int, *, interleaved: bool = False) -> PackedW4:
        parts = [self._stored(n, k) for _ in range(2 if interleaved else 1)]
        both = [interleave(*pair) for pair in zip(*parts, strict=True)] if interleaved else parts[0]
        codes, scale, zero = both
        data = pack_reference(codes, scale, zero if self.asymmetric else None)
        return PackedW4(data, n, k, asymmetric=self.asymmetric, interleaved=interleaved)

    def _stored(self, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self._seed += 1
        draw = torch.Generator(self.device).manual_seed(self._seed)

        def codes(width: int) -> torch.Tensor:
            return torch.randint(
                0, 16, (n, width), generator=draw, device=self.device, dtype=torch.uint8
            )

        scale = torch.rand((n, k // 128), generator=draw, device=self.device) * 0.01 + 0.001
        return codes(k), scale.to(HALF), codes(k // 128)

    def norm(self, x: torch.Tensor, **options: Any) -> None:
        weight = self.random(x.shape[1], scale=0.3)
        self.ops.append(StreamNorm(x, weight, **options))

    def product(
        self,
        n: int,
        k: int,
        x: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        *,
        dtype: torch.dtype = HALF,
        interleaved: bool = False,
        scale: float = 1.0,
    ) -> torch.Tensor:
        dtype = dtype if residual is None else FULL
        out = self.result(n, dtype)
        weight = self.weight(n, k, interleaved=interleaved)
        self.ops.append(StreamProduct(weight, out, x, residual, scale))
        return out

    def gates(self, n: int, d: int) -> torch.Tensor:
        out = self.result(n)
        self.ops.append(StreamGates(self.random(n, d, dtype=HALF, scale=d**-0.5), out))
        return out

    def delta(
        self, h: int, hv: int, projected: torch.Tensor, gates: torch.Tensor, accepted: int
    ) -> StreamGatedDelta:
        """Make a step of rows that are still to come, without adding it."""
        self._seed += 1
        _, _, weights, state = make(h, hv, 0, HALF, self._seed, self.device)
        pending = some_pending(h, hv, MAX_ROWS, HALF, self._seed, self.device)
        qkv, z = projected.split([(2 * h + hv) * V, hv * V], dim=1)
        count = torch.tensor([accepted], dtype=torch.int32, device=self.device)
        rows = GdnRows(qkv, *gates.split(hv, dim=1))
        out, updates = self.result(hv * V), self.result(gdn_updates_width(h, hv), FULL)
        self.results[-1] = updates[:, : (h + hv) * V + hv]  # nobody writes what fills it up
        return StreamGatedDelta(rows, z, weights, state, pending, count, out, updates)

    def mlp(self, x: torch.Tensor, f: int) -> torch.Tensor:
        d = x.shape[1]
        self.norm(x)
        inner = self.product(f, d, interleaved=True, scale=2.0**-3)
        return self.product(d, f, inner, x, scale=2.0**3)

    def gated_delta_layer(self, x: torch.Tensor, sizes: Sizes, accepted: int) -> torch.Tensor:
        d, h, hv, _ = sizes
        self.norm(x)
        at = len(self.ops) - 1
        projected = self.product((2 * h + 2 * hv) * V, d)
        gates = self.gates(2 * hv, d)
        delta = self.delta(h, hv, projected, gates, accepted)
        self.ops.insert(at, StreamReplay(delta))
        self.ops.append(delta)
        return self.product(d, hv * V, delta.out, x)

    def embedding(self, ids: Sequence[int], d: int, n: int = 50) -> torch.Tensor:
        wide = torch.empty(MAX_ROWS, d + 2 * MARGIN, device=self.device)
        self.wide.append(wide)
        self.results.append(wide[:, MARGIN:-MARGIN])
        given = torch.tensor(ids, dtype=torch.int32, device=self.device)
        table = self.random(n, d, dtype=HALF)
        self.ops.append(StreamEmbedding(given, table, self.results[-1]))
        return self.results[-1]

    def cache(self, shape: Attention) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows up to the position, NaN behind them."""
        kind = getattr(torch, shape.cache)
        full = self.random(shape.kv_heads, shape.positions, HEAD_DIM)
        scale = None
        if kind.itemsize == 1:
            scale = full.abs().amax(-1) / 448
            full = full / scale[..., None]
            scale[:, shape.position :] = float("nan")
        rows = full.to(kind)
        if scale is None:
            rows[:, shape.position :] = float("nan")
        return rows, scale

    def attend(
        self, q_gate: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shape: Attention
    ) -> StreamAttention:
        """Add attention of rows to a cache of its own."""
        (keys, k_scale), (values, v_scale) = self.cache(shape), self.cache(shape)
        norms = [self.random(HEAD_DIM, dtype=shape.norm, scale=0.2) for _ in "qk"]
        exponents = torch.arange(0, 64, 2, device=self.device) / 64
        self.counters.append(torch.empty(1, dtype=torch.int32, device=self.device))
        if self._workspace is None:
            size = attention_decode_workspace_bytes(MAX_ROWS, shape.heads, shape.positions)
            self._workspace = torch.empty(size, dtype=torch.uint8, device=self.device)
        op = StreamAttention(
            *(q_gate, k, v, *norms, 1.0 / 1e7**exponents),
            torch.tensor([shape.position], dtype=torch.int32, device=self.device),
            *(keys, values, self._workspace, self.counters[-1]),
            self.result(shape.heads * HEAD_DIM),
            *(k_scale, v_scale),
        )
        self.ops.append(op)
        return op

    def attention_layer(self, x: torch.Tensor, shape: Attention) -> torch.Tensor:
        d, width = x.shape[1], shape.kv_heads * HEAD_DIM
        self.norm(x)
        qkv = self.product(2 * shape.heads * HEAD_DIM + 2 * width, d)
        rows = qkv.split([2 * shape.heads * HEAD_DIM, width, width], dim=1)
        op = self.attend(*rows, shape)
        return self.product(d, shape.heads * HEAD_DIM, op.out, x)

    @property
    def attentions(self) -> list[StreamAttention]:
        return [op for op in self.ops if isinstance(op, StreamAttention)]

    @property
    def deltas(self) -> list[StreamGatedDelta]:
        return [op for op in self.ops if isinstance(op, StreamGatedDelta)]


def decoder(
    device: str,
    sizes: Sizes,
    *,
    num_layers: int,
    accepted: int = 3,
    asymmetric: bool = False,
    head: int = 1001,
    seed: int = 0,
) -> Layers:
    """Gated DeltaNet layers with their MLPs, the last norm, and a head of any number of rows."""
    layers = Layers(device, asymmetric=asymmetric, seed=seed)
    x = layers.random(MAX_ROWS, sizes.d)
    for _ in range(num_layers):
        x = layers.gated_delta_layer(x, sizes, accepted)
        x = layers.mlp(x, sizes.f)
    layers.norm(x, out=layers.result(sizes.d))
    layers.product(head, sizes.d, dtype=FULL)
    return layers


def whole_pass(
    device: str, sizes: Sizes, shapes: Sequence[Attention], *, seed: int = 0, **options: Any
) -> Layers:
    """A pass from the ids to the logits: Gated DeltaNet and attention by turns."""
    layers = Layers(device, seed=seed, **options)
    x = layers.embedding([3, 1, 49, 50, 0, 7, 7, 20], sizes.d)
    for shape in shapes:
        x = layers.mlp(layers.gated_delta_layer(x, sizes, 3), sizes.f)
        x = layers.mlp(layers.attention_layer(x, shape), sizes.f)
    layers.norm(x, out=layers.result(sizes.d))
    layers.product(101, sizes.d, dtype=FULL)
    return layers
