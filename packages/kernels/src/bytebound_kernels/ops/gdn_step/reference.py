"""The definition of the Gated DeltaNet step that the kernel is tested against, in PyTorch."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bytebound_kernels.ops.gdn_step.op import GdnPending, GdnRows, GdnState, GdnWeights

__all__ = ["gdn_replay_reference", "gdn_step_reference", "gdn_updates_reference"]

_HEAD_DIM = 128
_L2_EPS = 1e-6


def gdn_step_reference(
    rows: "GdnRows", z: Any, weights: "GdnWeights", state: "GdnState", *, eps: float = 1e-6
) -> tuple[Any, list["GdnState"]]:
    """Take rows through a Gated DeltaNet layer, one after the other, in the dtype of the state.

    Args:
        rows: qkv [R, C], a and b [R, HV].
        z: [R, HV * V].
        weights: conv [C, 4], a_log and dt_bias [HV], norm [V].
        state: conv_window [C, 3], recurrent [HV, K, V]; left as it is.
        eps: of the norm.

    Returns:
        out [R, HV * V], and the state after each row, R of them: the verify form leaves all of them
        to choose from, the step form is the last one, replay is the one after the accepted rows.

    Numerics: in the dtype of ``state.recurrent``, float32 or float64, with no rounding in between.
    """
    import torch
    from torch.nn.functional import silu

    dtype = state.recurrent.dtype
    z, norm = z.to(dtype), weights.norm.to(dtype)
    hv = state.recurrent.shape[0]
    outs, states = [], []
    for i, (q, _, _, _, after) in enumerate(_rows_through(rows, weights, state)):
        o = torch.einsum("hkv,hk->hv", after.recurrent, q)
        y = norm * o * torch.rsqrt(o.square().mean(-1, keepdim=True) + eps)
        outs.append((y * silu(z[i].view(hv, _HEAD_DIM))).flatten())
        states.append(after)
    return torch.stack(outs) if outs else z, states


def gdn_updates_reference(
    rows: "GdnRows", weights: "GdnWeights", state: "GdnState"
) -> "GdnPending":
    """What a pass keeps of its rows, updates in the dtype of the state.

    Args:
        rows: as for ``gdn_step_reference``, at least one.
        weights: likewise.
        state: likewise.
    """
    import torch

    from bytebound_kernels.ops.gdn_step.op import GdnPending

    kept = []
    for _, k, delta, decay, _ in _rows_through(rows, weights, state):
        filler = decay.new_zeros(-len(decay) % 4)
        kept.append(torch.cat((k.flatten(), delta.flatten(), decay, filler)))
    return GdnPending(rows.qkv.clone(), torch.stack(kept))


def gdn_replay_reference(pending: "GdnPending", count: int, state: "GdnState") -> "GdnState":
    """The state behind the first ``count`` pending rows: ``S <- decay S + k delta^T`` for each."""
    import torch

    recurrent = state.recurrent
    hv = recurrent.shape[0]
    h = (pending.qkv.shape[1] // _HEAD_DIM - hv) // 2
    sizes = [h * _HEAD_DIM, hv * _HEAD_DIM, hv]
    for update in pending.updates[:count].to(recurrent.dtype):
        own_k, delta, decay = torch.split(update[: sum(sizes)], sizes)
        k = own_k.view(h, -1).repeat_interleave(hv // h, dim=0)
        delta = delta.view(hv, -1)
        recurrent = decay[:, None, None] * recurrent + k[:, :, None] * delta[:, None, :]
    inputs = torch.cat((state.conv_window, pending.qkv[:count].T.to(state.conv_window.dtype)), 1)
    return type(state)(conv_window=inputs[:, -state.conv_window.shape[1] :], recurrent=recurrent)


def _rows_through(
    rows: "GdnRows", weights: "GdnWeights", state: "GdnState"
) -> Iterator[tuple[Any, Any, Any, Any, "GdnState"]]:
    """Of each row: q [HV, K], k [H, K] before its norm, delta [HV, V], decay [HV], the state then.

    delta is beta (v - S^T k) times what normalises k, so that k delta^T is what S gains.
    """
    import torch
    from torch.nn.functional import silu, softplus

    dtype = state.recurrent.dtype
    qkv, a, b = (tensor.to(dtype) for tensor in rows)
    conv, a_log, dt_bias = (one.to(dtype) for one in (weights.conv, weights.a_log, weights.dt_bias))
    window, recurrent = state.conv_window.to(dtype), state.recurrent
    hv = recurrent.shape[0]
    h = (qkv.shape[1] // _HEAD_DIM - hv) // 2
    for i in range(qkv.shape[0]):
        inputs = torch.cat((window, qkv[i, :, None]), dim=1)  # [C, 4]
        window = inputs[:, 1:]
        mixed = silu((inputs * conv).sum(1)).view(-1, _HEAD_DIM)
        q, own_k, v = torch.split(mixed, [h, h, hv])
        q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + _L2_EPS) * _HEAD_DIM**-0.5
        inverse = torch.rsqrt(own_k.square().sum(-1, keepdim=True) + _L2_EPS)
        q, k, inverse = (one.repeat_interleave(hv // h, dim=0) for one in (q, own_k, inverse))

        decay = torch.exp(-a_log.exp() * softplus(a[i] + dt_bias))
        recurrent = recurrent * decay[:, None, None]
        missing = v - torch.einsum("hkv,hk->hv", recurrent, k * inverse)
        delta = torch.sigmoid(b[i])[:, None] * missing * inverse
        recurrent = recurrent + k[:, :, None] * delta[:, None, :]
        kept = window.to(state.conv_window.dtype)
        yield q, own_k, delta, decay, type(state)(conv_window=kept, recurrent=recurrent)
