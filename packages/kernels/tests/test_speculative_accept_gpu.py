"""The kernel against the reference, on a GPU: every comparison is exact."""

import random

import pytest
from bytebound_kernels import speculative_accept
from bytebound_kernels.ops.speculative_accept import (
    CYCLE_HEADER,
    CYCLE_NEXT_TOKEN,
    CYCLE_NUM_EMITTED,
    CYCLE_POSITION,
    speculative_accept_reference,
)

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


def device(values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 31, 32], ids=lambda r: f"R{r}")
def test_cycles_in_a_row_match_the_reference(rows) -> None:
    choose = random.Random(rows)
    words, ring = [100, *[0] * (CYCLE_HEADER - 1 + rows)], [-7] * (rows + 3)
    padded = device([-77, *words, -77])
    cycle, output = padded[1:-1], device(ring)
    for _ in range(40):
        ids = [choose.randrange(-1, 2) if choose.random() < 0.3 else 1 for _ in range(rows)]
        drafts = [1] * (rows - 1)
        words, ring = speculative_accept_reference(ids, drafts, words, ring)
        result = speculative_accept(
            device(ids), device(drafts) if drafts else None, cycle=cycle, output=output
        )
        assert result is cycle
        assert cycle.tolist() == words
        assert output.tolist() == ring
    assert padded[0] == -77 and padded[-1] == -77, "written outside"


@pytest.mark.parametrize("accepted", range(5))
def test_every_number_of_accepted_drafts(accepted) -> None:
    ids, drafts = [11, 12, 13, 14, 15], [11, 12, 13, 14]
    if accepted < 4:
        drafts[accepted] = 99
    cycle = device([7, *[0] * 12])
    speculative_accept(device(ids), device(drafts), cycle=cycle)
    emitted = ids[: accepted + 1]
    head = [8 + accepted, emitted[-1], accepted, accepted + 1, accepted + 1, 0, 0, 0]
    assert cycle.tolist() == head + emitted + [-1] * (4 - accepted)


def test_one_graph_serves_all_positions() -> None:
    ids, drafts = device([4, 5, 6]), device([4, 5])
    cycle, output = device([0] * (CYCLE_HEADER + 3)), device([0] * 30)
    speculative_accept(ids, drafts, cycle=cycle, output=output)
    cycle.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        speculative_accept(ids, drafts, cycle=cycle, output=output)
    position = 0
    for i in range(2000):
        gained = 1 + i % 3
        drafts.copy_(device([4 if gained > 1 else 0, 5 if gained > 2 else 0]))
        graph.replay()
        position += gained
        assert cycle[CYCLE_POSITION] == position
        assert cycle[CYCLE_NUM_EMITTED] == gained
        assert cycle[CYCLE_NEXT_TOKEN] == 3 + gained
