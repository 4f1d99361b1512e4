"""The reference of the Gated DeltaNet step against the reference model of the runtime."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("bytebound")

from bytebound.reference.gated_delta import gated_delta_net  # noqa: E402
from bytebound.reference.rows import Rows  # noqa: E402
from bytebound.reference.state import GatedDeltaState  # noqa: E402
from bytebound_kernels.ops.gdn_step import gdn_step_reference  # noqa: E402

from .gdn_cases import V, make  # noqa: E402

HEADS = [(1, 3), (2, 2), (2, 8)]
EPS = 1e-6


def layer_of(weights, h, hv):
    """Return a layer whose projections pick their part of an input [qkv | z | a | b]."""
    widths = [(2 * h + hv) * V, hv * V, hv, hv]
    qkv, z, a, b = torch.eye(sum(widths)).split(widths)
    layer = SimpleNamespace(
        in_proj_qkv=qkv,
        in_proj_z=z,
        in_proj_a=a,
        in_proj_b=b,
        conv1d=weights.conv,
        dt_bias=weights.dt_bias,
        A_log=weights.a_log,
        norm=weights.norm,
        out_proj=torch.eye(hv * V),
    )
    config = SimpleNamespace(
        linear_num_key_heads=h,
        linear_num_value_heads=hv,
        linear_key_head_dim=V,
        linear_value_head_dim=V,
        key_dim=h * V,
        value_dim=hv * V,
        rms_norm_eps=EPS,
    )
    return layer, config


@pytest.mark.parametrize("num_rows", [1, 5, 8], ids=lambda r: f"R{r}")
@pytest.mark.parametrize(("h", "hv"), HEADS, ids=[f"H{h}-HV{hv}" for h, hv in HEADS])
def test_matches_the_decode_window_of_the_model(h, hv, num_rows, assert_close) -> None:
    rows, z, weights, state = make(h, hv, num_rows, torch.float32)
    out, states = gdn_step_reference(rows, z, weights, state, eps=EPS)

    layer, config = layer_of(weights, h, hv)
    model_state = GatedDeltaState(state.recurrent.clone(), state.conv_window.clone())
    window = Rows(start=0, count=num_rows, wide=False)
    x = torch.zeros(window.size, layer.in_proj_qkv.shape[1])
    x[window.slots] = torch.cat((rows.qkv, z, rows.a, rows.b), dim=1)
    expected = gated_delta_net(x, layer, config, model_state, window)[window.slots]

    assert_close("out", expected, out, 2e-6)
    for kept, (recurrent, conv_window) in zip(states, model_state.pending, strict=True):
        assert_close("state", recurrent, kept.recurrent, 1e-6)
        assert torch.equal(conv_window, kept.conv_window)


def test_computes_in_the_dtype_of_the_state(assert_close) -> None:
    rows, z, weights, state = make(1, 3, 4, torch.float16)
    wide = type(state)(state.conv_window, state.recurrent.double())
    out, states = gdn_step_reference(rows, z, weights, wide)
    assert out.dtype == torch.float64 and states[-1].recurrent.dtype == torch.float64
    assert states[-1].conv_window.dtype == torch.float16
    narrow, _ = gdn_step_reference(rows, z, weights, state)
    assert_close("out", out, narrow, 2e-6)


def test_leaves_the_given_state_as_it_is() -> None:
    rows, z, weights, state = make(1, 3, 4, torch.float32)
    before = [tensor.clone() for tensor in state]
    gdn_step_reference(rows, z, weights, state)
    assert all(torch.equal(a, b) for a, b in zip(state, before, strict=True))
