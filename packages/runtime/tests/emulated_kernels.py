"""The ops of bytebound-kernels on a CPU, by their own plain references.

``emulate`` puts them in the place of the kernels, so that everything of the CUDA backend but its
graphs runs without a GPU. Rows are taken one by one where an op promises that a row's bits do not
depend on the others. A packed matrix has the bytes of the layout's own definition.
"""

from collections.abc import Sequence
from typing import Any

import bytebound_kernels as bk
import pytest
import torch
from bytebound_kernels import prefill
from bytebound_kernels.ops.attention_decode import attention_decode_reference
from bytebound_kernels.ops.gdn_keep import gdn_keep_reference
from bytebound_kernels.ops.gdn_step import (
    gdn_replay_reference,
    gdn_step_reference,
    gdn_updates_reference,
)
from bytebound_kernels.ops.w4_matvec.layout import (
    interleave,
    pack_reference,
    unpack_reference,
)
from bytebound_kernels.ops.weight_stream.checks import check_op
from bytebound_kernels.ops.weight_stream.order import check_order
from bytebound_kernels.prefill.reference import gdn_prefill_reference
from torch.nn.functional import silu

from .emulated_sampling import SAMPLING_OPS

Tensor = torch.Tensor


class Kernels:
    """Functions with the signatures of the ops."""

    def __init__(self) -> None:
        # By address: codes, scales and zero points of a matrix that is being packed.
        self._parts: dict[int, list[tuple[Tensor, Tensor, Tensor | None]]] = {}
        # By address: packed bytes, and the float32 weights that they stand for.
        self._unpacked: dict[int, tuple[Tensor, Tensor]] = {}

    def rms_norm(self, x: Tensor, weight: Tensor, *, eps: float, out: Tensor) -> Tensor:
        all_float = x.dtype == weight.dtype == torch.float32
        assert weight.dtype in (x.dtype, torch.float32) and (out.dtype == x.dtype or all_float)
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * (1 + weight.float())
        return out.copy_(y)

    def rms_norm_project(
        self,
        x: Tensor,
        weight: Tensor,
        projection: Tensor,
        *,
        out: Tensor,
        projected: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        assert 1 <= x.shape[0] <= 16 and x.dtype == weight.dtype == torch.float32
        assert out.dtype == projected.dtype == projection.dtype
        self.rms_norm(x, weight, eps=eps, out=out)
        for row, into in zip(out, projected, strict=True):
            into.copy_(projection.float() @ row.float())
        return out, projected

    def embedding_gather(self, ids: Tensor, table: Tensor, *, out: Tensor) -> Tensor:
        assert ids.dtype == torch.int32
        return out.copy_(table[ids.long()])

    def dense_matvec(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        out: Tensor,
        workspace: Tensor,
        up: Tensor | None = None,
        residual: Tensor | None = None,
        scale: float = 1.0,
    ) -> Tensor:
        assert x.dtype == weight.dtype and weight.shape[1] % 64 == 0
        return self._product(x, weight, up, out, residual, scale)

    def w4_pack(
        self,
        packed: Tensor,
        scale: Tensor,
        zero_point: Tensor | None = None,
        *,
        out: bk.PackedW4,
        first_row: int = 0,
        part: str | None = None,
    ) -> bk.PackedW4:
        assert (zero_point is not None) == out.asymmetric and part in (None, "gate", "up")
        assert str(scale.dtype) == f"torch.{out.scale_dtype}" and packed.is_contiguous()
        rows, columns = packed.shape[0], 8 * packed.shape[1]
        assert scale.shape == (rows, columns // 128)
        zeros = None if zero_point is None else _codes(zero_point.T)[:, :rows].T
        if not first_row and part != "up":  # memory may be that of a matrix that is gone
            self._parts.pop(out.data.data_ptr(), None)
        parts = self._parts.setdefault(out.data.data_ptr(), [])
        parts.append((_codes(packed), scale, zeros))
        columns_of = [list(one) for one in zip(*parts, strict=True)]
        if sum(len(codes) for codes in columns_of[0]) < (1 + out.interleaved) * out.n:
            return out
        together = interleave if out.interleaved else lambda *rows: torch.cat(rows)
        whole = [None if one[0] is None else together(*one) for one in columns_of]
        out.data.copy_(pack_reference(*whole))
        return out

    def weights(self, packed: bk.PackedW4) -> Tensor:
        """Float32 [N, K], or gate [N, K] before up."""
        known = self._unpacked.get(packed.data.data_ptr())
        if known is not None and torch.equal(known[0], packed.data):
            return known[1]
        rows = 2 * -(-packed.n // 8) * 8 if packed.interleaved else packed.n
        whole = unpack_reference(
            packed.data, rows, packed.k,
            asymmetric=packed.asymmetric, scale_dtype=packed.scale_dtype,
        ).float()  # fmt: skip
        if packed.interleaved:
            halves = whole.view(-1, 2, 8, packed.k).transpose(0, 1).flatten(1, 2)
            whole = halves[:, : packed.n].flatten(0, 1)
        self._unpacked[packed.data.data_ptr()] = (packed.data.clone(), whole)
        return whole

    def w4_matvec(
        self,
        x: Tensor,
        weight: bk.PackedW4,
        *,
        out: Tensor,
        workspace: Tensor,
        residual: Tensor | None = None,
        scale: float = 1.0,
        num_blocks: int | None = None,
        beside_weight: Tensor | None = None,
        beside_out: Tensor | None = None,
    ) -> Tensor:
        assert (beside_weight is None) == (beside_out is None)
        if beside_weight is not None and beside_out is not None:
            assert x.dtype == beside_weight.dtype == beside_out.dtype
            self._product(x, beside_weight, None, beside_out, None, 1.0)
        whole = self.weights(weight)
        up = whole[weight.n :] if weight.interleaved else None
        return self._product(x, whole[: weight.n], up, out, residual, scale)

    def w4_matmul(
        self,
        x: Tensor,
        weight: bk.PackedW4,
        *,
        out: Tensor,
        workspace: Tensor,
        residual: Tensor | None = None,
        scale: float = 1.0,
    ) -> Tensor:
        for start in range(0, x.shape[0], 16):
            rows = slice(start, start + 16)
            own = None if residual is None else residual[rows]
            self.w4_matvec(
                x[rows], weight, out=out[rows], workspace=workspace, residual=own, scale=scale
            )
        return out

    def w4_unpack(self, weight: bk.PackedW4, *, out: Tensor) -> Tensor:
        return out.copy_(self.weights(weight))

    def _product(
        self,
        x: Tensor,
        weight: Tensor,
        up: Tensor | None,
        out: Tensor,
        residual: Tensor | None,
        scale: float,
    ) -> Tensor:
        assert 1 <= x.shape[0] <= 16 and out.dtype in (x.dtype, torch.float32)
        weight = weight.float()
        for r, row in enumerate(x.float()):
            y = weight @ row
            if up is not None:
                y = silu(y) * (up.float() @ row)
            out[r] = scale * y if residual is None else residual[r] + scale * y
        return out

    def gdn_step(
        self,
        rows: bk.GdnRows,
        z: Tensor,
        weights: bk.GdnWeights,
        state: bk.GdnState,
        *,
        commit: bool,
        pending: bk.GdnPending | None,
        num_accepted: Tensor | None,
        pending_rows: int | None = None,
        eps: float,
        out: Tensor,
        state_settled: bool = False,
    ) -> Tensor:
        assert rows.qkv.dtype == state.conv_window.dtype == weights.conv.dtype
        assert (pending is None) == (num_accepted is None) == commit
        accepted = 0
        if pending is not None and num_accepted is not None:
            accepted = int(num_accepted)
            most = pending.qkv.shape[0] if pending_rows is None else pending_rows
            assert 0 <= accepted <= most <= pending.qkv.shape[0] >= rows.qkv.shape[0]
        if pending is not None and accepted:
            after = gdn_replay_reference(pending, accepted, state)
            state.conv_window.copy_(after.conv_window)
            state.recurrent.copy_(after.recurrent)
        if rows.qkv.shape[0]:
            if pending is not None:
                keep(pending, gdn_updates_reference(rows, weights, state))
            values, states = gdn_step_reference(rows, z, weights, state, eps=eps)
            out.copy_(values)
            if commit:
                state.conv_window.copy_(states[-1].conv_window)
                state.recurrent.copy_(states[-1].recurrent)
        return out

    def weight_stream(self, program: "Program", *, rows: int, workspace: Tensor) -> None:
        """In order, one op after the other; that every reader would have waited is asserted."""
        ops = program.ops
        assert 1 <= rows <= 8 and bool((workspace == 0xFF).all())
        handed = {one.data_ptr() for op in ops for one in inputs_of(op)}
        for op in ops:
            if not isinstance(op, bk.StreamReplay) and op.out is not None:
                marked = op.out.data_ptr() not in handed or is_marked(op.out[:rows])
                assert marked, f"{type(op).__name__}: what it hands over is not marked"
        normed: Tensor | None = None
        for op in ops:
            for one in inputs_of(op):
                assert arrived(one[:rows]), f"{type(op).__name__} reads what was never written"
            match op:
                case bk.StreamNorm():
                    assert op.x.shape[1] % 128 == 0
                    assert op.x.dtype == op.weight.dtype == torch.float32
                    exact = torch.empty_like(op.x[:rows])
                    normed = self.rms_norm(op.x[:rows], op.weight, eps=op.eps, out=exact).half()
                    if op.out is not None:
                        op.out[:rows].copy_(normed)
                case bk.StreamProduct():
                    x = normed if op.x is None else op.x[:rows]
                    residual = None if op.residual is None else op.residual[:rows]
                    assert x is not None and x.dtype == torch.float16
                    self.w4_matvec(
                        x, op.weight, out=op.out[:rows], workspace=workspace,
                        residual=residual, scale=op.scale,
                    )  # fmt: skip
                case bk.StreamGates():
                    assert normed is not None and op.weight.dtype == op.out.dtype == torch.float16
                    self._product(normed, op.weight, None, op.out[:rows], None, 1.0)
                case bk.StreamReplay():
                    replay(op.delta)
                case bk.StreamGatedDelta():
                    delta_step(op, rows)

    def attention_decode(
        self,
        q_gate: Tensor,
        k: Tensor,
        v: Tensor,
        q_norm: Tensor,
        k_norm: Tensor,
        inv_freq: Tensor,
        position: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        *,
        out: Tensor,
        workspace: Tensor,
        k_scale: Tensor | None,
        v_scale: Tensor | None,
        eps: float,
    ) -> Tensor:
        assert q_gate.shape[0] <= 8 and position.shape == (1,)
        needed = bk.attention_decode_workspace_bytes(
            q_gate.shape[0], out.shape[1] // 256, k_cache.shape[1]
        )
        assert workspace.numel() >= needed
        for r in range(q_gate.shape[0]):
            row = slice(r, r + 1)
            out[row] = attention_decode_reference(
                q_gate[row], k[row], v[row], q_norm, k_norm, inv_freq, int(position) + r,
                k_cache, v_cache, k_scale=k_scale, v_scale=v_scale, eps=eps,
            )  # fmt: skip
        return out


class Program:
    """Ops of a launch behind the checks of the kernel's own front."""

    def __init__(self, ops: Sequence[bk.StreamOp]) -> None:
        self.ops = tuple(ops)
        assert 1 <= len(self.ops) <= bk.STREAM_MAX_OPS
        check_order([check_op(index, op) for index, op in enumerate(self.ops)])


def inputs_of(op: bk.StreamOp) -> list[Tensor]:
    """The rows that an op reads."""
    match op:
        case bk.StreamNorm():
            return [op.x]
        case bk.StreamProduct():
            return [one for one in (op.x, op.residual) if one is not None]
        case bk.StreamGatedDelta():
            return [*op.rows, op.z]
    return []


def bits(rows: Tensor) -> Tensor:
    return rows.contiguous().view(torch.int16 if rows.dtype.itemsize == 2 else torch.int32)


def is_marked(rows: Tensor) -> bool:
    """Every bit is set: nothing has arrived."""
    return bool((bits(rows) == -1).all())


def arrived(rows: Tensor) -> bool:
    return not bool((bits(rows) == -1).any())


def replay(delta: bk.StreamGatedDelta) -> None:
    """The accepted rows into the recurrent state; the window stays."""
    accepted, pending = int(delta.num_accepted), delta.pending
    assert 0 <= accepted <= pending.qkv.shape[0]
    if not accepted:
        return
    after = gdn_replay_reference(pending, accepted, delta.state)
    delta.state.recurrent.copy_(after.recurrent)


def keep(pending: bk.GdnPending, rows: bk.GdnPending) -> None:
    """The rows take the place of the pending ones."""
    for to, one in zip(pending, rows, strict=True):
        to[: one.shape[0]].copy_(one)


def delta_step(delta: bk.StreamGatedDelta, rows: int) -> None:
    """The rows of this pass, behind the replay: the window has yet to move on."""
    accepted = delta.pending.qkv[: int(delta.num_accepted)]
    window = torch.cat((delta.state.conv_window, accepted.T), dim=1)[:, -3:]
    state = bk.GdnState(window, delta.state.recurrent)
    current = bk.GdnRows(*(tensor[:rows] for tensor in delta.rows))
    out, _ = gdn_step_reference(current, delta.z[:rows], delta.weights, state, eps=delta.eps)
    delta.out[:rows].copy_(out)
    delta.updates[:rows].copy_(gdn_updates_reference(current, delta.weights, state).updates)


def attention_prefill(q_gate: Tensor, *args: Any, **options: Any) -> Tensor:
    assert args[5] + q_gate.shape[0] <= args[6].shape[1], "the cache is too short"
    return attention_decode_reference(q_gate, *args, **options).to(q_gate.dtype)


def gdn_prefill(*args: Any, eps: float) -> Tensor:
    qkv, window, state = args[0], args[8], args[9]
    out, new_state, new_window = gdn_prefill_reference(*args, eps=eps)
    window.copy_(new_window)
    state.copy_(new_state)
    return out.to(qkv.dtype)


def emulate(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """Replace the kernels by the functions above until the test ends."""
    kernels = Kernels()
    for name in (
        "rms_norm", "rms_norm_project", "embedding_gather", "dense_matvec", "w4_pack",
        "w4_matvec", "w4_matmul", "w4_unpack", "gdn_step", "attention_decode",
        "weight_stream",
    ):  # fmt: skip
        monkeypatch.setattr(bk, name, getattr(kernels, name))
    for name, op in SAMPLING_OPS.items():
        monkeypatch.setattr(bk, name, op)
    for name in (
        "matvec_workspace_bytes", "w4_matmul_workspace_bytes", "weight_stream_workspace_bytes",
    ):  # fmt: skip
        monkeypatch.setattr(bk, name, lambda device=0: 1024)
    monkeypatch.setattr(bk, "gdn_keep", gdn_keep_reference)
    monkeypatch.setattr(bk, "StreamProgram", Program)
    monkeypatch.setattr(bk, "weight_stream_slots", lambda rows, d, *, asymmetric, device=0: 4)
    monkeypatch.setattr(prefill, "attention_prefill", attention_prefill)
    monkeypatch.setattr(prefill, "gdn_prefill", gdn_prefill)
    return kernels


def _codes(words: Tensor) -> Tensor:
    """Nibbles of int32 [R, W] as uint8 [R, 8 * W]."""
    shifts = torch.arange(0, 32, 4)
    return (words.long()[..., None] >> shifts & 15).flatten(1).to(torch.uint8)
