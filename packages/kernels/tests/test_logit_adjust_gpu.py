"""The kernels against the references, on a GPU: every comparison is bit for bit."""

import pytest
from bytebound_kernels import history_append, logit_adjust
from bytebound_kernels.ops.history_append import history_append_reference
from bytebound_kernels.ops.logit_adjust import logit_adjust_reference

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

VOCAB = 248320
SETTINGS = [
    (1.0, 0.0, 0.0, 0.0),
    (1.3, 0.0, 0.0, 0.0),
    (1.0, 0.7, 0.0, 8.0),
    (1.0, 0.0, -0.3, 1.0),
    (0.01, -1.1, 0.1, 100.0),
    (1e-38, 2.0, 2.0, 10.0),
]


def ints(values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def random(shape, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return 5 * torch.randn(shape, generator=generator, device="cuda")


def history(n):
    generator = torch.Generator("cuda").manual_seed(1)
    seen = torch.rand(n, generator=generator, device="cuda") < 0.3
    counts = torch.randint(0, 4, (n,), generator=generator, device="cuda", dtype=torch.int32)
    return {"seen": seen.to(torch.uint8), "counts": counts * seen}


def lists(rows, n):
    ids = sorted({0, n // 3, n // 2, n - 1})
    return {
        "drafts": ints([(7 * i) % n for i in range(rows - 1)]),
        "bias_ids": ints([-1, *ids, n]),
        "bias_values": torch.linspace(-9.7, 12.3, len(ids) + 2, device="cuda"),
        "banned_ids": ints([-1, n // 2, n // 2, n]),
        "end_ids": ints([n // 3, n + 5]),
    }


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def check(logits, settings, generated, **tensors):
    wide = torch.tensor(settings, dtype=torch.float64, device="cuda")
    expected = logit_adjust_reference(logits, wide, generated=generated, **tensors)
    out = torch.full_like(logits, float("nan"))
    result = logit_adjust(logits, wide, out=out, generated=ints([generated]), **tensors)
    assert result is out
    assert same_bits(out, expected)
    return out


@pytest.mark.parametrize("rows", [1, 5], ids=lambda r: f"R{r}")
@pytest.mark.parametrize("n", [1, 9, 2047, 2049, 5000, VOCAB], ids=lambda n: f"N{n}")
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s)))
def test_matches_the_reference(settings, n, rows) -> None:
    check(random((rows, n)), settings, 6, **history(n), **lists(rows, n))


def test_each_tensor_may_be_missing() -> None:
    n, settings = 3000, SETTINGS[4]
    everything = {**history(n), **lists(5, n)}
    for missing in ("seen", "counts", "drafts", "bias_ids", "banned_ids", "end_ids"):
        some = {name: tensor for name, tensor in everything.items() if name != missing}
        if missing == "bias_ids":
            del some["bias_values"]
        check(random((5, n)), settings, 3, **some)
    check(random((5, n)), settings, 3)


def test_a_row_alone_is_a_row_among_others() -> None:
    n = 5000
    tensors = {**history(n), **lists(8, n)}
    logits = random((8, n))
    together = check(logits, SETTINGS[4], 95, **tensors)
    alone = check(logits[:1], SETTINGS[4], 95, **{**tensors, "drafts": ints([])})
    assert same_bits(alone[0], together[0])


def test_in_place_and_strided_and_nothing_else_is_written() -> None:
    n = 5000
    logits, tensors = random((3, n)), {**history(n), **lists(3, n)}
    settings = torch.tensor(SETTINGS[4], dtype=torch.float64, device="cuda")
    plain = check(logits, SETTINGS[4], 0, **tensors)
    in_place = logits.clone()
    logit_adjust(in_place, settings, out=in_place, **tensors)
    assert same_bits(in_place, plain)
    for offset, gap in ((1, 0), (3, 5), (4, 4)):
        inside = slice(offset, offset + n)
        wide = torch.full((3, offset + n + gap), float("nan"), device="cuda")
        wide[:, inside] = logits
        wide_out = torch.full_like(wide, 7.0)
        logit_adjust(wide[:, inside], settings, out=wide_out[:, inside], **tensors)
        assert same_bits(wide_out[:, inside], plain), f"offset {offset}, gap {gap}"
        wide_out[:, inside] = 7.0
        assert (wide_out == 7.0).all(), f"written outside: offset {offset}, gap {gap}"


def test_what_is_not_finite_becomes_nan_and_is_not_masked() -> None:
    logits = random((2, 3000))
    logits[0, [5, 2500]] = float("nan")
    logits[0, 6], logits[0, 7] = float("inf"), float("-inf")
    banned = ints([5, 6, 7, 8])
    for settings in (SETTINGS[0], SETTINGS[4]):
        wide = torch.tensor(settings, dtype=torch.float64, device="cuda")
        for allowed in (False, True):
            out = torch.zeros_like(logits)
            logit_adjust(logits, wide, out=out, banned_ids=banned, allow_minus_infinity=allowed)
            assert torch.nonzero(out[0].isnan()).flatten().tolist() == (
                [5, 6, 2500] if allowed else [5, 6, 7, 2500]
            )
            assert out[0, 8] == float("-inf") and not out[1].isnan().any()


@pytest.mark.parametrize("num_ids", [None, 0, 3, 5, 9])
def test_history_append_matches_the_reference(num_ids) -> None:
    ids = [2, 2, 50, -1, 4999, 5000, 2, 2**31 - 1]
    seen = torch.zeros(5000, dtype=torch.uint8, device="cuda")
    counts = torch.zeros(5000, dtype=torch.int32, device="cuda")
    expected = {"seen": seen.cpu(), "counts": counts.cpu()}
    for _ in range(3):
        history_append_reference(torch.tensor(ids), num_ids, **expected)
        count = None if num_ids is None else ints([num_ids])
        history_append(ints(ids), count, seen=seen, counts=counts)
    assert torch.equal(seen.cpu(), expected["seen"])
    assert torch.equal(counts.cpu(), expected["counts"])
    history_append(ints([77]), seen=seen)
    history_append(ints([78]), counts=counts)
    assert seen[77] == 1 and counts[77] == 0 and counts[78] == 1


def test_one_graph_follows_history_and_generated() -> None:
    n = VOCAB
    logits, ids, count = random((3, n)), ints([5, 5, -1]), ints([2])
    seen = torch.zeros(n, dtype=torch.uint8, device="cuda")
    counts = torch.zeros(n, dtype=torch.int32, device="cuda")
    generated, settings = ints([0]), torch.tensor([1.1, 0.2, 0.3, 4.0], dtype=torch.float64).cuda()
    tensors = {"seen": seen, "counts": counts, "end_ids": ints([9])}
    out = torch.empty_like(logits)
    logit_adjust(logits, settings, out=out, generated=generated, **tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logit_adjust(logits, settings, out=out, generated=generated, **tensors)
        history_append(ids, count, seen=seen, counts=counts)
        generated.add_(count)
    for step in range(6):
        expected = logit_adjust_reference(logits, settings, generated=2 * step, **tensors)
        out.fill_(float("nan"))
        graph.replay()
        assert same_bits(out, expected), f"step {step}"
    assert counts[5] == 12
