"""The kernel against the reference in float64, on a GPU."""

from itertools import pairwise

import pytest
from bytebound_kernels import dense_matvec, devices, matvec_workspace_bytes
from bytebound_kernels.ops.dense_matvec import dense_matvec_reference

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

DTYPES = ["float16", "bfloat16"]
# Relative RMS error against float64: the rounding of the result and little else.
TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 4e-3}
# [N, K]: below one item, few items, off the grid of rows, K off 128, many items, a model's own.
SHAPES = [
    (1, 64),
    (3, 64),
    (77, 192),
    (8, 128),
    (17, 320),
    (96, 5120),
    (1000, 256),
    (33, 17408),
    (5120, 1024),
    (6151, 5120),
    (248320, 256),
]
ROWS = [1, 2, 3, 5, 8, 9, 16]

dtypes = pytest.mark.parametrize("dtype", DTYPES)
# Powers of two, which are exact, and another one.
scales = pytest.mark.parametrize("scale", [2.0**-9, 4.0, 0.3])
shapes = pytest.mark.parametrize(("n", "k"), SHAPES, ids=lambda size: str(size))


def random(shape, dtype, seed=0, scale=1.0):
    generator = torch.Generator("cuda").manual_seed(seed)
    values = torch.randn(shape, generator=generator, device="cuda") * scale
    return values.to(getattr(torch, dtype))


def integers(shape, dtype, seed=0):
    """Small integers: all sums are exact in float32, in any order."""
    generator = torch.Generator("cuda").manual_seed(seed)
    values = torch.randint(-3, 4, shape, generator=generator, device="cuda")
    return values.to(getattr(torch, dtype))


def matrix(n, k, dtype, seed=1):
    return random((n, k), dtype, seed, k**-0.5)


def same_bits(a, b):
    integer = torch.int32 if a.dtype == torch.float32 else torch.int16
    return torch.equal(a.contiguous().view(integer), b.contiguous().view(integer))


@pytest.fixture(scope="module")
def workspace():
    return torch.full((matvec_workspace_bytes(),), 255, dtype=torch.uint8, device="cuda")


@pytest.fixture
def run(workspace):
    """Return the op with a poisoned result, which looks at what lies around it and was left."""

    def call(x, weight, dtype=None, **keywords):
        rows, n = x.shape[0], weight.shape[0]
        dtype = x.dtype if dtype is None else getattr(torch, dtype)
        wide = torch.full((rows + 2, n + 5), float("nan"), device="cuda", dtype=dtype)
        out = wide[1:-1, 2:-3]
        result = dense_matvec(x, weight, out=out, workspace=workspace, **keywords)
        assert result is out
        copy = out.clone()
        out.fill_(float("nan"))
        assert wide.isnan().all(), "written outside"
        assert (workspace == 255).all(), "the workspace is not as it was found"
        return copy

    return call


@pytest.mark.parametrize("rows", ROWS, ids=lambda r: f"R{r}")
@shapes
@dtypes
def test_exact_on_small_integers(run, rows, n, k, dtype) -> None:
    x, weight = integers((rows, k), dtype), integers((n, k), dtype, seed=1)
    expected = dense_matvec_reference(x, weight)
    assert torch.equal(run(x, weight, "float32").double(), expected)


@pytest.mark.parametrize("float_out", [False, True], ids=["out-as-x", "out-float32"])
@shapes
@dtypes
def test_matches_the_reference(run, n, k, dtype, float_out, assert_close) -> None:
    x, weight = random((5, k), dtype), matrix(n, k, dtype)
    out_dtype = "float32" if float_out else dtype
    out = run(x, weight, out_dtype)
    assert_close("out", dense_matvec_reference(x, weight), out, TOLERANCE[out_dtype])


@pytest.mark.parametrize("rows", [1, 5, 16], ids=lambda r: f"R{r}")
@shapes
@dtypes
def test_swiglu_of_two_matrices(run, rows, n, k, dtype, assert_close) -> None:
    x, gate, up = random((rows, k), dtype), matrix(n, k, dtype), matrix(n, k, dtype, seed=2)
    expected = dense_matvec_reference(x, gate, up=up)
    for out_dtype in (dtype, "float32"):
        out = run(x, gate, out_dtype, up=up)
        assert_close(f"out in {out_dtype}", expected, out, TOLERANCE[out_dtype])


@pytest.mark.parametrize("float_out", [False, True], ids=["out-as-x", "out-float32"])
@shapes
@dtypes
def test_residual(run, workspace, n, k, dtype, float_out, assert_close) -> None:
    x, weight = random((9, k), dtype), matrix(n, k, dtype)
    out_dtype = "float32" if float_out else dtype
    residual = random((9, n), out_dtype, seed=2)
    expected = dense_matvec_reference(x, weight, residual=residual)
    out = run(x, weight, out_dtype, residual=residual)
    assert_close("out", expected, out, TOLERANCE[out_dtype])
    dense_matvec(x, weight, out=residual, workspace=workspace, residual=residual)
    assert same_bits(residual, out), "in place"


@scales
@pytest.mark.parametrize("epilogue", ["store", "residual", "swiglu"])
@pytest.mark.parametrize(("n", "k"), [(77, 192), (1000, 5120)], ids=lambda size: str(size))
@dtypes
def test_scale_multiplies_the_float32_product(
    run, n, k, dtype, epilogue, scale, assert_close
) -> None:
    x, weight = random((9, k), dtype), matrix(n, k, dtype)
    up = {"up": matrix(n, k, dtype, seed=2)} if epilogue == "swiglu" else {}
    product = run(x, weight, "float32", **up) * torch.tensor(scale, device="cuda")
    for kind in ("float32", dtype):
        more = {"residual": random((9, n), kind, seed=2)} if epilogue == "residual" else up
        expected = product + more["residual"].float() if epilogue == "residual" else product
        out = run(x, weight, kind, scale=scale, **more)
        assert same_bits(out, expected.to(out.dtype)), kind
        reference = dense_matvec_reference(x, weight, scale=scale, **more)
        assert_close(f"out in {kind}", reference, out, TOLERANCE[kind])


def test_a_power_of_two_keeps_swiglu_within_float16(run, assert_close) -> None:
    gate, up = matrix(640, 1280, "float16"), matrix(640, 1280, "float16", seed=2)
    down, x = matrix(320, 640, "float16", seed=3), random((5, 1280), "float16", scale=500.0)
    assert run(x, gate, up=up).isinf().any(), "without it the product overflows"
    hidden = run(x, gate, up=up, scale=2.0**-10)
    out = run(hidden, down, "float32", scale=2.0**10)
    expected = dense_matvec_reference(dense_matvec_reference(x, gate, up=up), down)
    assert_close("out", expected, out, TOLERANCE["float16"])


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("epilogue", ["store", "residual", "swiglu"])
@shapes
@dtypes
def test_a_row_has_the_same_bits_alone_and_among_others(run, n, k, dtype, epilogue, scale) -> None:
    x, weight = random((16, k), dtype), matrix(n, k, dtype)
    residual = random((16, n), "float32", seed=2)

    def part(rows):
        more = {}
        if epilogue == "residual":
            more = {"residual": residual[rows]}
        elif epilogue == "swiglu":
            more = {"up": weight}
        return run(x[rows], weight, "float32", scale=scale, **more)

    together = part(slice(0, 16))
    for first, num_rows in [*((i, 1) for i in range(0, 16, 3)), (2, 2), (3, 5), (8, 8), (4, 11)]:
        rows = slice(first, first + num_rows)
        assert same_bits(part(rows), together[rows]), f"rows {first} to {first + num_rows - 1}"


@dtypes
def test_the_number_of_blocks_changes_no_integer_result(run, dtype) -> None:
    most = 2 * devices()[torch.cuda.current_device()].num_sms
    for n, k in ((77, 192), (96, 5120), (1000, 1024)):
        x, weight = integers((3, k), dtype), integers((n, k), dtype, seed=1)
        expected = dense_matvec_reference(x, weight)
        for num_blocks in (1, 2, 7, 31, most - 1, most):
            out = run(x, weight, "float32", num_blocks=num_blocks)
            assert torch.equal(out.double(), expected), f"N {n}, {num_blocks} blocks"


@pytest.mark.parametrize(("n", "k"), [(77, 192), (1000, 5120)], ids=lambda size: str(size))
@dtypes
def test_slices_of_larger_tensors_give_the_same_bits(run, workspace, n, k, dtype) -> None:
    x, gate, up = random((5, k), dtype), matrix(n, k, dtype), matrix(n, k, dtype, seed=2)
    nan = float("nan")
    fused = torch.full((2 * n + 9, k + 72), nan, device="cuda", dtype=x.dtype)
    gate_slice, up_slice = fused[3 : 3 + n, 8 : 8 + k], fused[n + 6 : 2 * n + 6, 64 : 64 + k]
    gate_slice.copy_(gate), up_slice.copy_(up)
    wide_x = torch.full((7, k + 24), nan, device="cuda", dtype=x.dtype)
    wide_x[1:6, 16 : 16 + k] = x
    x_slice = wide_x[1:6, 16 : 16 + k]
    assert same_bits(run(x_slice, gate_slice), run(x, gate))
    assert same_bits(run(x_slice, gate_slice, up=up_slice), run(x, gate, up=up))
    # Another row distance for up than for the gate.
    assert same_bits(run(x_slice, gate, up=up_slice), run(x, gate, up=up))
    # One row repeated.
    assert same_bits(run(x[:1].expand(5, k), gate), run(x[:1], gate).expand(5, n))


@pytest.mark.parametrize(("n", "k"), [(77, 192), (1000, 5120)], ids=lambda size: str(size))
@dtypes
def test_what_is_not_finite_stays_where_it_is(run, n, k, dtype) -> None:
    x, weight = random((8, k), dtype), matrix(n, k, dtype)
    clean = run(x, weight)
    bad_x, bad_weight = x.clone(), weight.clone()
    bad_x[1, 5], bad_x[4, k - 1] = float("nan"), float("inf")
    out = run(bad_x, weight)
    assert out[1].isnan().all() and not out[4].isfinite().any()
    good = [0, 2, 3, 5, 6, 7]
    assert same_bits(out[good], clean[good])
    bad_weight[n - 1, k - 1] = float("nan")
    out = run(x, bad_weight)
    assert out[:, n - 1].isnan().all()
    assert same_bits(out[:, : n - 1], clean[:, : n - 1])


@pytest.mark.parametrize(("n", "k"), [(17408, 5120), (96, 5120), (5120, 17408)])
def test_repeats_its_bits(run, n, k) -> None:
    x, weight = random((5, k), "bfloat16"), matrix(n, k, "bfloat16")
    first = run(x, weight)
    assert all(same_bits(run(x, weight), first) for _ in range(20))


@pytest.mark.parametrize("rows", [1, 8, 11], ids=lambda r: f"R{r}")
@pytest.mark.parametrize(("n", "k"), [(77, 192), (96, 5120), (3000, 1024)], ids=lambda s: str(s))
def test_ten_thousand_graph_replays_are_the_eager_result(run, workspace, rows, n, k) -> None:
    x, weight = random((rows, k), "bfloat16"), matrix(n, k, "bfloat16")
    expected = run(x, weight)
    out = torch.full_like(expected, float("nan"))
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")

    def step():
        out.fill_(float("nan"))
        dense_matvec(x, weight, out=out, workspace=workspace)
        wrong.add_((out != expected).sum())

    step()  # what is loaded lazily must not be loaded under capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(10_000):
        graph.replay()
    assert wrong.item() == 0
    x.copy_(random((rows, k), "bfloat16", seed=5))
    expected.copy_(run(x, weight))
    graph.replay()
    assert wrong.item() == 0
    assert (workspace == 255).all()


def test_a_chain_of_overlapping_kernels_sees_the_results_before_it(workspace) -> None:
    sizes = [256, 768, 192, 1024, 5120, 256]
    weights = [matrix(n, k, "float16", i) for i, (k, n) in enumerate(pairwise(sizes))]
    values = [torch.empty((8, k), dtype=torch.float16, device="cuda") for k in sizes]

    def chain(synchronize=False):
        for weight, x, out in zip(weights, values[:-1], values[1:], strict=True):
            dense_matvec(x, weight, out=out, workspace=workspace)
            if synchronize:
                torch.cuda.synchronize()

    chain()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            chain()
    for seed in range(20):
        values[0].copy_(random(values[0].shape, "float16", seed))
        chain(synchronize=True)
        expected = [value.clone() for value in values]
        for value in values[1:]:
            value.fill_(float("nan"))
        for _ in range(20):
            graph.replay()
        for i, (value, want) in enumerate(zip(values, expected, strict=True)):
            assert same_bits(value, want), f"seed {seed}, value {i}"


def test_in_place_residual_over_many_steps(workspace) -> None:
    x, weight = integers((8, 5120), "float16"), integers((96, 5120), "float16", seed=1)
    step = dense_matvec_reference(x, weight)
    total = torch.zeros((8, 96), device="cuda")
    for _ in range(1000):
        dense_matvec(x, weight, out=total, workspace=workspace, residual=total)
    assert torch.equal(total.double(), 1000 * step)


def test_runs_on_the_stream_that_is_asked_for(run) -> None:
    x, weight = random((8, 5120), "float16"), matrix(96, 5120, "float16")
    plain = run(x, weight)
    stream = torch.cuda.Stream()
    source, out = torch.zeros_like(x), torch.zeros_like(plain)
    space = torch.full((matvec_workspace_bytes(),), 255, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        # The copy waits on this stream: a kernel on another one would read zeros.
        torch.cuda._sleep(10_000_000)
        source.copy_(x)
    dense_matvec(source, weight, out=out, workspace=space, stream=stream)
    stream.synchronize()
    assert same_bits(out, plain)
