"""The definition of the Gated DeltaNet step that the kernel is tested against, in PyTorch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bytebound_kernels.ops.gdn_step.op import GdnRows, GdnState, GdnWeights

__all__ = ["gdn_step_reference"]

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
    from torch.nn.functional import silu, softplus

    dtype = state.recurrent.dtype
    qkv, a, b, z = (tensor.to(dtype) for tensor in (*rows, z))
    conv, a_log, dt_bias, norm = (tensor.to(dtype) for tensor in weights)
    window, recurrent = state.conv_window.to(dtype), state.recurrent
    hv = recurrent.shape[0]
    h = (qkv.shape[1] // _HEAD_DIM - hv) // 2

    outs, states = [], []
    for i in range(qkv.shape[0]):
        inputs = torch.cat((window, qkv[i, :, None]), dim=1)  # [C, 4]
        window = inputs[:, 1:]
        mixed = silu((inputs * conv).sum(1)).view(-1, _HEAD_DIM)
        q, k, v = torch.split(mixed, [h, h, hv])
        q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + _L2_EPS) * _HEAD_DIM**-0.5
        k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + _L2_EPS)
        q, k = (heads.repeat_interleave(hv // h, dim=0) for heads in (q, k))

        decay = torch.exp(-a_log.exp() * softplus(a[i] + dt_bias))
        recurrent = recurrent * decay[:, None, None]
        missing = v - torch.einsum("hkv,hk->hv", recurrent, k)
        delta = torch.sigmoid(b[i])[:, None] * missing
        recurrent = recurrent + k[:, :, None] * delta[:, None, :]
        o = torch.einsum("hkv,hk->hv", recurrent, q)

        y = norm * o * torch.rsqrt(o.square().mean(-1, keepdim=True) + eps)
        outs.append((y * silu(z[i].view(hv, _HEAD_DIM))).flatten())
        kept = window.to(state.conv_window.dtype)
        states.append(type(state)(conv_window=kept, recurrent=recurrent))
    return torch.stack(outs) if outs else z, states
