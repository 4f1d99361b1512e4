"""The four-bit product of many rows, and unpacking, against float64, on a GPU."""

import pytest
from bytebound_kernels import PackedW4, devices, w4_matmul, w4_matmul_workspace_bytes, w4_unpack

torch = pytest.importorskip("torch")

from bytebound_kernels.ops.w4_matmul import w4_matmul_reference  # noqa: E402
from bytebound_kernels.ops.w4_matvec.layout import interleave, pack_reference  # noqa: E402
from bytebound_kernels.ops.w4_unpack import w4_unpack_reference  # noqa: E402

pytestmark = pytest.mark.gpu

TOLERANCE = {"float16": 1e-3, "bfloat16": 4e-3, "float32": 1e-4}
# Rows off the 64 of an item, an odd number of items; one group and many; fewer units than blocks
# and more.
SHAPES = [(1, 128), (77, 128), (77, 5120), (1000, 1280), (5120, 1280), (5120, 5120)]
# Both sides of each width of a tile.
ROWS = [1, 9, 17, 32, 33, 63, 64, 65, 200, 513]

dtypes = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
schemes = pytest.mark.parametrize("asymmetric", [False, True], ids=["symmetric", "asymmetric"])
# Powers of two, which are exact, and another one.
scales = pytest.mark.parametrize("scale", [2.0**-9, 4.0, 0.3])
shapes = pytest.mark.parametrize(("n", "k"), SHAPES, ids=lambda v: str(v))


def generator(seed):
    return torch.Generator("cuda").manual_seed(seed)


def stored(n, k, *, asymmetric=False, scale_dtype="float16", seed=0):
    """Codes, scales, zero points (or None) of a random matrix."""
    draw = generator(seed)
    codes = torch.randint(0, 16, (n, k), generator=draw, device="cuda", dtype=torch.uint8)
    scale = torch.rand((n, k // 128), generator=draw, device="cuda") * 0.02 + 0.001
    zero = torch.randint(0, 16, (n, k // 128), generator=draw, device="cuda", dtype=torch.uint8)
    return codes, scale.to(getattr(torch, scale_dtype)), zero if asymmetric else None


def weight_of(n, k, *, interleaved=False, **options):
    fields = {key: options[key] for key in ("asymmetric", "scale_dtype") if key in options}
    if not interleaved:
        return PackedW4(pack_reference(*stored(n, k, **options)), n, k, **fields)
    gate, up = (stored(n, k, **options, seed=seed) for seed in (1, 2))
    both = [None if a is None else interleave(a, b) for a, b in zip(gate, up, strict=True)]
    return PackedW4(pack_reference(*both), n, k, interleaved=True, **fields)


def activations(rows, k, dtype, seed=7):
    return torch.randn((rows, k), generator=generator(seed), device="cuda").to(
        getattr(torch, dtype)
    )


def poisoned(rows, n, dtype):
    return torch.full((rows, n), float("nan"), device="cuda", dtype=getattr(torch, dtype))


@pytest.fixture(scope="module")
def workspace():
    size = w4_matmul_workspace_bytes(0)
    scratch = torch.empty(size, device="cuda", dtype=torch.uint8).fill_(255)
    yield scratch
    flags = 4 * 4 * devices()[0].num_sms
    assert (scratch[:flags] == 255).all(), "a call left a part of its sums untaken"


def same_bits(a, b):
    integer = torch.int32 if a.dtype == torch.float32 else torch.int16
    return torch.equal(a.contiguous().view(integer), b.contiguous().view(integer))


@schemes
@dtypes
@shapes
def test_matches_the_reference(n, k, dtype, asymmetric, workspace, assert_close) -> None:
    weight, x = weight_of(n, k, asymmetric=asymmetric), activations(max(ROWS), k, dtype)
    reference = w4_matmul_reference(x, weight)
    for rows in ROWS:
        out = poisoned(rows, n, dtype)
        assert w4_matmul(x[:rows], weight, out=out, workspace=workspace) is out
        assert_close(f"out of {rows} rows", reference[:rows], out, TOLERANCE[dtype])


@pytest.mark.parametrize("rows", [20, 60, 150], ids=lambda r: f"M{r}")
@pytest.mark.parametrize("scale_dtype", ["float16", "bfloat16"])
@schemes
@dtypes
def test_float32_results(dtype, asymmetric, scale_dtype, rows, workspace, assert_close) -> None:
    weight = weight_of(200, 2560, asymmetric=asymmetric, scale_dtype=scale_dtype)
    x, out = activations(rows, 2560, dtype), poisoned(rows, 200, "float32")
    w4_matmul(x, weight, out=out, workspace=workspace)
    assert_close("out", w4_matmul_reference(x, weight), out, TOLERANCE["float32"])


@pytest.mark.parametrize("n", [1, 8, 100, 2051], ids=lambda n: f"N{n}")
@schemes
@dtypes
def test_swiglu(dtype, asymmetric, n, workspace, assert_close) -> None:
    weight = weight_of(n, 1280, interleaved=True, asymmetric=asymmetric)
    x = activations(200, 1280, dtype)
    reference = w4_matmul_reference(x, weight)
    for rows in (5, 31, 64, 200):
        out = poisoned(rows, n, dtype)
        w4_matmul(x[:rows], weight, out=out, workspace=workspace)
        assert_close(f"out of {rows} rows", reference[:rows], out, TOLERANCE[dtype])


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("out_dtype", ["same", "float32"])
@pytest.mark.parametrize("rows", [17, 64, 129], ids=lambda r: f"M{r}")
@pytest.mark.parametrize("n", [1000, 1003], ids=lambda n: f"N{n}")
@dtypes
def test_residual(dtype, n, rows, out_dtype, in_place, workspace, assert_close) -> None:
    kind = dtype if out_dtype == "same" else out_dtype
    weight, x = weight_of(n, 1280), activations(rows, 1280, dtype)
    residual = activations(rows, n, kind, seed=3)
    expected = w4_matmul_reference(x, weight, residual=residual)
    out = residual if in_place else poisoned(rows, n, kind)
    w4_matmul(x, weight, out=out, residual=residual, workspace=workspace)
    assert_close("out", expected, out, TOLERANCE[kind])


@scales
@pytest.mark.parametrize("interleaved", [False, True], ids=["plain", "swiglu"])
@pytest.mark.parametrize("rows", [17, 64, 129], ids=lambda r: f"M{r}")
@pytest.mark.parametrize("n", [1000, 1003], ids=lambda n: f"N{n}")
@dtypes
def test_scale_multiplies_the_float32_result(
    dtype, n, rows, interleaved, scale, workspace, assert_close
) -> None:
    weight = weight_of(n, 1280, interleaved=interleaved)
    x, wide = activations(rows, 1280, dtype), poisoned(rows, n, "float32")
    w4_matmul(x, weight, out=wide, workspace=workspace)
    expected = wide * torch.tensor(scale, device="cuda")
    reference = w4_matmul_reference(x, weight, scale=scale)
    for kind in ("float32", dtype):
        out = poisoned(rows, n, kind)
        w4_matmul(x, weight, out=out, workspace=workspace, scale=scale)
        assert same_bits(out, expected.to(out.dtype)), kind
        assert_close(f"out in {kind}", reference, out, TOLERANCE[kind])


@scales
@pytest.mark.parametrize("out_dtype", ["same", "float32"])
@pytest.mark.parametrize("rows", [17, 64, 129], ids=lambda r: f"M{r}")
@pytest.mark.parametrize("n", [1000, 1003], ids=lambda n: f"N{n}")
@dtypes
def test_scale_comes_before_the_residual(
    dtype, n, rows, out_dtype, scale, workspace, assert_close
) -> None:
    kind = dtype if out_dtype == "same" else out_dtype
    weight, x = weight_of(n, 1280), activations(rows, 1280, dtype)
    wide, out = poisoned(rows, n, "float32"), activations(rows, n, kind, seed=3)
    w4_matmul(x, weight, out=wide, workspace=workspace)
    expected = (wide * torch.tensor(scale, device="cuda") + out.float()).to(out.dtype)
    reference = w4_matmul_reference(x, weight, residual=out, scale=scale)
    w4_matmul(x, weight, out=out, residual=out, workspace=workspace, scale=scale)
    assert same_bits(out, expected)
    assert_close("out", reference, out, TOLERANCE[kind])


@pytest.mark.parametrize("rows", [20, 64, 200], ids=lambda r: f"M{r}")
def test_a_power_of_two_keeps_swiglu_within_float16(rows, workspace, assert_close) -> None:
    gate_up, down = weight_of(640, 1280, interleaved=True), weight_of(320, 640)
    x = activations(rows, 1280, "float16") * 200
    hidden, out = poisoned(rows, 640, "float16"), poisoned(rows, 320, "float32")
    w4_matmul(x, gate_up, out=hidden, workspace=workspace)
    assert hidden.isinf().any(), "without it the product overflows"
    w4_matmul(x, gate_up, out=hidden, workspace=workspace, scale=2.0**-10)
    w4_matmul(hidden, down, out=out, workspace=workspace, scale=2.0**10)
    expected = w4_matmul_reference(w4_matmul_reference(x, gate_up), down)
    assert_close("out", expected, out, TOLERANCE["float16"])


@pytest.mark.parametrize("rows", [20, 64, 200], ids=lambda r: f"M{r}")
@pytest.mark.parametrize("offset", [0, 3, 8])
def test_strides_change_no_bit_and_nothing_else_is_written(offset, rows, workspace) -> None:
    weight, x = weight_of(300, 512), activations(rows, 512, "bfloat16")
    plain = poisoned(rows, 300, "bfloat16")
    w4_matmul(x, weight, out=plain, workspace=workspace)
    wide_x = poisoned(rows, 1024, "bfloat16")
    wide_x[:, 8:520] = x
    wide_out = torch.full((rows, 328), 7.0, device="cuda", dtype=torch.bfloat16)
    inside = slice(offset, offset + 300)
    w4_matmul(wide_x[:, 8:520], weight, out=wide_out[:, inside], workspace=workspace)
    assert same_bits(wide_out[:, inside], plain)
    wide_out[:, inside] = 7.0
    assert (wide_out == 7.0).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("rows", [20, 64, 200], ids=lambda r: f"M{r}")
@dtypes
def test_what_is_not_finite_stays_in_its_row(dtype, rows, value, workspace) -> None:
    """And so a row's bits do not depend on what the other rows hold."""
    weight, x = weight_of(500, 2560, asymmetric=True), activations(rows, 2560, dtype)
    clean, out = poisoned(rows, 500, dtype), poisoned(rows, 500, dtype)
    w4_matmul(x, weight, out=clean, workspace=workspace)
    x[11, 77] = value
    w4_matmul(x, weight, out=out, workspace=workspace)
    # A weight of zero times infinity is NaN, a weight of another value infinite.
    assert not out[11].isfinite().any()
    others = [i for i in range(rows) if i != 11]
    assert same_bits(out[others], clean[others])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@schemes
@dtypes
def test_a_scale_that_is_not_finite_stays_in_its_feature(
    dtype, asymmetric, value, workspace
) -> None:
    codes, scale, zero = stored(500, 640, asymmetric=asymmetric)
    x, results = activations(130, 640, dtype), []
    for one in (scale[77, 2].clone(), value):
        scale[77, 2] = one
        weight = PackedW4(pack_reference(codes, scale, zero), 500, 640, asymmetric=asymmetric)
        results.append(poisoned(130, 500, dtype))
        w4_matmul(x, weight, out=results[-1], workspace=workspace)
    clean, out = results
    assert not out[:, 77].isfinite().any()
    others = torch.arange(500, device="cuda") != 77
    assert same_bits(out[:, others], clean[:, others])


@dtypes
def test_large_and_small_activations(dtype, workspace, assert_close) -> None:
    weight = weight_of(256, 640)
    for factor in (2.0**-14, 1.0, 2.0**10):
        x = activations(40, 640, dtype) * factor
        out = poisoned(40, 256, "float32")
        w4_matmul(x, weight, out=out, workspace=workspace)
        assert_close(f"out at {factor}", w4_matmul_reference(x, weight), out, 1e-4)


def test_no_rows(workspace) -> None:
    out = poisoned(0, 77, "float16")
    x = activations(0, 128, "float16")
    assert w4_matmul(x, weight_of(77, 128), out=out, workspace=workspace) is out


def test_graph_replays_repeat_their_bits(workspace) -> None:
    """Thousands of launches that hand over to each other and share a workspace."""
    square, wide = weight_of(640, 640), weight_of(640, 5120)
    swiglu = weight_of(2560, 640, interleaved=True)
    rows = (24, 64, 130)
    x = {m: activations(m, 640, "float16") * 0.1 for m in rows}
    long = {m: activations(m, 5120, "float16") for m in rows}
    outs = {
        m: (
            poisoned(m, 640, "float16"),
            poisoned(m, 2560, "float16"),
            poisoned(m, 640, "float32"),
        )
        for m in rows
    }

    def chain():
        for m in rows:
            y, u, v = outs[m]
            w4_matmul(x[m], square, out=y, workspace=workspace)
            w4_matmul(y, swiglu, out=u, workspace=workspace)
            w4_matmul(long[m], wide, out=v, workspace=workspace)

    chain()
    tensors = [t for m in rows for t in outs[m]]
    first = [t.clone() for t in tensors]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            chain()
    for t in tensors:
        t.fill_(float("nan"))
    for turn in range(50):
        graph.replay()
        if turn % 10 == 0:
            torch.cuda.synchronize()
            for i, (a, b) in enumerate(zip(tensors, first, strict=True)):
                assert same_bits(a, b), f"tensor {i} in turn {turn}"


@pytest.mark.parametrize("scale_dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("interleaved", [False, True], ids=["plain", "interleaved"])
@pytest.mark.parametrize(("n", "k"), [(1, 128), (77, 384), (1000, 1280), (5120, 640)])
@schemes
@dtypes
def test_unpacking_is_exact_but_for_one_rounding(
    dtype, asymmetric, n, k, interleaved, scale_dtype
) -> None:
    weight = weight_of(
        n, k, interleaved=interleaved, asymmetric=asymmetric, scale_dtype=scale_dtype
    )
    rows = 2 * n if interleaved else n
    out = poisoned(rows, k, dtype)
    assert w4_unpack(weight, out=out) is out
    # float32 holds the product exactly, so that there is one rounding here as well.
    assert torch.equal(out, w4_unpack_reference(weight).float().to(out.dtype))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@schemes
def test_unpacking_keeps_what_is_not_finite_in_its_group(asymmetric, value) -> None:
    codes, scale, zero = stored(200, 640, asymmetric=asymmetric)
    scale[77, 2] = value
    weight = PackedW4(pack_reference(codes, scale, zero), 200, 640, asymmetric=asymmetric)
    out = poisoned(200, 640, "float16")
    w4_unpack(weight, out=out)
    bad = torch.zeros(200, 640, dtype=torch.bool, device="cuda")
    bad[77, 256:384] = True
    assert torch.equal(out.isfinite(), ~bad)


def test_unpacking_into_a_wider_tensor_writes_nothing_else() -> None:
    weight = weight_of(77, 384)
    wide = torch.full((80, 400), 7.0, device="cuda", dtype=torch.float16)
    w4_unpack(weight, out=wide[2:79, 8:392])
    assert torch.equal(wide[2:79, 8:392], w4_unpack_reference(weight).half())
    wide[2:79, 8:392] = 7.0
    assert (wide == 7.0).all()


def test_unpacking_in_a_graph() -> None:
    weight = weight_of(1000, 640)
    out = poisoned(1000, 640, "bfloat16")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        w4_unpack(weight, out=out)
    assert out.isnan().all(), "the capture itself ran the kernel"
    graph.replay()
    assert torch.equal(out, w4_unpack_reference(weight).float().bfloat16())
