"""The kernel against the reference, on a GPU."""

import pytest
from bytebound_kernels import rms_norm
from bytebound_kernels.ops.rms_norm import rms_norm_reference

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

# Relative RMS error against the reference in float32: rounding of the result and nothing else.
TOLERANCE = {"float32": 1e-6, "float16": 5e-4, "bfloat16": 4e-3}
PAIRS = [
    ("float16", "float16"),
    ("float16", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
    ("float32", "float32"),
]
WIDTHS = [1, 3, 64, 127, 128, 255, 256, 1000, 5120, 17408]
ROWS = [1, 2, 3, 7, 8, 33]

pairs = pytest.mark.parametrize(("x_dtype", "w_dtype"), PAIRS, ids=["-w-".join(p) for p in PAIRS])
dtypes = pytest.mark.parametrize("dtype", list(TOLERANCE))
widths = pytest.mark.parametrize("d", WIDTHS, ids=lambda d: f"D{d}")


def random(shape, dtype, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    values = torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32)
    return values.to(getattr(torch, dtype))


def poisoned(shape, dtype):
    return torch.full(shape, float("nan"), device="cuda", dtype=getattr(torch, dtype))


def expected(x, weight, eps=1e-6):
    return rms_norm_reference(x.float(), weight.float(), eps=eps)


def same_bits(a, b):
    integer = torch.int32 if a.dtype == torch.float32 else torch.int16
    return torch.equal(a.contiguous().view(integer), b.contiguous().view(integer))


@pytest.mark.parametrize("t", ROWS, ids=lambda t: f"T{t}")
@widths
@pairs
def test_matches_the_reference(t, d, x_dtype, w_dtype, assert_close) -> None:
    x, weight = random((t, d), x_dtype), random((d,), w_dtype, seed=1)
    out = poisoned((t, d), x_dtype)
    assert rms_norm(x, weight, out=out) is out
    assert_close("out", expected(x, weight), out, TOLERANCE[x_dtype])


@pytest.mark.parametrize("t", [1, 3, 8], ids=lambda t: f"T{t}")
@widths
@pytest.mark.parametrize("out_dtype", ["float16", "bfloat16"])
def test_a_float32_row_rounded_once(out_dtype, d, t) -> None:
    x, weight = random((t, d), "float32"), random((d,), "float32", seed=1)
    out = poisoned((t, d), out_dtype)
    rms_norm(x, weight, out=out)
    assert same_bits(out, rms_norm(x, weight).to(out.dtype))


@dtypes
def test_allocates_a_contiguous_result_of_the_same_shape(dtype, assert_close) -> None:
    x, weight = random((2, 3, 1000), dtype), random((1000,), dtype, seed=1)
    out = rms_norm(x, weight)
    assert out.shape == x.shape and out.dtype == x.dtype and out.is_contiguous()
    assert_close("out", expected(x, weight), out, TOLERANCE[dtype])


@pytest.mark.parametrize("eps", [0.0, 1e-6, 0.25], ids=lambda eps: f"eps{eps}")
def test_eps(eps, assert_close) -> None:
    x, weight = random((3, 255), "float32") * 0.1, random((255,), "float32", seed=1)
    assert_close("out", expected(x, weight, eps), rms_norm(x, weight, eps=eps), 1e-6)


@widths
@dtypes
def test_a_row_has_the_same_bits_alone_and_among_others(d, dtype) -> None:
    x, weight = random((8, d), dtype), random((d,), dtype, seed=1)
    together = rms_norm(x, weight)
    for i in range(8):
        assert same_bits(rms_norm(x[i : i + 1], weight), together[i : i + 1]), f"row {i}"


@widths
@dtypes
def test_strides_and_alignment_change_no_bit_and_nothing_else_is_written(d, dtype) -> None:
    x, weight = random((7, d), dtype), random((d,), dtype, seed=1)
    plain = rms_norm(x, weight)
    for offset, gap in ((0, 0), (0, 8), (1, 0), (1, 3), (3, 5), (8, 1)):
        wide_x = poisoned((7, offset + d + gap), dtype)
        wide_out = torch.full_like(wide_x, 7.0)
        wide_weight = poisoned((offset + d,), dtype)
        inside = slice(offset, offset + d)
        wide_x[:, inside], wide_weight[inside] = x, weight
        rms_norm(wide_x[:, inside], wide_weight[inside], out=wide_out[:, inside])
        assert same_bits(wide_out[:, inside], plain), f"offset {offset}, gap {gap}"
        wide_out[:, inside] = 7.0
        assert (wide_out == 7.0).all(), f"written outside: offset {offset}, gap {gap}"


def test_in_place() -> None:
    x, weight = random((33, 17408), "bfloat16"), random((17408,), "bfloat16", seed=1)
    separate = rms_norm(x, weight)
    assert same_bits(rms_norm(x, weight, out=x), separate)


def test_one_row_repeated_by_a_zero_stride() -> None:
    row, weight = random((1, 1000), "float16"), random((1000,), "float16", seed=1)
    repeated = rms_norm(row.expand(5, 1000), weight)
    assert same_bits(repeated, rms_norm(row, weight).expand(5, 1000))


def test_no_rows() -> None:
    out = rms_norm(random((0, 64), "float16"), random((64,), "float16"))
    assert out.shape == (0, 64)


def test_many_rows_repeat_their_bits() -> None:
    x, weight = random((4099, 5120), "bfloat16"), random((5120,), "bfloat16", seed=1)
    first = rms_norm(x, weight)
    assert all(same_bits(rms_norm(x, weight), first) for _ in range(5))


@dtypes
def test_a_nan_takes_its_row_and_no_other(dtype) -> None:
    x, weight = random((3, 1000), dtype), random((1000,), dtype, seed=1)
    clean = rms_norm(x, weight)
    x[1, 999] = float("nan")
    out = rms_norm(x, weight)
    assert out[1].isnan().all()
    assert same_bits(out[::2], clean[::2])


def test_large_float16_values_do_not_overflow(assert_close) -> None:
    x, weight = random((2, 5120), "float16").sign() * 60000, random((5120,), "float16", seed=1)
    assert_close("out", expected(x, weight), rms_norm(x, weight), TOLERANCE["float16"])


@pytest.mark.parametrize("t", [1, 8], ids=lambda t: f"T{t}")
def test_graph_replay_equals_eager(t) -> None:
    x, weight = random((t, 5120), "bfloat16"), random((5120,), "bfloat16", seed=1)
    eager = rms_norm(x, weight)
    out = poisoned((t, 5120), "bfloat16")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rms_norm(x, weight, out=out)
    assert out.isnan().all(), "the capture itself ran the kernel"
    graph.replay()
    torch.cuda.synchronize()
    assert same_bits(out, eager)

    x.copy_(random((t, 5120), "bfloat16", seed=2))
    graph.replay()
    torch.cuda.synchronize()
    assert same_bits(out, rms_norm(x, weight))


def test_runs_on_the_stream_that_is_asked_for() -> None:
    x, weight = random((8, 5120), "float16"), random((5120,), "float16", seed=1)
    plain = rms_norm(x, weight)
    stream = torch.cuda.Stream()
    for way in ("object", "handle", "current"):
        source, out = torch.zeros_like(x), poisoned(x.shape, "float16")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            # The copy waits on this stream: a kernel on another one would read zeros.
            torch.cuda._sleep(10_000_000)
            source.copy_(x)
        if way == "current":
            with torch.cuda.stream(stream):
                rms_norm(source, weight, out=out)
        else:
            handle = stream if way == "object" else stream.cuda_stream
            rms_norm(source, weight, out=out, stream=handle)
        stream.synchronize()
        assert same_bits(out, plain), way


def test_the_device_of_the_tensors_decides() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    x, weight = random((3, 1000), "float16"), random((1000,), "float16", seed=1)
    with torch.cuda.device(0):
        other = rms_norm(x.to("cuda:1"), weight.to("cuda:1"))
        assert torch.cuda.current_device() == 0
    assert other.device.index == 1
    assert same_bits(other.to("cuda:0"), rms_norm(x.to("cuda:0"), weight.to("cuda:0")))


def test_cupy_arrays() -> None:
    cupy = pytest.importorskip("cupy")
    x, weight = random((3, 1000), "float16"), random((1000,), "float32", seed=1)
    torch.cuda.synchronize()
    out = rms_norm(cupy.asarray(x), cupy.asarray(weight))
    assert isinstance(out, cupy.ndarray)
    cupy.cuda.get_current_stream().synchronize()
    assert same_bits(torch.as_tensor(out, device="cuda"), rms_norm(x, weight))


def test_host_tensors_are_refused_by_name() -> None:
    from bytebound_kernels import UnsupportedDeviceError

    with pytest.raises(UnsupportedDeviceError, match="weight on the host"):
        rms_norm(random((1, 8), "float16"), torch.zeros(8, dtype=torch.float16))
