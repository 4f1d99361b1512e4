"""The kernel against rms_norm bit for bit, and against a product in float64, on a GPU."""

import pytest
from bytebound_kernels import dense_matvec, matvec_workspace_bytes, rms_norm, rms_norm_project
from bytebound_kernels.ops.rms_norm_project import rms_norm_project_reference

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

# Relative RMS error of the product: the rounding of the result and little else.
TOLERANCE = {"float16": 1e-3, "bfloat16": 4e-3}
# [N, D]: one warp, one feature, features off the grid, several chunks of a thread, a model's own.
SHAPES = [
    (1, 64),
    (7, 64),
    (3, 192),
    (17, 320),
    (96, 256),
    (96, 5120),
    (513, 1024),
    (50, 8192),
    (33, 8256),
    (5, 17408),
    (4096, 256),
]
ROWS = [1, 2, 3, 5, 8, 9, 16]

dtypes = pytest.mark.parametrize("dtype", list(TOLERANCE))
shapes = pytest.mark.parametrize(("n", "d"), SHAPES, ids=lambda size: str(size))


def random(shape, dtype, seed=0, scale=1.0):
    generator = torch.Generator("cuda").manual_seed(seed)
    values = torch.randn(shape, generator=generator, device="cuda") * scale
    return values.to(getattr(torch, dtype))


def inputs(rows, n, d, dtype):
    return (
        random((rows, d), "float32") * 3,
        random((d,), "float32", seed=1, scale=0.3),
        random((n, d), dtype, seed=2, scale=d**-0.5),
    )


def same_bits(a, b):
    integer = torch.int32 if a.dtype == torch.float32 else torch.int16
    return torch.equal(a.contiguous().view(integer), b.contiguous().view(integer))


def run(x, weight, projection, **keywords):
    """The op with poisoned results, which looks at what lies around them."""
    (rows, d), n, dtype = x.shape, projection.shape[0], projection.dtype
    wide_out = torch.full((rows + 2, d + 16), float("nan"), device="cuda", dtype=dtype)
    wide_projected = torch.full((rows + 2, n + 5), float("nan"), device="cuda", dtype=dtype)
    out, projected = wide_out[1:-1, 8:-8], wide_projected[1:-1, 2:-3]
    results = rms_norm_project(x, weight, projection, out=out, projected=projected, **keywords)
    assert results[0] is out and results[1] is projected
    copies = out.clone(), projected.clone()
    for wide, result in ((wide_out, out), (wide_projected, projected)):
        result.fill_(float("nan"))
        assert wide.isnan().all(), "written outside"
    return copies


def norm_of(x, weight, dtype, **keywords):
    return rms_norm(x, weight, out=torch.empty_like(x, dtype=dtype), **keywords)


@pytest.mark.parametrize("rows", ROWS, ids=lambda r: f"R{r}")
@shapes
@dtypes
def test_the_norm_bit_for_bit_and_its_product(rows, n, d, dtype, assert_close) -> None:
    x, weight, projection = inputs(rows, n, d, dtype)
    y, g = run(x, weight, projection)
    assert same_bits(y, norm_of(x, weight, projection.dtype))
    assert_close("projected", y.double() @ projection.double().T, g, TOLERANCE[dtype])


@shapes
@dtypes
def test_matches_the_reference(n, d, dtype, assert_close) -> None:
    x, weight, projection = inputs(5, n, d, dtype)
    expected = rms_norm_project_reference(x, weight, projection)
    for name, want, result in zip(
        ("out", "projected"), expected, run(x, weight, projection), strict=True
    ):
        assert_close(name, want, result, TOLERANCE[dtype])


@pytest.mark.parametrize("rows", ROWS, ids=lambda r: f"R{r}")
@shapes
@dtypes
def test_exact_on_small_integers(rows, n, d, dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(0)

    def integers(low, high, *shape):
        return torch.randint(low, high + 1, shape, generator=generator, device="cuda")

    # Rows of plus and minus one have a mean square of one.
    x = (2 * integers(0, 1, rows, d) - 1).float()
    weight = integers(0, 2, d).float()
    projection = integers(-3, 3, n, d).to(getattr(torch, dtype))
    y, g = run(x, weight, projection, eps=0.0)
    assert torch.equal(y.float(), x * (1 + weight))
    # Sums of integers are exact in float32, so that one rounding is left.
    assert torch.equal(g, (y.double() @ projection.double().T).to(g.dtype))


@shapes
@dtypes
def test_a_row_has_the_same_bits_alone_and_among_others(n, d, dtype) -> None:
    x, weight, projection = inputs(16, n, d, dtype)
    y, g = run(x, weight, projection)
    for first, count in [*((i, 1) for i in range(16)), (2, 2), (3, 3), (5, 5), (8, 8), (4, 11)]:
        rows = slice(first, first + count)
        part_y, part_g = run(x[rows], weight, projection)
        assert same_bits(part_y, y[rows]) and same_bits(part_g, g[rows]), f"rows {rows}"


@dtypes
def test_a_feature_has_the_same_bits_in_any_matrix(dtype) -> None:
    x, weight, projection = inputs(3, 300, 5120, dtype)
    _, g = run(x, weight, projection)
    for features in (slice(0, 1), slice(7, 50), slice(0, 96), slice(100, 200), slice(299, 300)):
        assert same_bits(run(x, weight, projection[features])[1], g[:, features]), f"{features}"


@pytest.mark.parametrize(("n", "d"), [(50, 192), (96, 5120)], ids=lambda size: str(size))
@dtypes
def test_slices_of_larger_tensors_give_the_same_bits(n, d, dtype) -> None:
    x, weight, projection = inputs(5, n, d, dtype)
    expected = run(x, weight, projection)
    nan = float("nan")
    wide_x = torch.full((7, d + 12), nan, device="cuda")
    wide_x[1:6, 4 : 4 + d] = x
    wide_weight = torch.full((d + 8,), nan, device="cuda")
    wide_weight[4 : 4 + d] = weight
    wide_projection = torch.full((n + 3, d + 72), nan, device="cuda", dtype=projection.dtype)
    wide_projection[2 : 2 + n, 8 : 8 + d] = projection
    results = run(
        wide_x[1:6, 4 : 4 + d],
        wide_weight[4 : 4 + d],
        wide_projection[2 : 2 + n, 8 : 8 + d],
    )
    assert all(same_bits(a, b) for a, b in zip(results, expected, strict=True))
    repeated = run(x[:1].expand(5, d), weight, projection)
    assert all(same_bits(a, b[:1].expand_as(a)) for a, b in zip(repeated, expected, strict=True))


@pytest.mark.parametrize("eps", [0.0, 1e-6, 0.25], ids=lambda eps: f"eps{eps}")
def test_eps(eps) -> None:
    x, weight, projection = inputs(3, 50, 192, "float16")
    y, _ = run(x * 0.1, weight, projection, eps=eps)
    assert same_bits(y, norm_of(x * 0.1, weight, torch.float16, eps=eps))


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize(("n", "d"), [(50, 192), (96, 5120)], ids=lambda size: str(size))
@dtypes
def test_what_is_not_finite_stays_where_it_is(n, d, dtype, value) -> None:
    x, weight, projection = inputs(8, n, d, dtype)
    y, g = run(x, weight, projection)
    bad_x, bad_projection = x.clone(), projection.clone()
    bad_x[1, 5], bad_x[4, d - 1] = float(value), float(value)
    bad_y, bad_g = run(bad_x, weight, projection)
    assert same_bits(bad_y, norm_of(bad_x, weight, projection.dtype))
    assert bad_g[[1, 4]].isnan().all()
    good = [0, 2, 3, 5, 6, 7]
    assert same_bits(bad_y[good], y[good]) and same_bits(bad_g[good], g[good])
    bad_projection[n - 1, d - 1] = float(value)
    same_y, bad_g = run(x, weight, bad_projection)
    assert not bad_g[:, n - 1].isfinite().any()
    assert same_bits(same_y, y) and same_bits(bad_g[:, : n - 1], g[:, : n - 1])


def test_a_chain_of_overlapping_kernels_sees_the_results_before_it() -> None:
    """As in a layer: the residual is written by a product right before, and read after."""
    d, n, rows = 512, 96, 5
    weight, projection = inputs(1, n, d, "bfloat16")[1:]
    square = random((d, d), "bfloat16", seed=3, scale=d**-0.5)
    workspace = torch.full((matvec_workspace_bytes(),), 255, dtype=torch.uint8, device="cuda")
    x = torch.empty((rows, d), device="cuda")
    outs = torch.empty((12, rows, d), device="cuda", dtype=torch.bfloat16)
    gates = torch.empty((12, rows, n), device="cuda", dtype=torch.bfloat16)

    def chain(synchronize=False):
        for y, g in zip(outs, gates, strict=True):
            rms_norm_project(x, weight, projection, out=y, projected=g)
            if synchronize:
                torch.cuda.synchronize()
            dense_matvec(y, square, out=x, workspace=workspace, residual=x)
            if synchronize:
                torch.cuda.synchronize()

    x.zero_()
    chain()  # what is loaded lazily must not be loaded under capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    for seed in range(20):
        start = random((rows, d), "float32", seed)
        x.copy_(start)
        chain(synchronize=True)
        expected = [tensor.clone() for tensor in (x, outs, gates)]
        for _ in range(20):
            x.copy_(start)
            outs.fill_(float("nan"))
            gates.fill_(float("nan"))
            graph.replay()
            for result, want in zip((x, outs, gates), expected, strict=True):
                assert same_bits(result, want), f"seed {seed}"


def test_runs_on_the_stream_that_is_asked_for() -> None:
    x, weight, projection = inputs(8, 96, 5120, "float16")
    y, g = run(x, weight, projection)
    stream = torch.cuda.Stream()
    source, out, projected = torch.zeros_like(x), torch.zeros_like(y), torch.zeros_like(g)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        # The copy waits on this stream: a kernel on another one would read zeros.
        torch.cuda._sleep(10_000_000)
        source.copy_(x)
    rms_norm_project(source, weight, projection, out=out, projected=projected, stream=stream)
    stream.synchronize()
    assert same_bits(out, y) and same_bits(projected, g)
