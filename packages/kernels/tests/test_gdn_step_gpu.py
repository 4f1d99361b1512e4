"""The Gated DeltaNet step against its reference, and its three forms against each other."""

import pytest

torch = pytest.importorskip("torch")

from bytebound_kernels import GdnRows, GdnState, gdn_step  # noqa: E402
from bytebound_kernels.ops.gdn_step import (  # noqa: E402
    gdn_step_reference,
    gdn_updates_reference,
)

from .gdn_cases import V, copy_of, in_float64, make, nothing_pending, part  # noqa: E402

pytestmark = pytest.mark.gpu

# Relative RMS error against the reference in float64: rounding of out, and float32 in between.
TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 5e-3}
STATE_TOLERANCE = 1e-5
# H, HV: tiny, the 27B, and ratios that are walked in one, two and six rounds or fill no group.
HEADS = [(1, 3), (16, 48), (2, 2), (3, 6), (2, 8), (1, 16)]
ROWS = [1, 2, 5, 8]

dtypes = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["float16", "bfloat16"])
heads = pytest.mark.parametrize("h_hv", HEADS, ids=[f"H{h}-HV{hv}" for h, hv in HEADS])
rows_of = pytest.mark.parametrize("num_rows", ROWS, ids=[f"R{r}" for r in ROWS])


def case(h_hv, num_rows, dtype=torch.float16, seed=0):
    return make(*h_hv, num_rows, dtype, seed, "cuda")


def poisoned(like):
    return torch.full_like(like, float("nan"))


def count(value):
    return torch.tensor([value], dtype=torch.int32, device="cuda")


def same_bits(a, b):
    integer = torch.int32 if a.dtype == torch.float32 else torch.int16
    return torch.equal(a.contiguous().view(integer), b.contiguous().view(integer))


def same_state(a, b):
    return all(same_bits(x, y) for x, y in zip(a, b, strict=True))


def one_by_one(rows, z, weights, state):
    """Step through the rows one at a time; return the rows of out and the state after each."""
    state, outs, states = copy_of(state), [], [copy_of(state)]
    for i in range(len(z)):
        outs.append(gdn_step(part(rows, i, i + 1), z[i : i + 1], weights, state, commit=True))
        states.append(copy_of(state))
    return torch.cat(outs), states


def verified(rows, z, weights, state, size=None):
    """Verify rows; return out, and what is pending then, in room for ``size`` rows."""
    num_rows, channels = rows.qkv.shape
    hv = state.recurrent.shape[0]
    heads = ((channels // V - hv) // 2, hv)
    pending = nothing_pending(*heads, size or num_rows, rows.qkv.dtype, "cuda")
    out = gdn_step(
        rows, z, weights, state, commit=False, pending=pending, num_accepted=count(0)
    )  # fmt: skip
    return out, pending


@rows_of
@heads
@dtypes
def test_step_matches_the_reference(dtype, h_hv, num_rows, assert_close) -> None:
    rows, z, weights, state = case(h_hv, num_rows, dtype)
    expected, states = gdn_step_reference(rows, z, weights, in_float64(state))
    out = poisoned(z)
    assert gdn_step(rows, z, weights, state, commit=True, out=out) is out
    assert_close("out", expected, out, TOLERANCE[dtype])
    assert_close("state", states[-1].recurrent, state.recurrent, STATE_TOLERANCE)
    assert torch.equal(state.conv_window.double(), states[-1].conv_window)


def test_long_sequence_does_not_drift(assert_close) -> None:
    rows, z, weights, state = case((2, 6), 800)
    expected, states = gdn_step_reference(rows, z, weights, in_float64(state))
    out = poisoned(z)
    for i in range(0, 800, 8):
        inside = slice(i, i + 8)
        gdn_step(part(rows, i, i + 8), z[inside], weights, state, commit=True, out=out[inside])
    assert_close("out", expected, out, 1e-3)
    assert_close("state", states[-1].recurrent, state.recurrent, 1e-5)


@rows_of
@heads
@dtypes
def test_rows_have_the_same_bits_alone_and_in_every_form(dtype, h_hv, num_rows) -> None:
    rows, z, weights, state = case(h_hv, num_rows, dtype)
    outs, states = one_by_one(rows, z, weights, state)

    stepped = copy_of(state)
    assert same_bits(gdn_step(rows, z, weights, stepped, commit=True), outs)
    assert same_state(stepped, states[-1])

    verified = copy_of(state)
    assert same_bits(gdn_step(rows, z, weights, verified, commit=False), outs)
    assert same_state(verified, state)


@rows_of
@heads
@dtypes
def test_what_is_pending_matches_the_reference(dtype, h_hv, num_rows, assert_close) -> None:
    rows, z, weights, state = case(h_hv, num_rows, dtype)
    expected = gdn_updates_reference(rows, weights, in_float64(state))
    before = copy_of(state)
    out, pending = verified(rows, z, weights, state, 8)
    assert same_bits(out, gdn_step(rows, z, weights, state, commit=False))
    assert same_state(state, before)
    assert torch.equal(pending.qkv[:num_rows], rows.qkv)
    h, hv = h_hv
    got = pending.updates[:num_rows]
    sizes = [h * V, hv * V, hv, -hv % 4]
    parts = [torch.split(one, sizes, dim=1) for one in (expected.updates, got)]
    for name, wanted, found in zip(("k", "delta", "decay"), *parts, strict=False):
        assert_close(name, wanted, found, STATE_TOLERANCE)
    for tensor in pending:
        assert tensor[num_rows:].isnan().all()


@pytest.mark.parametrize("num_current", [0, 1, 5, 8], ids=lambda r: f"R{r}")
@pytest.mark.parametrize("num_pending", [1, 5, 8], ids=lambda r: f"P{r}")
@pytest.mark.parametrize("h_hv", [(1, 3), (16, 48), (2, 8)], ids=["H1-HV3", "H16-HV48", "H2-HV8"])
def test_replay_is_stepping_through_the_accepted_rows(h_hv, num_pending, num_current) -> None:
    earlier, earlier_z, weights, state = case(h_hv, num_pending)
    rows, z, _, _ = case(h_hv, num_current, seed=1)
    _, states = one_by_one(earlier, earlier_z, weights, state)
    _, kept = verified(earlier, earlier_z, weights, state, 8)
    for accepted in range(-1, num_pending + 2):
        replayed, pending = copy_of(state), copy_of(kept)
        out = poisoned(z)
        gdn_step(
            rows,
            z,
            weights,
            replayed,
            commit=False,
            pending=pending,
            num_accepted=count(accepted),
            pending_rows=num_pending,
            out=out,
        )
        settled = states[min(max(accepted, 0), num_pending)]
        assert same_state(replayed, settled), f"{accepted} accepted"
        if num_current:
            expected, next_pending = verified(rows, z, weights, settled)
            assert same_bits(out, expected), f"{accepted} accepted"
            for got, wanted in zip(pending, next_pending, strict=True):
                assert same_bits(got[:num_current], wanted), f"{accepted} accepted"
        for got, wanted in zip(pending, kept, strict=True):
            assert same_bits(got[num_current:], wanted[num_current:]), f"{accepted} accepted"


def test_pending_rows_that_do_not_count_are_not_used() -> None:
    earlier, earlier_z, weights, state = case((2, 6), 5)
    rows, z, _, _ = case((2, 6), 3, seed=1)
    _, kept = verified(earlier, earlier_z, weights, state)
    results = []
    for spoil in (False, True):
        pending = copy_of(kept)
        if spoil:
            for tensor in pending:
                tensor[2:] = float("nan")
        replayed = copy_of(state)
        out = gdn_step(
            rows, z, weights, replayed, commit=False, pending=pending, num_accepted=count(2)
        )
        results.append((out, *replayed, *(tensor[:3] for tensor in pending)))
    assert all(same_bits(a, b) for a, b in zip(*results, strict=True))


def wide(tensor, before, after):
    """Return the tensor as a slice of a poisoned wider one."""
    shape = (tensor.shape[0], before + tensor.shape[1] + after)
    whole = torch.full(shape, float("nan"), dtype=tensor.dtype, device="cuda")
    inside = whole[:, before : before + tensor.shape[1]]
    inside.copy_(tensor)
    return inside


@dtypes
def test_slices_of_wider_tensors_and_nothing_else_is_written(dtype) -> None:
    rows, z, weights, state = case((2, 6), 5, dtype)
    plain_state = copy_of(state)
    plain = gdn_step(rows, z, weights, plain_state, commit=True)
    sliced = GdnRows(wide(rows.qkv, 2, 4), wide(rows.a, 1, 2), wide(rows.b, 3, 4))
    window = torch.full((state.conv_window.numel() + 32,), 7.0, dtype=dtype, device="cuda")
    recurrent = torch.full((state.recurrent.numel() + 32,), 7.0, device="cuda")
    inner = GdnState(
        window[16:-16].view_as(state.conv_window), recurrent[16:-16].view_as(state.recurrent)
    )
    for target, source in zip(inner, state, strict=True):
        target.copy_(source)
    whole_out = torch.full((5, 6 * V + 10), 7.0, dtype=dtype, device="cuda")
    out = whole_out[:, 4:-6]
    gdn_step(sliced, wide(z, 2, 2), weights, inner, commit=True, out=out)
    assert same_bits(out, plain) and same_state(inner, plain_state)
    for edge in (window[:16], window[-16:], recurrent[:16], recurrent[-16:]):
        assert (edge == 7).all()
    assert (whole_out[:, :4] == 7).all() and (whole_out[:, -6:] == 7).all()


def test_one_wide_tensor_for_all_projections() -> None:
    rows, z, weights, state = case((1, 3), 4)
    plain = gdn_step(rows, z, weights, copy_of(state), commit=False)
    together = torch.cat((rows.qkv, z, rows.a, rows.b, torch.zeros_like(z)), dim=1)
    widths = [rows.qkv.shape[1], z.shape[1], 3, 3, z.shape[1]]
    qkv, z_slice, a, b, out = together.split(widths, dim=1)
    gdn_step(GdnRows(qkv, a, b), z_slice, weights, state, commit=False, out=out)
    assert same_bits(out, plain)


def test_a_nan_takes_its_row_and_what_follows() -> None:
    rows, z, weights, state = case((2, 6), 5)
    clean = gdn_step(rows, z, weights, state, commit=False)
    spoiled = z.clone()
    spoiled[2, 0] = float("nan")
    out = gdn_step(rows, spoiled, weights, state, commit=False)
    assert out[2, 0].isnan()
    out[2, 0] = clean[2, 0]
    assert same_bits(out, clean)

    rows.b[2, 4] = float("nan")
    out = gdn_step(rows, z, weights, state, commit=False).view(5, 6, V)
    assert out[2:, 4].isnan().all()
    out[2:, 4] = clean.view(5, 6, V)[2:, 4]
    assert same_bits(out, clean.view(5, 6, V))


@pytest.mark.parametrize("a", [-60.0, 30.0, 60.0], ids=lambda a: f"a{a:.0f}")
def test_extreme_gates(a, assert_close) -> None:
    rows, z, weights, state = case((1, 3), 4)
    rows.a.fill_(a)
    rows.b.copy_(torch.tensor([-40.0, 0.0, 40.0], device="cuda").expand(4, 3))
    expected, states = gdn_step_reference(rows, z, weights, in_float64(state))
    out = gdn_step(rows, z, weights, state, commit=True)
    assert_close("out", expected, out, 1e-3)
    assert_close("state", states[-1].recurrent, state.recurrent, 1e-5)


def test_zero_inputs_leave_a_decayed_state() -> None:
    rows, z, weights, state = case((1, 3), 2)
    for tensor in (*rows, state.conv_window):
        tensor.zero_()
    before = state.recurrent.clone()
    out = gdn_step(rows, z, weights, state, commit=True)
    assert (out == 0).all()
    ratio = (state.recurrent / before).view(3, -1)
    assert torch.allclose(ratio, ratio[:, :1].expand_as(ratio), rtol=1e-5)
    assert (ratio < 1).all() and (ratio > 0).all()


def test_no_rows_at_all() -> None:
    rows, z, weights, state = case((1, 3), 0)
    before = copy_of(state)
    assert gdn_step(rows, z, weights, state, commit=True).shape == (0, 3 * V)
    assert same_state(state, before)


def test_a_long_graph_of_speculative_cycles_equals_eager() -> None:
    """One captured cycle serves every accepted count, thousands of times, with the same bits."""
    h_hv, size = (16, 48), 5
    _, _, weights, state = case(h_hv, 1)
    rows, z, _, _ = case(h_hv, size, seed=1)
    first = verified(*case(h_hv, size, seed=2)[:2], weights, state)[1]
    pending = copy_of(first)
    accepted, out = count(0), poisoned(z)

    def cycle(on):
        gdn_step(
            rows, z, weights, on, commit=False, pending=pending, num_accepted=accepted, out=out
        )
        rows.qkv.neg_()  # other rows in every cycle

    eager, eager_outs, counts = copy_of(state), [], [3, 0, 5, 1, 4, 2] * 5
    first_qkv = rows.qkv.clone()
    for value in counts:
        accepted.fill_(value)
        cycle(eager)
        eager_outs.append(out.clone())

    eager_pending = copy_of(pending)
    captured = copy_of(state)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cycle(captured)
    beginning = (*state, *first, first_qkv)
    for _ in range(70):
        for target, source in zip((*captured, *pending, rows.qkv), beginning, strict=True):
            target.copy_(source)
        for value, expected in zip(counts, eager_outs, strict=True):
            accepted.fill_(value)
            out.fill_(float("nan"))
            graph.replay()
            assert torch.equal(out, expected)
        assert same_state(captured, eager) and same_state(pending, eager_pending)


@pytest.mark.parametrize("settled", [False, True], ids=["any", "settled"])
def test_chained_launches_in_a_graph_repeat_their_bits(settled) -> None:
    """Kernels that overlap: a ring of states, which only an unsettled launch may use at once."""
    num_states = 8 if settled else 1
    rows, z, weights, state = case((16, 48), 1)
    ring = [copy_of(state) for _ in range(num_states)]
    expected, steps = copy_of(state), 6
    for _ in range(steps):
        plain = gdn_step(rows, z, weights, expected, commit=True)
        torch.cuda.synchronize()
    outs = [poisoned(z) for _ in ring]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(steps):
            for own, out in zip(ring, outs, strict=True):
                gdn_step(rows, z, weights, own, commit=True, out=out, state_settled=settled)
            if settled:
                z.mul_(1)  # an ordinary launch: what came before it has ended
    for _ in range(1000):
        for own in ring:
            for target, source in zip(own, state, strict=True):
                target.copy_(source)
        graph.replay()
        for own, out in zip(ring, outs, strict=True):
            assert torch.equal(out, plain)
            assert torch.equal(own.recurrent, expected.recurrent)
            assert torch.equal(own.conv_window, expected.conv_window)


def test_repeats_its_bits() -> None:
    rows, z, weights, state = case((16, 48), 8)
    first = gdn_step(rows, z, weights, state, commit=False)
    for _ in range(2000):
        again = gdn_step(rows, z, weights, state, commit=False)
    assert same_bits(again, first)
