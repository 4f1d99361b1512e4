"""Inputs of the Gated DeltaNet step, for the tests of its reference and of its kernel."""

import torch
from bytebound_kernels import GdnPending, GdnRows, GdnState, GdnWeights, gdn_updates_width

V = 128


def make(h, hv, num_rows, dtype, seed=0, device="cpu"):
    """Return rows, z, weights and state as a model has them: small gates, a filled state."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape, scale=1.0):
        return torch.randn(*shape, generator=generator, device=device) * scale

    channels = (2 * h + hv) * V
    rows = GdnRows(
        qkv=normal(num_rows, channels).to(dtype),
        a=normal(num_rows, hv).to(dtype),
        b=normal(num_rows, hv).to(dtype),
    )
    z = normal(num_rows, hv * V).to(dtype)
    weights = GdnWeights(
        conv=normal(channels, 4, scale=0.5).to(dtype),
        a_log=normal(hv, scale=0.5),
        dt_bias=normal(hv, scale=0.5) - 2,
        norm=1 + normal(V, scale=0.2),
    )
    state = GdnState(
        conv_window=normal(channels, 3).to(dtype),
        recurrent=normal(hv, V, V, scale=0.3),
    )
    return rows, z, weights, state


def some_pending(h, hv, num_rows, dtype, seed=0, device="cpu"):
    """Return pending rows as a pass leaves them: small updates, a decay below 1."""
    generator = torch.Generator(device).manual_seed(seed)
    room = nothing_pending(h, hv, num_rows, dtype, device)
    room.qkv.normal_(generator=generator)
    room.updates.uniform_(0.1, 0.9, generator=generator)
    return room


def part(rows, start, stop=None):
    """Return some of the rows."""
    return GdnRows(*(tensor[start:stop] for tensor in rows))


def copy_of(tensors):
    """Return a state, or pending rows, of their own memory."""
    return type(tensors)(*(tensor.clone() for tensor in tensors))


def nothing_pending(h, hv, num_rows, dtype, device="cpu"):
    """Return room for pending rows, filled with NaN."""

    def nan(*shape, of=torch.float32):
        return torch.full(shape, float("nan"), dtype=of, device=device)

    return GdnPending(
        qkv=nan(num_rows, (2 * h + hv) * V, of=dtype),
        updates=nan(num_rows, gdn_updates_width(h, hv)),
    )


def in_float64(state):
    """Return the state that makes the reference compute in float64."""
    return GdnState(state.conv_window.double(), state.recurrent.double())
