"""The kernels against the reference, on a GPU: kept ids and drawn ids are equal."""

import pytest
from bytebound_kernels import sample, sample_workspace_bytes
from bytebound_kernels.ops.sample import (
    Purpose,
    draw_reference,
    philox_uniform_reference,
    sample_reference,
    weights_reference,
)

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

VOCAB = 248320
SEED = 0x9E3779B97F4A7C15 - 2**64  # an int64 with its highest bit set
SETTINGS = [
    (1.0, 0, 1.0, 0.0),
    (0.7, 20, 0.95, 0.0),
    (0.7, 20, 1.0, 0.0),
    (1.3, 0, 0.9, 0.0),
    (1.0, 50, 1.0, 0.05),
    (2.0, 0, 0.999, 0.02),
    (3.0, 100_000, 0.9, 0.0),
    (1e-3, 0, 0.5, 0.0),
    (0.0, 5, 0.5, 0.5),
    (1.0, 1, 1e-9, 1.0),
]
each_setting = pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s)))


def random(shape, seed=0, *, ties=False):
    generator = torch.Generator("cuda").manual_seed(seed)
    logits = 3 * torch.randn(shape, generator=generator, device="cuda")
    return logits.bfloat16().float() if ties else logits


def device(values, dtype):
    return torch.tensor(values, dtype=dtype, device="cuda")


def zeroed(rows, n):
    return torch.zeros(sample_workspace_bytes(rows, n), dtype=torch.uint8, device="cuda")


def run(logits, settings, position=1000, *, with_weights=True, workspace=None, **keywords):
    rows, n = logits.shape
    padded = device([-77] * (rows + 2), torch.int32)
    weights = torch.full((rows, n), float("nan"), dtype=torch.float64, device="cuda")
    totals = torch.full((rows,), float("nan"), dtype=torch.float64, device="cuda")
    kept = {"weights": weights, "totals": totals} if with_weights else {}
    out = sample(
        logits,
        device(settings, torch.float64),
        seed=device([SEED], torch.int64),
        position=device([position], torch.int32),
        out=padded[1:-1],
        workspace=zeroed(rows, n) if workspace is None else workspace,
        **kept,
        **keywords,
    )
    assert padded[0] == -77 and padded[-1] == -77, "written outside"
    return out.tolist(), weights, totals


def check(logits, settings, position=1000):
    ids, weights, totals = run(logits, settings, position)
    expected_ids, expected = sample_reference(
        logits.cpu(), torch.tensor(settings, dtype=torch.float64), SEED, position
    )
    for r in range(len(ids)):
        row, expected_row = weights[r].cpu(), expected[r]
        differing = torch.nonzero((row > 0) != (expected_row > 0)).flatten().tolist()
        assert not differing, f"row {r}: kept or dropped {differing[:5]}"
        torch.testing.assert_close(row, expected_row, rtol=1e-13, atol=0)
    torch.testing.assert_close(totals.cpu(), expected.sum(-1), rtol=1e-12, atol=0)
    assert ids == expected_ids


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@each_setting
def test_matches_the_reference_on_a_whole_vocabulary(settings, ties) -> None:
    check(random((2, VOCAB), ties=ties), settings)


@pytest.mark.parametrize("n", [1, 2, 7, 255, 2048, 2049, 5000], ids=lambda n: f"N{n}")
@each_setting
def test_matches_the_reference_on_odd_widths(settings, n) -> None:
    check(random((5, n), seed=n, ties=n % 2 == 1), settings)


@each_setting
def test_equal_logits_are_cut_in_the_order_of_their_ids(settings) -> None:
    logits = torch.full((2, 10_000), 1.5, device="cuda")
    logits[1, ::3] = 1.0
    check(logits, settings)


def test_many_positions_draw_what_the_reference_draws() -> None:
    logits, settings = random((1, 5000), ties=True), (0.9, 200, 0.97, 0.001)
    weights = weights_reference(logits[0].cpu(), *settings)
    workspace = zeroed(1, 5000)
    for position in range(500):
        ids, _, _ = run(logits, settings, position, workspace=workspace, with_weights=False)
        assert ids == [draw_reference(weights, philox_uniform_reference(SEED, position, 0))]


def test_purpose_and_offset_address_other_numbers() -> None:
    logits, settings = random((3, 5000)), (1.0, 0, 1.0, 0.0)
    for purpose in Purpose:
        ids, _, _ = run(logits, settings, 90, position_offset=10, purpose=purpose)
        expected, _ = sample_reference(
            logits.cpu(), torch.tensor(settings, dtype=torch.float64), SEED, 100, purpose
        )
        assert ids == expected


def test_promises_change_nothing() -> None:
    logits = random((2, VOCAB))
    for settings, promise in (
        ((0.8, 0, 0.9, 0.0), {"with_top_k": False}),
        ((0.8, 30, 1.0, 0.0), {"with_top_p": False}),
        ((0.8, 0, 1.0, 0.01), {"with_top_k": False, "with_top_p": False}),
    ):
        plain, promised = run(logits, settings), run(logits, settings, **promise)
        assert plain[0] == promised[0]
        assert torch.equal(plain[1], promised[1]) and torch.equal(plain[2], promised[2])


@each_setting
def test_a_row_alone_is_a_row_among_others_bit_for_bit(settings) -> None:
    logits = random((8, 20_000), ties=True)
    ids, weights, totals = run(logits, settings)
    for i in range(8):
        alone = run(logits[i : i + 1], settings, 1000 + i)
        assert alone[0] == ids[i : i + 1], f"row {i}"
        assert torch.equal(alone[1][0], weights[i]) and torch.equal(alone[2][0], totals[i])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_without_a_finite_maximum_have_no_id(temperature) -> None:
    logits = random((6, 5000))
    settings = (temperature, 20, 0.9, 0.0)
    clean, clean_weights, _ = run(logits, settings)
    logits[1, 4000] = float("nan")
    logits[2, 7] = float("inf")
    logits[3] = float("-inf")
    logits[4, 1:] = float("-inf")
    ids, weights, totals = run(logits, settings)
    assert ids == [clean[0], -1, -1, -1, 0, clean[5]]
    assert weights[1:4].isnan().all() and totals[1:4].isnan().all()
    assert torch.equal(weights[[0, 5]], clean_weights[[0, 5]])
    assert weights[4, 0] == 1 and not weights[4, 1:].any()


def test_strides_and_alignment_change_no_bit() -> None:
    logits, settings = random((3, 5000)), (0.9, 100, 0.9, 0.0)
    plain = run(logits, settings)
    for offset, gap in ((1, 0), (3, 5), (8, 8)):
        wide = torch.full((3, offset + 5000 + gap), float("nan"), device="cuda")
        wide[:, offset : offset + 5000] = logits
        other = run(wide[:, offset : offset + 5000], settings)
        assert other[0] == plain[0] and torch.equal(other[1], plain[1])


def test_one_graph_serves_all_settings_and_positions() -> None:
    logits = random((2, VOCAB), ties=True)
    settings, position = device(SETTINGS[0], torch.float64), device([0], torch.int32)
    seed, workspace = device([SEED], torch.int64), zeroed(2, VOCAB)
    outs = device([[-77] * 2] * 20, torch.int32)
    keywords = {"seed": seed, "position": position, "workspace": workspace}
    sample(logits, settings, out=outs[0], **keywords)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for out in outs:
            sample(logits, settings, out=out, **keywords)
    for i, case in enumerate(SETTINGS):
        settings.copy_(device(case, torch.float64))
        position.fill_(i)
        expected, _, _ = run(logits, case, i, with_weights=False)
        for _ in range(10):
            outs.fill_(-77)
            graph.replay()
            assert (outs == device(expected, torch.int32)).all()
