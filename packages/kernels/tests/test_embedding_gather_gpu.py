"""The kernel against the reference, on a GPU: every comparison is exact."""

import pytest
from bytebound_kernels import embedding_gather
from bytebound_kernels.ops.embedding_gather import embedding_gather_reference

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

PAIRS = [
    ("float16", "float16"),
    ("float16", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
]
N = 1000

pairs = pytest.mark.parametrize(("dtype", "out_dtype"), PAIRS, ids=["-to-".join(p) for p in PAIRS])


def random(shape, dtype, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(getattr(torch, dtype))


def random_ids(t, seed=1):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(0, N, (t,), generator=generator, device="cuda", dtype=torch.int32)


def poisoned(shape, dtype):
    return torch.full(shape, float("nan"), device="cuda", dtype=getattr(torch, dtype))


@pytest.mark.parametrize("t", [0, 1, 2, 5, 8, 1031], ids=lambda t: f"T{t}")
@pytest.mark.parametrize("d", [1, 7, 8, 64, 1000, 1024, 1025, 5120], ids=lambda d: f"D{d}")
@pairs
def test_matches_the_reference(t, d, dtype, out_dtype) -> None:
    table, ids = random((N, d), dtype), random_ids(t)
    out = poisoned((t, d), out_dtype)
    assert embedding_gather(ids, table, out=out) is out
    expected = embedding_gather_reference(ids, table, dtype=getattr(torch, out_dtype))
    assert torch.equal(out, expected)


@pairs
def test_an_id_outside_the_table_is_a_row_of_nan(dtype, out_dtype) -> None:
    table = random((N, 1000), dtype)
    ids = torch.tensor([0, -1, N - 1, N, 2**31 - 1, -(2**31)], dtype=torch.int32, device="cuda")
    out = torch.zeros((6, 1000), device="cuda", dtype=getattr(torch, out_dtype))
    embedding_gather(ids, table, out=out)
    assert torch.equal(out[[0, 2]], table[[0, N - 1]].to(out.dtype))
    assert out[[1, 3, 4, 5]].isnan().all()


@pairs
def test_what_is_not_finite_stays_in_its_row(dtype, out_dtype) -> None:
    table, ids = random((N, 1000), dtype), random_ids(7)
    ids[3] = 11
    ids[[0, 1, 2, 4, 5, 6]] += ids[[0, 1, 2, 4, 5, 6]] == 11
    table[11, 5], table[11, 999] = float("nan"), float("inf")
    out = poisoned((7, 1000), out_dtype)
    embedding_gather(ids, table, out=out)
    assert torch.equal(out.isnan().nonzero(), torch.tensor([[3, 5]], device="cuda"))
    assert torch.equal(out.isinf().nonzero(), torch.tensor([[3, 999]], device="cuda"))


@pairs
def test_strides_and_alignment_and_nothing_else_is_written(dtype, out_dtype) -> None:
    table, ids = random((N, 1000), dtype), random_ids(7)
    expected = embedding_gather_reference(ids, table, dtype=getattr(torch, out_dtype))
    for offset, gap in ((0, 8), (1, 0), (3, 5), (8, 1)):
        inside = slice(offset, offset + 1000)
        wide_table = poisoned((N, offset + 1000 + gap), dtype)
        wide_table[:, inside] = table
        wide_out = torch.full((7, offset + 1000 + gap), 7.0, device="cuda").to(expected.dtype)
        embedding_gather(ids, wide_table[:, inside], out=wide_out[:, inside])
        assert torch.equal(wide_out[:, inside], expected), f"offset {offset}, gap {gap}"
        wide_out[:, inside] = 7.0
        assert (wide_out == 7.0).all(), f"written outside: offset {offset}, gap {gap}"


def test_rows_beyond_two_to_the_31_elements() -> None:
    rows = 2**31 // 5120 + 2
    if torch.cuda.mem_get_info()[0] < 3 * rows * 5120:
        pytest.skip("needs 6 GB of device memory")
    table = torch.empty((rows, 5120), device="cuda", dtype=torch.bfloat16)
    table[-1] = random((5120,), "bfloat16")
    out = poisoned((1, 5120), "bfloat16")
    ids = torch.tensor([rows - 1], dtype=torch.int32, device="cuda")
    embedding_gather(ids, table, out=out)
    assert torch.equal(out[0], table[-1])


def test_a_graph_follows_the_ids_in_device_memory() -> None:
    table, ids = random((N, 5120), "bfloat16"), random_ids(5)
    out = poisoned((5, 5120), "bfloat16")
    embedding_gather(ids, table, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(50):
            embedding_gather(ids, table, out=out)
    for seed in range(50):
        ids.copy_(random_ids(5, seed))
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, embedding_gather_reference(ids, table))
