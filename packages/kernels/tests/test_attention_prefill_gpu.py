"""Attention over many rows on a GPU: lengths, positions, dtypes, bits, graphs."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = pytest.mark.gpu

from bytebound_kernels.ops.attention_decode.reference import (  # noqa: E402
    attention_decode_reference,
)
from bytebound_kernels.prefill import (  # noqa: E402
    attention_prefill,
    attention_prefill_workspace_bytes,
)

DH = 256
# Of the outputs, by the coarsest of the dtypes of activations and cache. A key that lies on the
# other side of a boundary of float8 than in float64 is in there too.
TOLERANCE = {"float16": 1e-3, "bfloat16": 5e-3, "float8_e4m3fn": 5e-3}


def arguments(
    t, dtype="bfloat16", cache="bfloat16", *, nh=6, nkv=2, position=0, capacity=None, seed=0
):
    """Random arguments of attention_prefill as a dictionary; the cache is filled up to position."""
    generator = torch.Generator("cuda").manual_seed(seed)
    capacity = position + t + 13 if capacity is None else capacity

    def random(*shape, scale=1.0):
        values = torch.randn(shape, generator=generator, device="cuda") * scale
        return values.to(getattr(torch, dtype))

    args = {
        "q_gate": random(t, nh * 2 * DH),
        "k": random(t, nkv * DH),
        "v": random(t, nkv * DH),
        "q_norm": random(DH, scale=0.3),
        "k_norm": random(DH, scale=0.3),
        "inv_freq": 1.0 / 1e7 ** (torch.arange(0, 64, 2, device="cuda") / 64),
        "position": position,
    }
    for name in ("k", "v"):
        past = torch.full((nkv, capacity, DH), float("nan"), device="cuda")
        past[:, :position] = random(nkv, position, DH).float()
        args[f"{name}_cache"] = past.to(getattr(torch, cache))
        if cache == "float8_e4m3fn":
            args[f"{name}_scale"] = torch.full((nkv, capacity), float("nan"), device="cuda")
            args[f"{name}_scale"][:, :position] = 0.5
    return args


def copied(args):
    return {n: x.clone() if torch.is_tensor(x) else x for n, x in args.items()}


def run(args, **more):
    width = args["q_gate"].shape[1] // 2
    out = torch.full((len(args["k"]), width), float("nan"), device="cuda", dtype=args["k"].dtype)
    return attention_prefill(**args, out=out, **more)


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def check(args, assert_close, **more):
    twin = copied(args)
    expected = attention_decode_reference(**twin)
    dtypes = (args["k"].dtype, args["k_cache"].dtype)
    tolerance = max(TOLERANCE[str(dtype).removeprefix("torch.")] for dtype in dtypes)
    assert_close("out", expected, run(args, **more), tolerance)
    end = args["position"] + len(args["k"])
    if "k_scale" in args:
        for name in ("k_scale", "v_scale"):
            assert_close(name, twin[name][:, :end], args[name][:, :end], 1e-6)
            assert args[name][:, end:].isnan().all()
            assert name == "k_scale" or torch.equal(twin[name][:, :end], args[name][:, :end])
    # A key comes from float32, so now and then it rounds to the neighbour. A value does not.
    limit = 5e-3 if "k_scale" in args else 1e-3
    for name, most in (("k_cache", limit), ("v_cache", 0.0)):
        assert_close(name, twin[name][:, :end].float(), args[name][:, :end].float(), most)
        assert args[name][:, end:].float().isnan().all(), f"{name} is written beyond the rows"


@pytest.mark.parametrize("position", [0, 1, 63, 64, 1000], ids=lambda p: f"p{p}")
@pytest.mark.parametrize("t", [1, 2, 63, 64, 65, 127, 128, 129, 200, 513], ids=lambda t: f"T{t}")
def test_lengths_and_positions(t, position, assert_close) -> None:
    check(arguments(t, position=position), assert_close)


@pytest.mark.parametrize("position", [0, 37], ids=lambda p: f"p{p}")
@pytest.mark.parametrize("cache", ["bfloat16", "float8_e4m3fn"])
def test_every_length_to_200(cache, position, assert_close) -> None:
    """A row sees none that follows: one run in float64 over 200 rows holds the outputs of all."""
    whole = arguments(200, cache=cache, nh=2, nkv=1, position=position)
    expected = attention_decode_reference(**copied(whole))
    full = copied(whole)
    check(full, assert_close)
    for t in range(1, 201):
        args = copied(whole) | {name: whole[name][:t] for name in ("q_gate", "k", "v")}
        assert_close(f"out T{t}", expected[:t], run(args), 5e-3)
        for name in [name for name in args if name.endswith(("_cache", "_scale"))]:
            end = position + t
            assert same_bits(args[name][:, :end], full[name][:, :end]), f"{name} T{t}"
            assert args[name][:, end:].float().isnan().all(), f"{name} T{t} beyond the rows"


@pytest.mark.parametrize(("t", "position"), [(1999, 0), (2050, 131), (4099, 7)])
@pytest.mark.parametrize("cache", ["bfloat16", "float8_e4m3fn"])
def test_long(cache, t, position, assert_close) -> None:
    check(arguments(t, cache=cache, nh=2, nkv=1, position=position), assert_close)


@pytest.mark.parametrize("position", [0, 777], ids=lambda p: f"p{p}")
@pytest.mark.parametrize("cache", ["float16", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_dtypes(dtype, cache, position, assert_close) -> None:
    check(arguments(300, dtype, cache, position=position), assert_close)


@pytest.mark.parametrize(("nh", "nkv"), [(24, 4), (2, 1), (3, 3)])
def test_head_counts(nh, nkv, assert_close) -> None:
    check(arguments(140, nh=nh, nkv=nkv), assert_close)


@pytest.mark.parametrize("t", [1, 64, 1000], ids=lambda t: f"T{t}")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_pytorch_serves_a_fresh_cache(t, dtype, assert_close) -> None:
    check(arguments(t, dtype, dtype), assert_close, backend="sdpa")


@pytest.mark.parametrize("position", [131_071, 262_000 - 70])
def test_far_positions(position, assert_close) -> None:
    check(arguments(70, nh=2, nkv=1, position=position, capacity=262_144), assert_close)


@pytest.mark.parametrize("cache", ["bfloat16", "float8_e4m3fn"])
def test_two_passes_equal_one(cache, assert_close) -> None:
    whole = arguments(600, cache=cache)
    alone = copied(whole)
    out = run(alone)
    parts = []
    for part in (slice(0, 129), slice(129, 130), slice(130, 600)):
        rows = {n: whole[n][part] for n in ("q_gate", "k", "v")}
        parts.append(run(whole | rows | {"position": part.start}))
    assert_close("out", out, torch.cat(parts), 5e-3)
    for name in ("k_cache", "v_cache"):
        assert same_bits(alone[name][:, :600], whole[name][:, :600])


@pytest.mark.parametrize("step", [64, 100, 512])
def test_a_prompt_in_steps_of_any_length(step, assert_close) -> None:
    whole = arguments(3000, nh=2, nkv=1)
    alone = copied(whole)
    out = run(alone)
    parts = []
    for start in range(0, 3000, step):
        rows = {n: whole[n][start : start + step] for n in ("q_gate", "k", "v")}
        parts.append(run(whole | rows | {"position": start}))
    assert_close("out", out, torch.cat(parts), 5e-3)
    assert_close("last row", out[-1], parts[-1][-1], 5e-3)
    for name in ("k_cache", "v_cache"):
        assert same_bits(alone[name], whole[name])


@pytest.mark.parametrize("cache", ["bfloat16", "float8_e4m3fn"])
def test_the_cache_is_that_of_the_decode_op(cache, assert_close) -> None:
    """Rows that prefill appends and rows that decode appends have the same bits."""
    from bytebound_kernels import attention_decode, attention_decode_workspace_bytes

    prefill = arguments(8, cache=cache, position=50, capacity=72)  # decode wants a multiple of 4
    decode = copied(prefill)
    out = run(prefill)
    size = attention_decode_workspace_bytes(8, 6, decode["k_cache"].shape[1])
    decode["position"] = torch.tensor([50], dtype=torch.int32, device="cuda")
    other = attention_decode(
        **decode,
        out=torch.empty_like(out),
        workspace=torch.empty(size, dtype=torch.uint8, device="cuda"),
    )
    assert_close("out", out, other, 5e-3)
    if cache == "float8_e4m3fn":
        assert_close("k_scale", decode["k_scale"][:, :58], prefill["k_scale"][:, :58], 1e-6)
        assert same_bits(decode["v_scale"][:, 50:58], prefill["v_scale"][:, 50:58])
    assert same_bits(decode["v_cache"][:, 50:58], prefill["v_cache"][:, 50:58])
    keys = (args["k_cache"][:, 50:58].float() for args in (decode, prefill))
    assert_close("k_cache", *keys, 5e-3 if cache == "float8_e4m3fn" else 1e-3)


@pytest.mark.parametrize("value", ["inf", "nan"])
@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.parametrize("position", [0, 77], ids=lambda p: f"p{p}")
@pytest.mark.parametrize("cache", ["bfloat16", "float8_e4m3fn"])
def test_what_is_not_finite_reaches_no_earlier_row_and_no_other_head(
    cache, position, name, value
) -> None:
    args = arguments(300, cache=cache, position=position)
    clean = run(copied(args)).view(300, 6, DH)
    args[name][200, 5] = float(value)  # kv head 0
    out = run(args).view(300, 6, DH)
    assert same_bits(out[:, 3:], clean[:, 3:])
    assert same_bits(out[:200, :3], clean[:200, :3])
    assert not out[200:, :3].isfinite().all(-1).any()


def test_a_value_too_large_for_the_cache_reaches_no_earlier_row() -> None:
    args = arguments(300, cache="float16")
    clean = run(copied(args)).view(300, 6, DH)
    args["v"][200, 5] = 1e30  # infinite in float16
    out = run(args).view(300, 6, DH)
    assert same_bits(out[:, 3:], clean[:, 3:])
    assert same_bits(out[:200, :3], clean[:200, :3])
    assert not out[200:, :3].isfinite().all(-1).any()


def test_repeats_its_bits() -> None:
    args = arguments(777, nh=24, nkv=4)
    out = run(copied(args))
    for _ in range(10):
        assert same_bits(run(args), out)


@pytest.mark.parametrize("cache", ["bfloat16", "float8_e4m3fn"])
def test_graph_replay_equals_eager_and_nothing_else_is_written(cache) -> None:
    args = arguments(300, cache=cache, position=100)
    expected = run(copied(args))
    size = attention_prefill_workspace_bytes(300, 6)
    workspace = torch.full((size + 4096,), 255, dtype=torch.uint8, device="cuda")
    wide = torch.full((302, expected.shape[1] + 8), 7.0, device="cuda", dtype=torch.bfloat16)
    out = wide[1:-1, :-8]
    attention_prefill(**args, out=out, workspace=workspace[:size])  # compiles for this layout
    wide[:] = 7.0
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention_prefill(**args, out=out, workspace=workspace[:size])
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        graph.replay()
        differing += (out.view(torch.int16) != expected.view(torch.int16)).sum()
    assert differing.item() == 0
    assert (workspace[size:] == 255).all()
    wide[1:-1, :-8] = 7.0
    assert (wide == 7.0).all()
