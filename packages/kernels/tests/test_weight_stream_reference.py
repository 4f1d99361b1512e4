"""The reference of the weight stream against the references of its single ops."""

import copy

import pytest

torch = pytest.importorskip("torch")

from bytebound_kernels import (  # noqa: E402
    GdnPending,
    GdnRows,
    GdnState,
    StreamGates,
    StreamNorm,
    StreamProduct,
    StreamReplay,
)
from bytebound_kernels.ops.gdn_keep import gdn_keep_reference  # noqa: E402
from bytebound_kernels.ops.gdn_step import gdn_step_reference, gdn_updates_reference  # noqa: E402
from bytebound_kernels.ops.rms_norm_project import rms_norm_project_reference  # noqa: E402
from bytebound_kernels.ops.w4_matvec import w4_matvec_reference  # noqa: E402
from bytebound_kernels.ops.weight_stream import weight_stream_reference  # noqa: E402

from .gdn_cases import in_float64, make  # noqa: E402
from .stream_cases import Layers, Sizes, decoder  # noqa: E402

SIZES = Sizes(d=256, h=1, hv=3, f=384)


@pytest.mark.parametrize("asymmetric", [False, True], ids=["symmetric", "asymmetric"])
def test_products_and_gates_multiply_the_rows_of_the_last_norm(asymmetric, assert_close) -> None:
    layers = Layers("cpu", asymmetric=asymmetric)
    x = layers.random(8, 256)
    y = layers.result(256)
    layers.norm(x, out=y)
    plain = layers.product(77, 256)
    gates = layers.gates(6, 256)
    inner = layers.product(128, 256, interleaved=True, scale=0.5)
    behind = layers.product(256, 128, inner, x, scale=2.0)
    layers.poison()
    weight_stream_reference(layers.ops, rows=3)

    norm, product, small, gate_up, down = layers.ops
    assert isinstance(norm, StreamNorm) and isinstance(small, StreamGates)
    expected, projected = rms_norm_project_reference(x[:3], norm.weight, small.weight)
    assert torch.equal(y[:3], expected)
    assert_close("gates", projected, gates[:3], 1e-3)
    assert isinstance(product, StreamProduct) and isinstance(gate_up, StreamProduct)
    assert_close("plain", w4_matvec_reference(expected, product.weight), plain[:3], 1e-3)
    swiglu = w4_matvec_reference(expected, gate_up.weight, scale=0.5)
    assert_close("inner", swiglu, inner[:3], 1e-3)
    assert isinstance(down, StreamProduct)
    total = w4_matvec_reference(inner[:3], down.weight, residual=x[:3], scale=2.0)
    assert_close("behind", total, behind[:3], 1e-6)


@pytest.mark.parametrize("accepted", [-1, 0, 1, 2, 3, 5, 8, 9])
@pytest.mark.parametrize("rows", [1, 5, 8], ids=lambda r: f"R{r}")
def test_replay_and_step_are_stepping_through_both_passes(rows, accepted, assert_close) -> None:
    layers = Layers("cpu")
    projected = layers.random(8, 8 * 128, dtype=torch.float16)
    gates = layers.random(8, 6, dtype=torch.float16)
    h, hv = 1, 3
    delta = layers.delta(h, hv, projected, gates, accepted)
    earlier = make(h, hv, 8, torch.float16, seed=1)[0]
    updates = gdn_updates_reference(earlier, delta.weights, in_float64(delta.state)).updates
    delta = delta._replace(pending=GdnPending(earlier.qkv, updates.float()))
    before = copy.deepcopy(delta)
    layers.poison()
    weight_stream_reference([StreamReplay(delta), delta], rows=rows)

    count = min(max(accepted, 0), 8)
    both = GdnRows(
        *(
            torch.cat((old[:count], new[:rows]))
            for old, new in zip(earlier, before.rows, strict=True)
        )
    )
    z = torch.cat((torch.zeros(count, hv * 128), before.z[:rows].float()))
    start = GdnState(before.state.conv_window, before.state.recurrent.double())
    out, states = gdn_step_reference(both, z, before.weights, start)
    assert_close("out", out[count:], delta.out[:rows], 1e-3)
    settled = [start, *states][count]
    assert_close("state", settled.recurrent, delta.state.recurrent, 1e-6)
    assert torch.equal(delta.state.conv_window, before.state.conv_window)

    # The window is gdn_keep's: it then is where the same rows lead.
    windows = delta.state.conv_window[None].clone()
    pending = before.pending.qkv[:, None].clone()
    current = before.rows.qkv[:rows, None]
    some = torch.zeros(8, 1, 4)
    gdn_keep_reference(
        current,
        some[:rows],
        pending_qkv=pending,
        pending_updates=some.clone(),
        windows=windows,
        num_accepted=delta.num_accepted,
    )
    assert torch.equal(windows[0], settled.conv_window)
    assert torch.equal(pending[:rows], current)


def test_rows_beyond_those_of_the_pass_stay_as_they_are() -> None:
    layers = decoder("cpu", SIZES, num_layers=1, head=77)
    layers.poison()
    weight_stream_reference(layers.ops, rows=3)
    for wide, result in zip(layers.wide, layers.results, strict=True):
        assert result[:3].isfinite().all()
        result[:3].fill_(float("nan"))
        assert wide.isnan().all(), "written outside"


def test_a_row_is_the_same_alone_and_among_others(assert_close) -> None:
    layers = decoder("cpu", SIZES, num_layers=2, head=77)
    twin = copy.deepcopy(layers)
    for one in (layers, twin):
        one.poison()
    weight_stream_reference(layers.ops, rows=8)
    weight_stream_reference(twin.ops, rows=1)
    for ours, alone in zip(layers.results, twin.results, strict=True):
        assert_close("row 0", ours[:1], alone[:1], 1e-3)
