"""The four-bit product against float64, on a GPU."""

import pytest
from bytebound_kernels import (
    PackedW4,
    devices,
    matvec_workspace_bytes,
    w4_matvec,
    w4_pack,
    w4_packed_bytes,
)

torch = pytest.importorskip("torch")

from bytebound_kernels.ops.w4_matvec.layout import interleave, pack_reference  # noqa: E402
from bytebound_kernels.ops.w4_matvec.reference import (  # noqa: E402
    fixed_point_reference,
    w4_matvec_reference,
)

pytestmark = pytest.mark.gpu

TOLERANCE = {"float16": 1e-3, "bfloat16": 4e-3, "float32": 1e-4}
# Rows off the 64 of an item, one group and many, fewer items than warps and more.
SHAPES = [(1, 128), (77, 256), (64, 5120), (1000, 1280), (2049, 384), (320, 17408), (9000, 2560)]
ROWS = [1, 2, 5, 8, 9, 16]

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
    scratch = torch.empty(matvec_workspace_bytes(0), device="cuda", dtype=torch.uint8).fill_(255)
    yield scratch
    assert (scratch == 255).all(), "a call left something in the workspace"


def same_bits(a, b):
    integer = torch.int32 if a.dtype == torch.float32 else torch.int16
    return torch.equal(a.contiguous().view(integer), b.contiguous().view(integer))


@pytest.mark.parametrize("rows", ROWS, ids=lambda r: f"R{r}")
@schemes
@dtypes
@shapes
def test_matches_the_reference(n, k, dtype, asymmetric, rows, workspace, assert_close) -> None:
    weight, x = weight_of(n, k, asymmetric=asymmetric), activations(rows, k, dtype)
    out = poisoned(rows, n, dtype)
    assert w4_matvec(x, weight, out=out, workspace=workspace) is out
    assert_close("out", w4_matvec_reference(x, weight), out, TOLERANCE[dtype])


@dtypes
@schemes
@shapes
def test_float32_results(n, k, asymmetric, dtype, workspace, assert_close) -> None:
    weight, x = weight_of(n, k, asymmetric=asymmetric), activations(3, k, dtype)
    out = poisoned(3, n, "float32")
    w4_matvec(x, weight, out=out, workspace=workspace)
    assert_close("out", w4_matvec_reference(x, weight), out, TOLERANCE["float32"])


def uneven(rows, k, dtype, seed=11):
    """Activations of many magnitudes: outliers, tiny groups and groups of zeros."""
    draw = generator(seed)
    x = torch.randn((rows, k), generator=draw, device="cuda")
    spread = torch.randn((rows, k), generator=draw, device="cuda") * 4
    x = (x * spread.exp2()).unflatten(-1, (-1, 128))
    group = torch.randint(-20, 5, (rows, k // 128, 1), generator=draw, device="cuda")
    x = x * (group.float() * (1 if dtype == "float16" else 4)).exp2()
    x[:, ::3, 5] *= 1000
    x[-1, -1] = 0
    limit = torch.finfo(getattr(torch, dtype)).max
    return x.flatten(-2).clamp(-limit, limit).to(getattr(torch, dtype))


@pytest.mark.parametrize("rows", [1, 4, 5, 8], ids=lambda r: f"R{r}")
@schemes
@dtypes
def test_within_a_group_nothing_is_rounded_but_the_activations(
    dtype, asymmetric, rows, workspace, assert_close
) -> None:
    weight, x = weight_of(200, 1280, asymmetric=asymmetric), uneven(rows, 1280, dtype)
    out = poisoned(rows, 200, "float32")
    w4_matvec(x, weight, out=out, workspace=workspace)
    assert_close("out", w4_matvec_reference(fixed_point_reference(x), weight), out, 1e-6)
    # And that rounding is a 2^-15 of the largest of each group, at most.
    largest = x.double().unflatten(-1, (-1, 128)).abs().amax(-1)
    off = (fixed_point_reference(x) - x.double()).abs().unflatten(-1, (-1, 128)).amax(-1)
    assert (off <= largest * 1.01 * 2.0**-15 + 2.0**-126).all()


@pytest.mark.parametrize("magnitude", [1.0, 65504.0, 2.0**-24])
def test_the_ends_of_float16(magnitude, workspace, assert_close) -> None:
    weight = weight_of(77, 256)
    x = torch.full((2, 256), magnitude, device="cuda", dtype=torch.float16)
    x[1, ::2] = -magnitude
    out = poisoned(2, 77, "float32")
    w4_matvec(x, weight, out=out, workspace=workspace)
    assert_close("out", w4_matvec_reference(x, weight), out, 1e-6)


@pytest.mark.parametrize("scale_dtype", ["float16", "bfloat16"])
@dtypes
def test_scales_of_both_types(dtype, scale_dtype, workspace, assert_close) -> None:
    weight, x = weight_of(200, 640, scale_dtype=scale_dtype), activations(4, 640, dtype)
    out = poisoned(4, 200, "float32")
    w4_matvec(x, weight, out=out, workspace=workspace)
    assert_close("out", w4_matvec_reference(x, weight), out, TOLERANCE["float32"])


@pytest.mark.parametrize("rows", [1, 5, 16], ids=lambda r: f"R{r}")
@pytest.mark.parametrize("n", [1, 8, 100, 2051], ids=lambda n: f"N{n}")
@schemes
@dtypes
def test_swiglu(dtype, asymmetric, n, rows, workspace, assert_close) -> None:
    weight = weight_of(n, 1280, interleaved=True, asymmetric=asymmetric)
    x = activations(rows, 1280, dtype)
    out = poisoned(rows, n, dtype)
    w4_matvec(x, weight, out=out, workspace=workspace)
    assert_close("out", w4_matvec_reference(x, weight), out, TOLERANCE[dtype])


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("out_dtype", ["same", "float32"])
@dtypes
def test_residual(dtype, out_dtype, in_place, workspace, assert_close) -> None:
    kind = dtype if out_dtype == "same" else out_dtype
    weight, x = weight_of(1000, 1280), activations(6, 1280, dtype)
    residual = activations(6, 1000, kind, seed=3)
    expected = w4_matvec_reference(x, weight, residual=residual)
    out = residual if in_place else poisoned(6, 1000, kind)
    w4_matvec(x, weight, out=out, residual=residual, workspace=workspace)
    assert_close("out", expected, out, TOLERANCE[kind])


@scales
@pytest.mark.parametrize("interleaved", [False, True], ids=["plain", "swiglu"])
@schemes
@dtypes
def test_scale_multiplies_the_float32_result(
    dtype, asymmetric, interleaved, scale, workspace, assert_close
) -> None:
    weight = weight_of(1000, 1280, interleaved=interleaved, asymmetric=asymmetric)
    x, wide = activations(9, 1280, dtype), poisoned(9, 1000, "float32")
    w4_matvec(x, weight, out=wide, workspace=workspace)
    expected = wide * torch.tensor(scale, device="cuda")
    reference = w4_matvec_reference(x, weight, scale=scale)
    for kind in ("float32", dtype):
        out = poisoned(9, 1000, kind)
        w4_matvec(x, weight, out=out, workspace=workspace, scale=scale)
        assert same_bits(out, expected.to(out.dtype)), kind
        assert_close(f"out in {kind}", reference, out, TOLERANCE[kind])


@scales
@pytest.mark.parametrize("out_dtype", ["same", "float32"])
@dtypes
def test_scale_comes_before_the_residual(dtype, out_dtype, scale, workspace, assert_close) -> None:
    kind = dtype if out_dtype == "same" else out_dtype
    weight, x = weight_of(1000, 1280), activations(6, 1280, dtype)
    wide, out = poisoned(6, 1000, "float32"), activations(6, 1000, kind, seed=3)
    w4_matvec(x, weight, out=wide, workspace=workspace)
    expected = (wide * torch.tensor(scale, device="cuda") + out.float()).to(out.dtype)
    reference = w4_matvec_reference(x, weight, residual=out, scale=scale)
    alone = out.clone()
    w4_matvec(x, weight, out=out, residual=out, workspace=workspace, scale=scale)
    assert same_bits(out, expected)
    assert_close("out", reference, out, TOLERANCE[kind])
    for i in range(6):
        row = alone[i : i + 1]
        w4_matvec(x[i : i + 1], weight, out=row, residual=row, workspace=workspace, scale=scale)
    assert same_bits(alone, out), "a row alone"


def test_a_power_of_two_keeps_swiglu_within_float16(workspace, assert_close) -> None:
    gate_up, down = weight_of(640, 1280, interleaved=True), weight_of(320, 640)
    x = activations(5, 1280, "float16") * 200
    hidden, out = poisoned(5, 640, "float16"), poisoned(5, 320, "float32")
    w4_matvec(x, gate_up, out=hidden, workspace=workspace)
    assert hidden.isinf().any(), "without it the product overflows"
    w4_matvec(x, gate_up, out=hidden, workspace=workspace, scale=2.0**-10)
    w4_matvec(hidden, down, out=out, workspace=workspace, scale=2.0**10)
    expected = w4_matvec_reference(w4_matvec_reference(x, gate_up), down)
    assert_close("out", expected, out, TOLERANCE["float16"])


@schemes
@dtypes
@shapes
def test_a_row_has_the_same_bits_alone_and_among_others(n, k, dtype, asymmetric, workspace) -> None:
    weight, x = weight_of(n, k, asymmetric=asymmetric), activations(16, k, dtype)
    together = poisoned(16, n, "float32")
    w4_matvec(x, weight, out=together, workspace=workspace)
    for count in (1, 3, 8):
        for first in range(0, 17 - count, 5):
            out = poisoned(count, n, "float32")
            w4_matvec(x[first : first + count], weight, out=out, workspace=workspace)
            assert same_bits(out, together[first : first + count]), f"rows {first} + {count}"


@pytest.mark.parametrize("num_blocks", [1, 7, 132])
@shapes
def test_any_number_of_blocks(n, k, num_blocks, workspace, assert_close) -> None:
    weight, x = weight_of(n, k), activations(5, k, "float16")
    out = poisoned(5, n, "float16")
    w4_matvec(x, weight, out=out, workspace=workspace, num_blocks=num_blocks)
    assert_close("out", w4_matvec_reference(x, weight), out, TOLERANCE["float16"])


@pytest.mark.parametrize("epilogue", ["store", "residual", "swiglu"])
@schemes
def test_fewer_blocks_than_the_card_holds(asymmetric, epilogue, workspace) -> None:
    """The bits of a smaller grid than the card holds, in which every warp has two items or one."""
    most = 2 * devices()[0].num_sms
    groups, row_blocks = 5, 8 * most // 5 + 1
    items = groups * row_blocks
    blocks = -(-items // 16)
    assert 8 * most < items < 9 * most and blocks < most
    n = 64 * row_blocks // (2 if epilogue == "swiglu" else 1) - 3
    weight = weight_of(n, 128 * groups, asymmetric=asymmetric, interleaved=epilogue == "swiglu")
    x, residual = activations(5, 128 * groups, "float16"), activations(5, n, "float32", seed=3)
    results = {}
    for num_blocks in (None, blocks, most):
        results[num_blocks] = poisoned(5, n, "float32")
        more = {"residual": residual} if epilogue == "residual" else {}
        out = results[num_blocks]
        w4_matvec(x, weight, out=out, workspace=workspace, num_blocks=num_blocks, **more)
    assert same_bits(results[None], results[blocks])
    assert not same_bits(results[None], results[most]), "the order of summation is another one"


def test_strides_change_no_bit_and_nothing_else_is_written(workspace) -> None:
    weight, x = weight_of(300, 512), activations(5, 512, "bfloat16")
    plain = poisoned(5, 300, "bfloat16")
    w4_matvec(x, weight, out=plain, workspace=workspace)
    wide_x = poisoned(5, 1024, "bfloat16")
    wide_x[:, 8:520] = x
    wide_out = torch.full((5, 333), 7.0, device="cuda", dtype=torch.bfloat16)
    w4_matvec(wide_x[:, 8:520], weight, out=wide_out[:, 3:303], workspace=workspace)
    assert same_bits(wide_out[:, 3:303], plain)
    wide_out[:, 3:303] = 7.0
    assert (wide_out == 7.0).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@dtypes
def test_what_is_not_finite_stays_in_its_row(dtype, value, workspace) -> None:
    weight, x = weight_of(500, 640), activations(8, 640, dtype)
    clean, out = poisoned(8, 500, dtype), poisoned(8, 500, dtype)
    w4_matvec(x, weight, out=clean, workspace=workspace)
    x[3, 77] = value
    w4_matvec(x, weight, out=out, workspace=workspace)
    assert not out[3].isfinite().any()
    others = [0, 1, 2, 4, 5, 6, 7]
    assert same_bits(out[others], clean[others])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@schemes
@dtypes
def test_a_scale_that_is_not_finite_stays_in_its_feature(
    dtype, asymmetric, value, workspace
) -> None:
    codes, scale, zero = stored(500, 640, asymmetric=asymmetric)
    x, results = activations(8, 640, dtype), []
    for one in (scale[77, 2].clone(), value):
        scale[77, 2] = one
        weight = PackedW4(pack_reference(codes, scale, zero), 500, 640, asymmetric=asymmetric)
        results.append(poisoned(8, 500, dtype))
        w4_matvec(x, weight, out=results[-1], workspace=workspace)
    clean, out = results
    assert not out[:, 77].isfinite().any()
    others = torch.arange(500, device="cuda") != 77
    assert same_bits(out[:, others], clean[:, others])


@dtypes
def test_large_and_small_activations(dtype, workspace, assert_close) -> None:
    weight = weight_of(256, 640)
    for factor in (2.0**-14, 1.0, 2.0**10):
        x = activations(2, 640, dtype) * factor
        out = poisoned(2, 256, "float32")
        w4_matvec(x, weight, out=out, workspace=workspace)
        assert_close(f"out at {factor}", w4_matvec_reference(x, weight), out, 1e-4)


def test_graph_replays_repeat_their_bits(workspace) -> None:
    """Ten thousand launches of four products that hand over to each other and share a workspace."""
    square, tall = weight_of(640, 640), weight_of(5000, 640)
    wide, swiglu = weight_of(640, 5120), weight_of(2560, 640, interleaved=True)
    x = activations(5, 640, "float16") * 0.1
    y, z = poisoned(5, 640, "float16"), poisoned(5, 5000, "float16")
    u, v = poisoned(5, 2560, "float16"), poisoned(5, 640, "float32")
    long = activations(5, 5120, "float16")

    def chain():
        w4_matvec(x, square, out=y, workspace=workspace)
        w4_matvec(y, tall, out=z, workspace=workspace)
        w4_matvec(y, swiglu, out=u, workspace=workspace)
        w4_matvec(long, wide, out=v, workspace=workspace)

    chain()
    first = [t.clone() for t in (y, z, u, v)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(25):
            chain()
    for t in (y, z, u, v):
        t.fill_(float("nan"))
    for turn in range(100):
        graph.replay()
        if turn % 10 == 0:
            torch.cuda.synchronize()
            for name, a, b in zip("yzuv", (y, z, u, v), first, strict=True):
                assert same_bits(a, b), f"{name} in turn {turn}"


def words_of(codes):
    """Codes as int32 words of eight, the first in the lowest bits."""
    n, k = codes.shape
    shifts = torch.arange(0, 32, 4, device=codes.device)
    words = (codes.to(torch.int64).view(n, k // 8, 8) << shifts).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def zero_words_of(zero):
    n = zero.shape[0]
    padded = zero.new_zeros((-(-n // 8) * 8, zero.shape[1]))
    padded[:n] = zero
    return words_of(padded.T.contiguous()).T.contiguous()


@schemes
@pytest.mark.parametrize(("n", "k"), [(1, 128), (63, 384), (200, 256), (5120, 640)])
def test_packing_equals_the_reference(n, k, asymmetric) -> None:
    codes, scale, zero = stored(n, k, asymmetric=asymmetric)
    size = w4_packed_bytes(n, k, asymmetric=asymmetric)
    data = torch.zeros(size, device="cuda", dtype=torch.uint8)
    out = PackedW4(data, n, k, asymmetric=asymmetric)
    w4_pack(words_of(codes), scale, None if zero is None else zero_words_of(zero), out=out)
    assert torch.equal(data, pack_reference(codes, scale, zero))


@schemes
def test_packing_several_matrices_into_one(asymmetric) -> None:
    counts, k = (24, 5, 100, 71), 256
    parts = [stored(n, k, asymmetric=asymmetric, seed=i) for i, n in enumerate(counts)]
    total = sum(counts)
    data = torch.zeros(
        w4_packed_bytes(total, k, asymmetric=asymmetric), device="cuda", dtype=torch.uint8
    )
    out = PackedW4(data, total, k, asymmetric=asymmetric)
    first = 0
    for codes, scale, zero in parts:
        words = None if zero is None else zero_words_of(zero)
        w4_pack(words_of(codes), scale, words, out=out, first_row=first)
        first += codes.shape[0]
    stacked = [None if a[0] is None else torch.cat(a) for a in zip(*parts, strict=True)]
    assert torch.equal(data, pack_reference(*stacked))


@schemes
@pytest.mark.parametrize("n", [1, 20, 96, 1000])
def test_packing_gate_and_up(n, asymmetric) -> None:
    gate, up = (stored(n, 256, asymmetric=asymmetric, seed=seed) for seed in (1, 2))
    size = w4_packed_bytes(n, 256, asymmetric=asymmetric, interleaved=True)
    data = torch.zeros(size, device="cuda", dtype=torch.uint8)
    out = PackedW4(data, n, 256, asymmetric=asymmetric, interleaved=True)
    for name, (codes, scale, zero) in (("gate", gate), ("up", up)):
        words = None if zero is None else zero_words_of(zero)
        w4_pack(words_of(codes), scale, words, out=out, part=name)
    both = [None if a is None else interleave(a, b) for a, b in zip(gate, up, strict=True)]
    expected = pack_reference(*both)
    assert torch.equal(data[: expected.numel()], expected)
    assert not data[expected.numel() :].any()


def test_as_many_blocks_as_the_card_holds() -> None:
    assert matvec_workspace_bytes(0) == 2 * devices()[0].num_sms * 64 * 8 * 4
