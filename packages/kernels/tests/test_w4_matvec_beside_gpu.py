"""A small product in the launch of a four-bit one: the bits of either op alone, on a GPU."""

import pytest
from bytebound_kernels import devices, matvec_workspace_bytes, rms_norm, rms_norm_project, w4_matvec
from bytebound_kernels.ops.w4_matvec.reference import beside_reference

torch = pytest.importorskip("torch")

from .test_w4_matvec_gpu import (  # noqa: E402
    activations,
    dtypes,
    poisoned,
    same_bits,
    schemes,
    weight_of,
)

pytestmark = pytest.mark.gpu

TOLERANCE = {"float16": 1e-3, "bfloat16": 4e-3}
# [N, M, K]: one feature, features off the four of a warp, K off the 256 of a part, a long row, many
# features, and the gates of the 27B shape.
SHAPES = [
    (77, 1, 128),
    (64, 3, 640),
    (130, 37, 1280),
    (1000, 97, 2944),
    (200, 96, 8192),
    (64, 4096, 384),
    (16384, 96, 5120),
]
ROWS = [*range(1, 10), 16]

shapes = pytest.mark.parametrize(("n", "m", "k"), SHAPES, ids=lambda v: str(v))


@pytest.fixture(scope="module")
def workspace():
    scratch = torch.full((matvec_workspace_bytes(0),), 255, device="cuda", dtype=torch.uint8)
    yield scratch
    assert (scratch == 255).all(), "a call left something in the workspace"


def small(m, k, dtype, seed=5):
    return activations(m, k, "float32", seed).mul(k**-0.5).to(getattr(torch, dtype))


def run(x, weight, beside_weight, workspace, **keywords):
    """The op with poisoned results, which looks at what lies around the small one."""
    (rows, _), m = x.shape, beside_weight.shape[0]
    out = torch.full((rows, weight.n), float("nan"), device="cuda", dtype=x.dtype)
    wide = torch.full((rows + 2, m + 5), float("nan"), device="cuda", dtype=x.dtype)
    beside_out = wide[1:-1, 2:-3]
    w4_matvec(
        x,
        weight,
        out=out,
        workspace=workspace,
        beside_weight=beside_weight,
        beside_out=beside_out,
        **keywords,
    )
    copy = beside_out.clone()
    beside_out.fill_(float("nan"))
    assert wide.isnan().all(), "written outside"
    return out, copy


@pytest.mark.parametrize("rows", ROWS, ids=lambda r: f"R{r}")
@schemes
@dtypes
@shapes
def test_the_bits_of_the_product_and_of_norm_and_gates(
    n, m, k, dtype, asymmetric, rows, workspace, assert_close
) -> None:
    """As a step needs it: rms_norm and this in the place of rms_norm_project and w4_matvec."""
    weight, gates = weight_of(n, k, asymmetric=asymmetric), small(m, k, dtype)
    residual = activations(rows, k, "float32") * 3
    norm = activations(1, k, "float32", seed=1)[0] * 0.3
    y, y_before = poisoned(rows, k, dtype), poisoned(rows, k, dtype)
    out_before, gates_before = poisoned(rows, n, dtype), poisoned(rows, m, dtype)
    rms_norm_project(residual, norm, gates, out=y_before, projected=gates_before)
    w4_matvec(y_before, weight, out=out_before, workspace=workspace)
    rms_norm(residual, norm, out=y)
    out, beside = run(y, weight, gates, workspace)
    assert same_bits(y, y_before) and same_bits(out, out_before)
    assert same_bits(beside, gates_before)
    assert_close("beside_out", beside_reference(y, gates), beside, TOLERANCE[dtype])


@dtypes
@shapes
def test_a_row_has_the_same_bits_alone_and_among_others(n, m, k, dtype, workspace) -> None:
    weight, gates, x = weight_of(n, k), small(m, k, dtype), activations(16, k, dtype)
    out, beside = run(x, weight, gates, workspace)
    for first, count in [(0, 1), (7, 1), (15, 1), (2, 2), (3, 5), (8, 8), (4, 11)]:
        rows = slice(first, first + count)
        part, part_beside = run(x[rows], weight, gates, workspace)
        assert same_bits(part, out[rows]) and same_bits(part_beside, beside[rows]), f"rows {rows}"


@pytest.mark.parametrize("fewer", [0, 1, 2, 5, 40])
@dtypes
def test_any_number_of_free_places_gives_the_same_bits(dtype, fewer, workspace) -> None:
    """Blocks of the small product: one that waits for a place, one, two, some, one a four."""
    most = 2 * devices()[0].num_sms
    weight, gates = weight_of(1000, 2944), small(97, 2944, dtype)
    x = activations(5, 2944, dtype)
    _, expected = run(x, weight, gates, workspace)
    out = poisoned(5, 1000, dtype)
    blocks = max(most - fewer, 1)
    w4_matvec(x, weight, out=out, workspace=workspace, num_blocks=blocks)
    result, beside = run(x, weight, gates, workspace, num_blocks=blocks)
    assert same_bits(result, out) and same_bits(beside, expected)


@dtypes
def test_a_feature_has_the_same_bits_in_any_matrix(dtype, workspace) -> None:
    weight, gates, x = weight_of(130, 1280), small(97, 1280, dtype), activations(3, 1280, dtype)
    _, beside = run(x, weight, gates, workspace)
    for features in (slice(0, 1), slice(7, 50), slice(2, 96), slice(96, 97)):
        _, part = run(x, weight, gates[features], workspace)
        assert same_bits(part, beside[:, features]), f"{features}"


@pytest.mark.parametrize("epilogue", ["residual", "swiglu"])
@dtypes
def test_with_any_epilogue(dtype, epilogue, workspace) -> None:
    weight = weight_of(130, 1280, interleaved=epilogue == "swiglu")
    gates, x = small(37, 1280, dtype), activations(5, 1280, dtype)
    more = {"residual": activations(5, 130, dtype, seed=3)} if epilogue == "residual" else {}
    expected = poisoned(5, 130, dtype)
    w4_matvec(x, weight, out=expected, workspace=workspace, scale=0.5, **more)
    out, beside = run(x, weight, gates, workspace, scale=0.5, **more)
    assert same_bits(out, expected)
    assert same_bits(beside, run(x, weight_of(64, 1280), gates, workspace)[1])


@dtypes
def test_slices_of_larger_tensors_give_the_same_bits(dtype, workspace) -> None:
    weight, gates, x = weight_of(130, 1280), small(37, 1280, dtype), activations(5, 1280, dtype)
    expected = run(x, weight, gates, workspace)
    wide_x, wide_gates = poisoned(7, 1304, dtype), poisoned(40, 1352, dtype)
    wide_x[1:6, 8:1288] = x
    wide_gates[2:39, 8:1288] = gates
    results = run(wide_x[1:6, 8:1288], weight, wide_gates[2:39, 8:1288], workspace)
    assert all(same_bits(a, b) for a, b in zip(results, expected, strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@dtypes
def test_what_is_not_finite_stays_where_it_is(dtype, value, workspace) -> None:
    weight, gates, x = weight_of(130, 640), small(37, 640, dtype), activations(8, 640, dtype)
    clean = run(x, weight, gates, workspace)
    bad_x, bad_gates = x.clone(), gates.clone()
    bad_x[1, 5], bad_x[4, 639] = value, value
    out, beside = run(bad_x, weight, gates, workspace)
    assert not beside[[1, 4]].isfinite().any()
    good = [0, 2, 3, 5, 6, 7]
    assert same_bits(out[good], clean[0][good]) and same_bits(beside[good], clean[1][good])
    bad_gates[36, 639] = value
    out, beside = run(x, weight, bad_gates, workspace)
    assert not beside[:, 36].isfinite().any()
    assert same_bits(out, clean[0]) and same_bits(beside[:, :36], clean[1][:, :36])


def test_graph_replays_of_a_layer_repeat_their_bits(workspace) -> None:
    """Overlapping launches: the norm writes what both products read."""
    k, m, rows = 640, 96, 5
    into, back, gates = weight_of(2048, k), weight_of(k, 2048), small(m, k, "float16")
    x, y = activations(rows, k, "float32"), poisoned(rows, k, "float16")
    norm = activations(1, k, "float32", seed=1)[0] * 0.3
    projected = torch.empty((20, rows, 2048), device="cuda", dtype=torch.float16)
    beside = torch.empty((20, rows, m), device="cuda", dtype=torch.float16)
    start = x.clone()

    def chain(synchronize=False):
        for out, small_out in zip(projected, beside, strict=True):
            rms_norm(x, norm, out=y)
            w4_matvec(
                y,
                into,
                out=out,
                workspace=workspace,
                beside_weight=gates,
                beside_out=small_out,
            )
            if synchronize:
                torch.cuda.synchronize()
            w4_matvec(out, back, out=x, residual=x, workspace=workspace, scale=0.01)

    chain(synchronize=True)
    torch.cuda.synchronize()
    expected = [tensor.clone() for tensor in (x, projected, beside)]
    x.copy_(start)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    for turn in range(200):
        x.copy_(start)
        projected.fill_(float("nan"))
        beside.fill_(float("nan"))
        graph.replay()
        for result, want in zip((x, projected, beside), expected, strict=True):
            assert same_bits(result, want), f"turn {turn}"
