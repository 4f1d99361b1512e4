"""The kernel against the reference, on a GPU: the same decisions, draws and counters."""

import random

import pytest
from bytebound_kernels import speculative_sample, speculative_sample_workspace_bytes
from bytebound_kernels.ops.sample import weights_reference
from bytebound_kernels.ops.speculative_accept import CYCLE_HEADER, CYCLE_NUM_ACCEPTED
from bytebound_kernels.ops.speculative_sample import speculative_sample_reference

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


def ints(values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def zeroed(n):
    size = speculative_sample_workspace_bytes(n)
    return torch.zeros(size, dtype=torch.uint8, device="cuda")


def distributions(rows, n, seed, *, like=None):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, n, generator=generator)
    if like is not None:
        logits = like[:rows] + 0.2 * logits
    weights = torch.stack([weights_reference(row, 0.6, 0, 0.95, 0.0) for row in logits])
    return logits, weights


def run(weights, drafts, seed, words, ring, draft_weights=None, workspace=None):
    n = weights.shape[1]
    padded = ints([-77, *words, -77])
    output = ints(ring)
    extra = {}
    if draft_weights is not None:
        extra = {
            "draft_weights": draft_weights.cuda(),
            "draft_totals": draft_weights.sum(-1).cuda(),
        }
    result = speculative_sample(
        weights.cuda(),
        weights.sum(-1).cuda(),
        ints(drafts) if drafts else None,
        seed=torch.tensor([seed], device="cuda"),
        cycle=padded[1:-1],
        output=output,
        workspace=zeroed(n) if workspace is None else workspace,
        **extra,
    )
    assert padded[0] == -77 and padded[-1] == -77, "written outside"
    return result.tolist(), output.tolist()


@pytest.mark.parametrize("certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize("n", [3, 40, 2049, 20_000], ids=lambda n: f"N{n}")
@pytest.mark.parametrize("rows", [1, 2, 5, 8], ids=lambda r: f"R{r}")
def test_cycles_in_a_row_match_the_reference(rows, n, certain) -> None:
    choose = random.Random(rows)
    workspace = zeroed(n)
    words, ring = [100, *[0] * (CYCLE_HEADER - 1 + rows)], [-7] * (rows + 3)
    for seed in range(12):
        logits, weights = distributions(rows, n, seed)
        draft_weights = None
        drafts = [int(row.argmax()) for row in weights[:-1]]
        if not certain and rows > 1:
            _, draft_weights = distributions(rows - 1, n, seed + 1, like=logits)
            drafts = [
                int(choose.choice(torch.nonzero(row).flatten().tolist())) for row in draft_weights
            ]
        expected = speculative_sample_reference(
            weights, drafts, seed, words, ring, draft_weights=draft_weights
        )
        result = run(weights, drafts, seed, words, ring, draft_weights, workspace)
        assert result == expected
        words, ring = expected


def test_a_draft_outside_the_vocabulary_is_refused() -> None:
    _, weights = distributions(3, 500, 0)
    words = [5, *[0] * (CYCLE_HEADER + 2)]
    for draft in (-1, 500, 2**31 - 1):
        expected = speculative_sample_reference(weights, [draft, 1], 3, words, [0] * 3)
        assert run(weights, [draft, 1], 3, words, [0] * 3) == expected
        assert expected[0][CYCLE_NUM_ACCEPTED] == 0


def test_a_row_without_probabilities_emits_minus_one() -> None:
    _, weights = distributions(3, 500, 0)
    weights[1] = float("nan")
    weights[0] = 0.0
    weights[0, 7] = 2.0
    words, ring = run(weights, [7, 3], 0, [5, *[0] * (CYCLE_HEADER + 2)], [0] * 3)
    assert words == [7, -1, 1, 2, 2, 0, 0, 0, 7, -1, -1]
    assert ring == [7, -1, 0]


def test_graph_replays_repeat_the_cycle() -> None:
    rows, n = 5, 248_320
    _, weights = distributions(rows, n, 0)
    drafts = [int(row.argmax()) for row in weights[:-1]]
    first = [9, *[0] * (CYCLE_HEADER - 1 + rows)]
    expected, _ = speculative_sample_reference(weights, drafts, 1, first)
    cycle, start = ints(first), ints(first)
    arguments = (weights.cuda(), weights.sum(-1).cuda(), ints(drafts))
    keywords = {
        "seed": torch.tensor([1], device="cuda"),
        "cycle": cycle,
        "workspace": zeroed(n),
    }
    speculative_sample(*arguments, **keywords)
    assert cycle.tolist() == expected
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.add(start, 0, out=cycle)
        speculative_sample(*arguments, **keywords)
    for _ in range(1000):
        graph.replay()
        assert cycle.tolist() == expected
