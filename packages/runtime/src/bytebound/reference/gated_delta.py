"""Gated DeltaNet: causal conv, gates and the gated delta rule, in step form and in chunked form.

One token, per value head, S [K, V] fp32 (Yang et al., "Gated Delta Networks", 2024):

    S <- exp(g) * S;   d = beta * (v - S^T k);   S <- S + k d^T;   o = S^T q

The step form is the definition. The chunked form is the same recurrence with the products of a
chunk gathered into one triangular system, and must leave the same state.
"""

from typing import NamedTuple

import torch
from torch.nn.functional import linear, silu, softplus

from bytebound.config import ModelConfig
from bytebound.reference.norm import gated_rms_norm, l2_norm
from bytebound.reference.rows import Rows
from bytebound.reference.state import GatedDeltaState
from bytebound.weights import GatedDeltaWeights

CHUNK = 64  # tokens of one triangular system


class DeltaInputs(NamedTuple):
    """What the recurrence eats, fp32: q, k normalised and repeated to HV heads, q scaled."""

    q: torch.Tensor  # [T, HV, K]
    k: torch.Tensor  # [T, HV, K]
    v: torch.Tensor  # [T, HV, V]
    g: torch.Tensor  # [T, HV], log of the decay, <= 0
    beta: torch.Tensor  # [T, HV], in (0, 1)


def gated_delta_net(
    x: torch.Tensor,
    weights: GatedDeltaWeights,
    config: ModelConfig,
    state: GatedDeltaState,
    rows: Rows,
) -> torch.Tensor:
    """One GDN mixer over the rows of a pass. ``x`` [size, D] normalised input, returns [size, D].

    A wide pass advances ``state``. A decode window leaves it alone and fills ``state.pending``.
    """
    mixed = linear(x, weights.in_proj_qkv)
    taps, history = _convolve(mixed, weights.conv1d, state.conv_window, rows)
    inputs = _delta_inputs(x, silu(taps), weights, config)
    if rows.wide:
        out, state.recurrent = delta_chunks(inputs, state.recurrent)
        state.conv_window = history[rows.count :].T.contiguous()
    else:
        out = _delta_window(inputs, history, state, rows)
    z = linear(x, weights.in_proj_z).view(out.shape)
    y = gated_rms_norm(out, z, weights.norm, config.rms_norm_eps)
    return linear(y.reshape(rows.size, -1).to(x.dtype), weights.out_proj)


def _convolve(
    mixed: torch.Tensor, kernel: torch.Tensor, window: torch.Tensor, rows: Rows
) -> tuple[torch.Tensor, torch.Tensor]:
    """Depthwise causal convolution: ``taps[t] = sum_j kernel[:, j] * history[t + j]``.

    ``mixed`` [size, C], ``kernel`` [C, J], ``window`` [C, J-1]. Returns taps [size, C] fp32 (zeros
    in dead slots) and history [J-1+count, C] fp32: the window followed by the live rows.
    """
    slots = rows.slots
    live = mixed if rows.wide else mixed[slots]
    history = torch.cat((window.T, live.float()))
    taps = history[: rows.count] * kernel[:, 0].float()
    for j in range(1, kernel.shape[1]):
        taps = taps + history[j : j + rows.count] * kernel[:, j].float()
    if rows.wide:
        return taps, history
    placed = taps.new_zeros(mixed.shape)
    placed[slots] = taps
    return placed, history


def _delta_inputs(
    x: torch.Tensor, mixed: torch.Tensor, weights: GatedDeltaWeights, config: ModelConfig
) -> DeltaInputs:
    """Split the convolved rows [size, C] into heads, normalise, and compute both gates in fp32."""
    key_heads, value_heads = config.linear_num_key_heads, config.linear_num_value_heads
    q, k, v = torch.split(mixed, [config.key_dim, config.key_dim, config.value_dim], dim=-1)
    q = l2_norm(q.reshape(-1, key_heads, config.linear_key_head_dim))
    k = l2_norm(k.reshape(-1, key_heads, config.linear_key_head_dim))
    q = q * config.linear_key_head_dim**-0.5
    repeat = value_heads // key_heads
    b, a = linear(x, weights.in_proj_b).float(), linear(x, weights.in_proj_a).float()
    return DeltaInputs(
        q.repeat_interleave(repeat, dim=1),
        k.repeat_interleave(repeat, dim=1),
        v.reshape(-1, value_heads, config.linear_value_head_dim),
        g=-weights.A_log.exp() * softplus(a + weights.dt_bias),
        beta=torch.sigmoid(b),
    )


def delta_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence for one token: the definition of the op.

    ``q, k`` [HV, K], ``v`` [HV, V], ``decay = exp(g)`` and ``beta`` [HV], ``state`` [HV, K, V]; all
    fp32. Returns ``o`` [HV, V] and the new state; the old one is left untouched.
    """
    state = state * decay[:, None, None]
    predicted = torch.bmm(k[:, None], state)  # [HV, 1, V]
    delta = beta[:, None, None] * (v[:, None] - predicted)
    state = torch.baddbmm(state, k[:, :, None], delta)
    return torch.bmm(q[:, None], state)[:, 0], state


def delta_chunks(
    inputs: DeltaInputs, state: torch.Tensor, chunk: int = CHUNK
) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence in chunks over T tokens. Returns ``o`` [T, HV, V] and the state."""
    outs = []
    for start in range(0, inputs.q.shape[0], chunk):
        part = DeltaInputs(*(t[start : start + chunk].transpose(0, 1) for t in inputs))
        out, state = _delta_chunk(part, state)
        outs.append(out.transpose(0, 1))
    return torch.cat(outs), state


def _delta_chunk(inputs: DeltaInputs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One chunk, tensors [HV, T, ...].

    With G the running sum of g and D[i, j] = exp(G[i] - G[j]) for j <= i, the corrections d of all
    tokens solve

        (I + tril(beta k k^T * D, -1)) d = beta * (v - exp(G) k S)

    and then o = exp(G) q S + tril(q k^T * D) d,  S <- exp(G[T]) S + (exp(G[T] - G) k)^T d.
    """
    q, k, v, g, beta = inputs
    # float64: one strong decay makes all later sums large; their differences must survive.
    log_decay = g.double().cumsum(-1)
    total = log_decay[:, -1:]
    # Masked before exp as well: above the diagonal the difference is positive and may overflow.
    pair = (log_decay[:, :, None] - log_decay[:, None, :]).tril().exp().tril().float()
    from_start = log_decay.exp().float()[..., None]
    gain = beta[..., None]

    system = gain * (k @ k.transpose(1, 2)) * pair
    target = gain * (v - from_start * (k @ state))
    delta = torch.linalg.solve_triangular(system, target, upper=False, unitriangular=True)

    out = from_start * (q @ state) + ((q @ k.transpose(1, 2)) * pair) @ delta
    carried = (total - log_decay).exp().float()[..., None] * k
    return out, total.exp().float()[..., None] * state + carried.transpose(1, 2) @ delta


def _delta_window(
    inputs: DeltaInputs, history: torch.Tensor, state: GatedDeltaState, rows: Rows
) -> torch.Tensor:
    """Step form over a decode window; one candidate state per row. Returns [WINDOW, HV, V]."""
    decay = inputs.g.exp()
    out = torch.zeros_like(inputs.v)
    recurrent, taps = state.recurrent, state.conv_window.shape[1]
    state.pending = []
    for row, slot in enumerate(rows.slots, start=1):
        out[slot], recurrent = delta_step(
            inputs.q[slot],
            inputs.k[slot],
            inputs.v[slot],
            decay[slot],
            inputs.beta[slot],
            recurrent,
        )
        state.pending.append((recurrent, history[row : row + taps].T))
    return out
