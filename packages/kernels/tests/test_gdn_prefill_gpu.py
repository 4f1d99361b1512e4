"""The chunked Gated DeltaNet on a GPU: every short length, long ones, states, bits, graphs."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = pytest.mark.gpu

from bytebound_kernels.prefill import gdn_prefill, gdn_prefill_workspace_bytes  # noqa: E402
from bytebound_kernels.prefill.reference import gdn_prefill_reference  # noqa: E402

# Relative RMS errors against float64. The result in 16 bits carries its own rounding.
STATE_TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-3}
OUT_TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 5e-3}
BY_ROW = ("qkv", "z", "a", "b")

dtypes = pytest.mark.parametrize("dtype", list(STATE_TOLERANCE))


def arguments(t, dtype="bfloat16", *, h=2, hv=6, k=128, seed=0):
    """Random arguments of gdn_prefill as a dictionary."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def random(*shape, scale=1.0, dtype=dtype):
        values = torch.randn(shape, generator=generator, device="cuda") * scale
        return values.to(getattr(torch, dtype))

    c = 2 * h * k + hv * k
    return {
        "qkv": random(t, c),
        "z": random(t, hv * k),
        "a": random(t, hv),
        "b": random(t, hv),
        "conv_weight": random(c, 4, scale=0.5),
        "a_log": random(hv, dtype="float32"),
        "dt_bias": random(hv, dtype="float32"),
        "norm_weight": 1 + random(k, scale=0.1),
        "conv_window": random(c, 3, dtype="float32"),
        "state": random(hv, k, k, dtype="float32"),
    }


def rows(args, part):
    """The same arguments for some of the rows; window and state stay the same tensors."""
    return {name: x[part] if name in BY_ROW else x for name, x in args.items()}


def run(args):
    return gdn_prefill(**args, out=torch.full_like(args["z"], float("nan")))


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def check_lengths(lengths, dtype, assert_close):
    """One float64 run over all tokens holds the outputs of all; states come from runs up to t."""
    longest = max(lengths)
    whole = arguments(longest, dtype)
    state, window = whole["state"].clone(), whole["conv_window"].clone()
    expected, states = [], []
    running = dict(whole)
    for t in range(longest):
        out, running["state"], running["conv_window"] = gdn_prefill_reference(
            **rows(running, slice(t, t + 1))
        )
        expected.append(out)
        states.append(running["state"])
    expected = torch.cat(expected)
    history = torch.cat((window.T.double(), whole["qkv"].double()))
    for t in lengths:
        args = rows(whole, slice(0, t)) | {"state": state.clone(), "conv_window": window.clone()}
        wide = torch.full((t + 2, args["z"].shape[1]), float("nan"), device="cuda").to(
            args["z"].dtype
        )
        out = gdn_prefill(**args, out=wide[1:-1]).clone()
        assert_close(f"out T{t}", expected[:t], out, OUT_TOLERANCE[dtype])
        assert_close(f"state T{t}", states[t - 1], args["state"], STATE_TOLERANCE[dtype])
        assert torch.equal(args["conv_window"].double(), history[t : t + 3].T), f"window T{t}"
        assert wide[[0, -1]].isnan().all(), f"written outside at T{t}"


@dtypes
def test_every_length_to_200(dtype, assert_close) -> None:
    check_lengths(range(1, 201), dtype, assert_close)


def test_lengths_around_the_ends_of_later_chunks(assert_close) -> None:
    check_lengths([*range(253, 260), *range(285, 324)], "bfloat16", assert_close)


@pytest.mark.parametrize(
    ("t", "h", "hv"), [(2048, 2, 6), (1999, 16, 48), (1000, 1, 3), (8191, 1, 3)]
)
def test_long(t, h, hv, assert_close) -> None:
    args = arguments(t, h=h, hv=hv)
    expected = gdn_prefill_reference(**args, dtype=torch.float64)
    out = run(args)
    assert_close("out", expected[0], out, OUT_TOLERANCE["bfloat16"])
    assert_close("state", expected[1], args["state"], STATE_TOLERANCE["bfloat16"])


@pytest.mark.parametrize(("k", "dtype"), [(16, "bfloat16"), (32, "float32"), (64, "float16")])
def test_other_widths(k, dtype, assert_close) -> None:
    args = arguments(150, dtype, k=k)
    expected = gdn_prefill_reference(**args)
    out = run(args)
    assert_close("out", expected[0], out, OUT_TOLERANCE[dtype])
    assert_close("state", expected[1], args["state"], STATE_TOLERANCE[dtype])


@dtypes
def test_equal_keys_without_decay_do_not_blow_up(dtype, assert_close) -> None:
    args = arguments(300, dtype)
    args["qkv"][:] = args["qkv"][:1].clone()
    args["b"][:], args["a"][:] = 8.0, -20.0
    expected = gdn_prefill_reference(**args)
    out = run(args)
    assert_close("out", expected[0], out, OUT_TOLERANCE[dtype])
    assert_close("state", expected[1], args["state"], STATE_TOLERANCE[dtype])


def test_decays_that_forget_everything(assert_close) -> None:
    args = arguments(300, "float32")
    args["a"][::7], args["a_log"][:] = 60.0, 2.5
    expected = gdn_prefill_reference(**args)
    out = run(args)
    assert_close("out", expected[0], out, 1e-5)
    assert_close("state", expected[1], args["state"], 1e-5)


@pytest.mark.parametrize("split", [1, 2, 3, 63, 64, 65, 500, 511])
def test_two_passes_equal_one(split, assert_close) -> None:
    whole, parts = arguments(512), arguments(512)
    out = run(whole)
    first, second = run(rows(parts, slice(0, split))), run(rows(parts, slice(split, None)))
    assert_close("out", out, torch.cat((first, second)), 5e-3)
    assert_close("state", whole["state"], parts["state"], 1e-3)
    assert torch.equal(whole["conv_window"], parts["conv_window"])


@pytest.mark.parametrize("step", [64, 100, 512])
def test_a_prompt_in_steps_of_any_length(step, assert_close) -> None:
    whole, parts = arguments(3000), arguments(3000)
    out = run(whole)
    pieces = [run(rows(parts, slice(i, i + step))) for i in range(0, 3000, step)]
    assert_close("out", out, torch.cat(pieces), 5e-3)
    assert_close("last row", out[-1], pieces[-1][-1], 5e-3)
    assert_close("state", whole["state"], parts["state"], 1e-3)
    assert torch.equal(whole["conv_window"], parts["conv_window"])


def test_a_nan_takes_its_head_and_no_other() -> None:
    args = arguments(200)
    clean = run(arguments(200)).view(200, 6, 128)
    state = arguments(200)
    run(state)
    args["qkv"][100, 4 * 128 + 128 + 5] = float("nan")  # of v, value head 1
    out = run(args).view(200, 6, 128)
    others = [0, 2, 3, 4, 5]
    assert same_bits(out[:, others], clean[:, others])
    assert same_bits(args["state"][others], state["state"][others])
    assert same_bits(out[:64, 1], clean[:64, 1])
    assert out[100:, 1].isnan().any(-1).all()


def test_repeats_its_bits() -> None:
    first = arguments(777)
    out = run(first)
    for _ in range(20):
        again = arguments(777)
        assert same_bits(run(again), out)
        assert same_bits(again["state"], first["state"])


def test_graph_replay_equals_eager_and_nothing_else_is_written() -> None:
    eager, args = arguments(500), arguments(500)
    expected = run(eager)
    size = gdn_prefill_workspace_bytes(500, key_heads=2, value_heads=6)
    workspace = torch.full((size + 4096,), 255, dtype=torch.uint8, device="cuda")
    wide = torch.full((502, expected.shape[1] + 8), 7.0, device="cuda", dtype=torch.bfloat16)
    out = wide[1:-1, :-8]
    state, window = args["state"].clone(), args["conv_window"].clone()
    gdn_prefill(**arguments(500), out=out, workspace=workspace[:size])  # compiles for this layout
    wide[:] = 7.0
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gdn_prefill(**args, out=out, workspace=workspace[:size])
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        args["state"].copy_(state)
        args["conv_window"].copy_(window)
        graph.replay()
        differing += (out.view(torch.int16) != expected.view(torch.int16)).sum()
        differing += (args["state"].view(torch.int32) != eager["state"].view(torch.int32)).sum()
    assert differing.item() == 0
    assert (workspace[size:] == 255).all()
    wide[1:-1, :-8] = 7.0
    assert (wide == 7.0).all()
