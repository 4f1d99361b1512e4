"""The kernel against the reference, on a GPU, both in float64: the ids are equal."""

import pytest
from bytebound_kernels import logprobs, logprobs_workspace_bytes
from bytebound_kernels.ops.logprobs import logprobs_reference

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

VOCAB = 248320
WIDTHS = [1, 2, 7, 255, 2048, 2049, 4099, VOCAB]


def random(shape, seed=0, *, ties=False):
    generator = torch.Generator("cuda").manual_seed(seed)
    logits = 3 * torch.randn(shape, generator=generator, device="cuda")
    return logits.bfloat16().float() if ties else logits


def random_ids(rows, n):
    generator = torch.Generator("cuda").manual_seed(1)
    return torch.randint(0, n, (rows,), generator=generator, device="cuda", dtype=torch.int32)


def run(logits, ids, num_top, workspace=None):
    rows, n = logits.shape
    if workspace is None:
        size = logprobs_workspace_bytes(rows, n, num_top)
        workspace = torch.zeros(size, dtype=torch.uint8, device="cuda")
    values = torch.full((rows, 1 + num_top), -77.0, dtype=torch.float64, device="cuda")
    out_ids = torch.full((rows, 1 + num_top), -77, dtype=torch.int32, device="cuda")
    assert logprobs(logits, ids, out_values=values, out_ids=out_ids, workspace=workspace) is values
    return values, out_ids


def check(logits, ids, num_top):
    values, out_ids = run(logits, ids, num_top)
    expected, expected_ids = logprobs_reference(logits, ids, num_top)
    assert torch.equal(out_ids, expected_ids)
    torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("num_top", [0, 1, 5, 20], ids=lambda k: f"n{k}")
@pytest.mark.parametrize("n", WIDTHS, ids=lambda n: f"N{n}")
def test_matches_the_reference(n, num_top, ties) -> None:
    for rows in (1, 5):
        check(random((rows, n), ties=ties), random_ids(rows, n), min(num_top, n))


def test_rows_without_a_finite_maximum_and_ids_outside() -> None:
    logits = random((7, 5000))
    ids = torch.tensor([0, 1, 2, 3, 4, -1, 5000], dtype=torch.int32, device="cuda")
    logits[1, 4999] = float("nan")
    logits[2, 3000] = float("inf")
    logits[3] = float("-inf")
    logits[4, 1:] = float("-inf")
    check(logits, ids, 3)
    values, out_ids = run(logits, ids, 3)
    assert values[1:4].isnan().all() and (out_ids[1:4, 1:] == -1).all()
    assert values[5:, 0].isnan().all() and not values[5:, 1:].isnan().any()


def test_a_row_alone_is_a_row_among_others_bit_for_bit() -> None:
    logits, ids = random((8, 20_000), ties=True), random_ids(8, 20_000)
    values, out_ids = run(logits, ids, 5)
    for i in range(8):
        alone, alone_ids = run(logits[i : i + 1], ids[i : i + 1], 5)
        assert torch.equal(alone[0], values[i]) and torch.equal(alone_ids[0], out_ids[i])


def test_strides_and_alignment_change_no_bit() -> None:
    logits, ids = random((3, 5000)), random_ids(3, 5000)
    values, out_ids = run(logits, ids, 5)
    for offset, gap in ((1, 0), (3, 5), (8, 8)):
        wide = torch.full((3, offset + 5000 + gap), float("nan"), device="cuda")
        wide[:, offset : offset + 5000] = logits
        other, other_ids = run(wide[:, offset : offset + 5000], ids, 5)
        assert torch.equal(other, values) and torch.equal(other_ids, out_ids)


def test_graph_replays_repeat_their_bits() -> None:
    logits, ids = random((2, VOCAB)), random_ids(2, VOCAB)
    size = logprobs_workspace_bytes(2, VOCAB, 5)
    workspace = torch.zeros(size, dtype=torch.uint8, device="cuda")
    expected, expected_ids = run(logits, ids, 5, workspace)
    values, out_ids = torch.empty_like(expected), torch.empty_like(expected_ids)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            logprobs(logits, ids, out_values=values, out_ids=out_ids, workspace=workspace)
    for _ in range(200):
        values.fill_(float("nan"))
        graph.replay()
        assert torch.equal(values, expected) and torch.equal(out_ids, expected_ids)
