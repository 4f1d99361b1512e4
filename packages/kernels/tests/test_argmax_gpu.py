"""The kernel against the reference, on a GPU: every comparison is exact."""

import pytest
from bytebound_kernels import argmax, argmax_workspace_bytes
from bytebound_kernels.ops.argmax import argmax_reference

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

VOCAB = 248320
WIDTHS = [1, 2, 7, 8, 255, 2047, 2048, 2049, 4099, 151_936, VOCAB]
DTYPES = ["float16", "bfloat16", "float32"]

widths = pytest.mark.parametrize("n", WIDTHS, ids=lambda n: f"N{n}")
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def random(shape, dtype, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    values = 3 * torch.randn(shape, generator=generator, device="cuda")
    return values.to(getattr(torch, dtype))


def zeroed(rows):
    return torch.zeros(argmax_workspace_bytes(rows), dtype=torch.uint8, device="cuda")


def run(logits, id_map=None, workspace=None):
    rows = logits.shape[0]
    padded = torch.full((rows + 2,), -77, dtype=torch.int32, device="cuda")
    space = zeroed(rows) if workspace is None else workspace
    out = padded[1:-1]
    assert argmax(logits, out=out, workspace=space, id_map=id_map) is out
    assert padded[0] == -77 and padded[-1] == -77, "written outside"
    assert not space.any(), "the workspace is not zero again"
    return out


@pytest.mark.parametrize("rows", [1, 2, 5, 8], ids=lambda r: f"R{r}")
@widths
@dtypes
def test_matches_the_reference(rows, n, dtype) -> None:
    logits = random((rows, n), dtype)
    assert torch.equal(run(logits), argmax_reference(logits))


@widths
@dtypes
def test_a_row_alone_is_a_row_among_others(n, dtype) -> None:
    logits = random((8, n), dtype)
    together = run(logits)
    for i in range(8):
        assert run(logits[i : i + 1]) == together[i], f"row {i}"


@dtypes
@pytest.mark.parametrize("places", [(0, VOCAB - 1), (2047, 2048), (8, 9), (5000, 200_000, 240_000)])
def test_the_lowest_index_wins_a_tie(dtype, places) -> None:
    logits = random((2, VOCAB), dtype)
    logits[:, list(places)] = 100.0
    assert run(logits).tolist() == [places[0]] * 2
    logits[1] = 0.0
    logits[1, ::2] = -0.0
    assert run(logits).tolist() == [places[0], 0]


@dtypes
def test_infinities_are_values_and_nan_is_minus_one_in_its_row_alone(dtype) -> None:
    logits = random((5, VOCAB), dtype)
    clean = run(logits)
    logits[1] = float("-inf")
    logits[2, 70_000] = float("inf")
    logits[3, VOCAB - 1] = float("nan")
    logits[3, 0] = float("inf")
    logits[4, 3] = -float("nan")
    expected = [clean[0].item(), 0, 70_000, -1, -1]
    assert run(logits).tolist() == expected
    assert argmax_reference(logits).tolist() == expected


@dtypes
def test_id_map(dtype) -> None:
    logits = random((5, 32_000), dtype)
    generator = torch.Generator("cuda").manual_seed(1)
    id_map = torch.randperm(VOCAB, generator=generator, device="cuda")[:32_000].int()
    logits[4, 9] = float("nan")
    assert torch.equal(run(logits, id_map), argmax_reference(logits, id_map=id_map))


@dtypes
def test_strides_and_alignment_change_nothing(dtype) -> None:
    logits = random((3, 5000), dtype)
    plain = run(logits)
    for offset, gap in ((0, 8), (1, 0), (3, 5), (8, 1)):
        wide = torch.full((3, offset + 5000 + gap), float("nan"), device="cuda").to(logits.dtype)
        wide[:, offset : offset + 5000] = logits
        assert torch.equal(run(wide[:, offset : offset + 5000]), plain), f"{offset}, {gap}"


def test_no_rows() -> None:
    assert run(random((0, 64), "float16")).shape == (0,)


def test_thousands_of_graph_replays_repeat_the_answer() -> None:
    logits = random((5, VOCAB), "float32")
    workspace = zeroed(5)
    expected = run(logits, workspace=workspace).clone()
    outs = torch.full((50, 5), -77, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for out in outs:
            argmax(logits, out=out, workspace=workspace)
    for _ in range(100):
        outs.fill_(-77)
        graph.replay()
        assert (outs == expected).all()
    logits.copy_(random((5, VOCAB), "float32", seed=2))
    graph.replay()
    assert (outs == argmax_reference(logits)).all()
