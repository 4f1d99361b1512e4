"""The reference is the runtime's attention layer, and what a float8 cache adds to it."""

from types import SimpleNamespace

import pytest
from bytebound_kernels.ops.attention_decode import (
    attention_decode_reference,
    attention_decode_workspace_bytes,
)
from bytebound_kernels.ops.attention_decode.op import _num_leaves

torch = pytest.importorskip("torch")

NH, NKV, DH, S, THETA, EPS = 4, 2, 256, 64, 1e7, 1e-6


def draw(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rows_of(count, seed=0):
    return (
        draw(seed, count, NH * 2 * DH),
        draw(seed + 1, count, NKV * DH),
        draw(seed + 2, count, NKV * DH),
    )


def inv_freq_of(rotary_dim):
    return 1.0 / THETA ** (torch.arange(0, rotary_dim, 2) / rotary_dim)


@pytest.mark.parametrize("start", [0, 5, 61], ids=lambda n: f"p{n}")
@pytest.mark.parametrize("wide", [True, False], ids=["wide", "window"])
def test_agrees_with_the_layer_of_the_runtime(wide, start) -> None:
    attention = pytest.importorskip("bytebound.reference.attention")
    from bytebound.reference.rotary import rotary_angles
    from bytebound.reference.rows import Rows
    from bytebound.reference.state import KvCache

    count = 3
    config = SimpleNamespace(
        num_attention_heads=NH,
        num_key_value_heads=NKV,
        head_dim=DH,
        rotary_dim=64,
        rope_theta=THETA,
        rms_norm_eps=EPS,
    )
    q_gate, k, v = rows_of(count)
    norms = draw(9, DH) * 0.1, draw(10, DH) * 0.1
    # Projections that pick their part of x, so that x holds the projected rows themselves.
    x = torch.cat((q_gate, k, v), dim=1)
    pick_q, pick_k, pick_v = torch.eye(x.shape[1]).split((q_gate.shape[1], NKV * DH, NKV * DH))
    weights = SimpleNamespace(
        q_proj=pick_q,
        k_proj=pick_k,
        v_proj=pick_v,
        o_proj=torch.eye(NH * DH),
        q_norm=norms[0],
        k_norm=norms[1],
    )
    kv = KvCache(draw(11, NKV, S, DH), draw(12, NKV, S, DH))
    k_cache, v_cache = kv.k.clone(), kv.v.clone()
    rows = Rows(start=start, count=count, wide=wide)
    placed = x
    if not wide:
        placed = x.new_zeros(rows.size, x.shape[1])
        placed[rows.slots] = x
    angles = rotary_angles(rows.positions(x.device), config)
    expected = attention.gated_attention(placed, weights, config, kv, rows, angles)[rows.slots]

    out = attention_decode_reference(
        q_gate, k, v, *norms, inv_freq_of(64), start, k_cache, v_cache, eps=EPS, dtype=torch.float32
    )
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(k_cache, kv.k, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(v_cache, kv.v, rtol=0, atol=0)


def test_a_float8_cache_keeps_the_largest_number_of_each_head_and_position() -> None:
    q_gate, k, v = rows_of(2)
    v[1, DH:] = 0.0
    v[0, 3] = float("inf")
    norm = torch.zeros(DH)
    k_cache, v_cache = (torch.zeros(NKV, S, DH).to(torch.float8_e4m3fn) for _ in range(2))
    k_scale, v_scale = torch.zeros(NKV, S), torch.zeros(NKV, S)
    out = attention_decode_reference(
        *(q_gate, k, v, norm, norm, inv_freq_of(64), 7, k_cache, v_cache),
        k_scale=k_scale,
        v_scale=v_scale,
    )
    largest = v.view(2, NKV, DH)[1].abs().amax(-1)
    assert torch.equal(v_cache[0, 8].float().abs().amax() * v_scale[0, 8], largest[0])
    assert v_scale[1, 8] == 0 and (v_cache[1, 8].float() == 0).all()
    assert v_scale[0, 7].isnan() and v_scale[1, 7].isfinite()
    heads = out.view(2, NH, DH)
    assert heads[:, : NH // NKV].isnan().all() and heads[:, NH // NKV :].isfinite().all()
    assert k_scale[:, :7].eq(0).all() and k_scale[:, 7:9].gt(0).all()


def test_pieces_of_a_context() -> None:
    counts = [_num_leaves(n) for n in (1, 64, 65, 2048, 2049, 8192, 32768, 131072, 262144)]
    assert counts == [1, 1, 2, 32, 33, 80, 176, 368, 496]


def test_workspace_grows_with_rows_heads_and_positions() -> None:
    from bytebound_kernels import InvalidArgumentError, _native

    sizes = [(1, 2, 1), (1, 24, 4096), (5, 24, 32768), (8, 24, 262144), (8, 64, 2**20)]
    ours = [attention_decode_workspace_bytes(*size) for size in sizes]
    assert ours == sorted(ours)
    if _native.built_with_cuda:
        assert ours == [_native.attention_decode_workspace_bytes(*size) for size in sizes]
    with pytest.raises(InvalidArgumentError, match="rows is 9; expected 1 to 8"):
        attention_decode_workspace_bytes(9, 24, 4096)
