"""The weight stream against its single ops bit for bit, and against its reference, on a GPU."""

import copy

import pytest
from bytebound_kernels import (
    StreamAttention,
    StreamEmbedding,
    StreamGatedDelta,
    StreamGates,
    StreamNorm,
    StreamProduct,
    StreamReplay,
    UnsupportedShapeError,
    attention_decode,
    devices,
    embedding_gather,
    gdn_keep,
    gdn_step,
    matvec_workspace_bytes,
    rms_norm,
    rms_norm_project,
    w4_matvec,
    weight_stream_slots,
    weight_stream_workspace_bytes,
)

torch = pytest.importorskip("torch")

from bytebound_kernels.ops.gdn_step import GdnRows  # noqa: E402
from bytebound_kernels.ops.weight_stream import weight_stream_reference  # noqa: E402

from .gdn_cases import V, copy_of  # noqa: E402
from .stream_cases import Attention, Layers, Sizes, decoder, program_of, run_stream, whole_pass  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        bool(devices()) and devices()[0].capability < (9, 0), reason="needs sm_90 or later"
    ),
]

# One group and many, fewer items than warps and more, odd numbers of groups, value heads in one
# round and in several.
SIZES = [
    Sizes(d=128, h=1, hv=1, f=128),
    Sizes(d=256, h=1, hv=3, f=384),
    Sizes(d=1152, h=2, hv=8, f=640),
    Sizes(d=2560, h=4, hv=16, f=3200),
]
ROWS = [1, 2, 3, 4, 5, 6, 7, 8]

sizes_of = pytest.mark.parametrize("sizes", SIZES, ids=str)
rows_of = pytest.mark.parametrize("rows", ROWS, ids=lambda r: f"R{r}")
schemes = pytest.mark.parametrize("asymmetric", [False, True], ids=["symmetric", "asymmetric"])


@pytest.fixture(scope="module")
def workspace():
    size = weight_stream_workspace_bytes(0)
    scratch = torch.full((size,), 255, dtype=torch.uint8, device="cuda")
    yield scratch
    assert (scratch == 255).all(), "a call left something in the workspace"


def same_bits(a, b):
    integer = torch.int32 if a.dtype == torch.float32 else torch.int16
    return torch.equal(a.contiguous().view(integer), b.contiguous().view(integer))


def by_single_ops(ops, rows) -> None:
    """Run the ops one after the other, each by its own kernel."""
    scratch = torch.full((matvec_workspace_bytes(0),), 255, dtype=torch.uint8, device="cuda")
    norm, normed = None, None
    for op in ops:
        if isinstance(op, StreamNorm):
            norm = op
            normed = torch.empty_like(op.x[:rows], dtype=torch.float16)
            rms_norm(op.x[:rows], op.weight, eps=op.eps, out=normed)
            if op.out is not None:
                op.out[:rows] = normed
        elif isinstance(op, StreamGates):
            rms_norm_project(
                norm.x[:rows],
                norm.weight,
                op.weight,
                out=torch.empty_like(normed),
                projected=op.out[:rows],
                eps=norm.eps,
            )
        elif isinstance(op, StreamProduct):
            w4_matvec(
                normed if op.x is None else op.x[:rows],
                op.weight,
                out=op.out[:rows],
                workspace=scratch,
                residual=None if op.residual is None else op.residual[:rows],
                scale=op.scale,
            )
        elif isinstance(op, StreamGatedDelta):
            # The stream leaves window and pending rows as they are.
            window, pending = op.state.conv_window.clone(), copy_of(op.pending)
            gdn_step(
                GdnRows(*(tensor[:rows] for tensor in op.rows)),
                op.z[:rows],
                op.weights,
                op.state._replace(conv_window=window),
                commit=False,
                pending=pending,
                num_accepted=op.num_accepted,
                eps=op.eps,
                out=op.out[:rows],
                state_settled=True,
            )
            hv = op.state.recurrent.shape[0]
            used = (op.pending.qkv.shape[1] // V - hv) // 2 * V + hv * V + hv
            op.updates[:rows, :used] = pending.updates[:rows, :used]
        elif isinstance(op, StreamEmbedding):
            embedding_gather(op.ids[:rows], op.table, out=op.out[:rows])
        elif isinstance(op, StreamAttention):
            attention_decode(
                *(op.q_gate[:rows], op.k[:rows], op.v[:rows], op.q_norm, op.k_norm, op.inv_freq),
                *(op.position, op.k_cache, op.v_cache),
                out=op.out[:rows],
                workspace=op.workspace,
                k_scale=op.k_scale,
                v_scale=op.v_scale,
                eps=op.eps,
                scale=op.scale,
            )
        torch.cuda.synchronize()


def assert_as_single_ops(layers, rows, workspace) -> None:
    """Run both on twins; whatever lies around the rows keeps its set bits in both."""
    twin = copy.deepcopy(layers)
    for one in (layers, twin):
        one.poison()
    by_single_ops(twin.ops, rows)
    run_stream(layers.ops, rows=rows, workspace=workspace)
    torch.cuda.synchronize()
    for i, (ours, theirs) in enumerate(zip(layers.wide, twin.wide, strict=True)):
        assert same_bits(ours, theirs), f"result {i} of {len(layers.wide)}"
    for ours, theirs in zip(layers.deltas, twin.deltas, strict=True):
        assert same_bits(ours.state.recurrent, theirs.state.recurrent)
        assert same_bits(ours.state.conv_window, theirs.state.conv_window)
    for ours, theirs in zip(layers.attentions, twin.attentions, strict=True):
        for field in ("k_cache", "v_cache", "k_scale", "v_scale"):
            a, b = getattr(ours, field), getattr(theirs, field)
            assert a is None or torch.equal(a.view(torch.uint8), b.view(torch.uint8)), field


@rows_of
@schemes
@sizes_of
def test_layers_have_the_bits_of_the_single_ops(sizes, asymmetric, rows, workspace) -> None:
    layers = decoder("cuda", sizes, num_layers=3, asymmetric=asymmetric)
    assert_as_single_ops(layers, rows, workspace)


@pytest.mark.parametrize("accepted", [-1, 0, 1, 2, 3, 4, 7, 8, 9])
@pytest.mark.parametrize("rows", [1, 5, 8], ids=lambda r: f"R{r}")
def test_any_number_of_accepted_rows(rows, accepted, workspace) -> None:
    layers = decoder("cuda", SIZES[1], num_layers=2, accepted=accepted)
    assert_as_single_ops(layers, rows, workspace)


@pytest.mark.parametrize("seed", range(12))
def test_random_shapes(seed, workspace) -> None:
    draw = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high + 1, (1,), generator=draw))

    h = number(1, 4)
    sizes = Sizes(128 * number(1, 20), h, h * number(1, 4), 128 * number(1, 30))
    layers = decoder(
        "cuda",
        sizes,
        num_layers=number(1, 3),
        accepted=number(0, 8),
        asymmetric=seed % 2 == 1,
        head=number(1, 9000),
        seed=1000 * seed,
    )
    assert_as_single_ops(layers, number(1, 8), workspace)


@pytest.mark.parametrize("sizes", SIZES[:3], ids=str)
@pytest.mark.parametrize("rows", [1, 5], ids=lambda r: f"R{r}")
@schemes
def test_one_layer_matches_the_reference(asymmetric, rows, sizes, workspace, assert_close) -> None:
    """Tolerances as of the single ops, a few of which follow each other here."""
    layers = Layers("cuda", asymmetric=asymmetric)
    layers.gated_delta_layer(layers.random(8, sizes.d), sizes, 3)
    twin = copy.deepcopy(layers)
    for one in (layers, twin):
        one.poison()
    weight_stream_reference(twin.ops, rows=rows)
    run_stream(layers.ops, rows=rows, workspace=workspace)
    for i, (ours, theirs) in enumerate(zip(layers.results, twin.results, strict=True)):
        assert_close(f"result {i}", theirs[:rows], ours[:rows], 3e-3)
    recurrent = [one.deltas[0].state.recurrent for one in (twin, layers)]
    assert_close("state", *recurrent, 1e-5)


@pytest.mark.parametrize("hv", [48, 96, 160], ids=lambda hv: f"HV{hv}")
def test_more_value_heads_than_blocks(hv, workspace) -> None:
    layers = Layers("cuda")
    h = hv // 16
    layers.gated_delta_layer(layers.random(8, 256), Sizes(256, h, hv, 0), 2)
    assert_as_single_ops(layers, 3, workspace)


@pytest.mark.parametrize("d", [128, 1024, 1152, 4096, 5120, 8192], ids=lambda d: f"D{d}")
def test_norms_gates_and_products_of_any_width(d, workspace) -> None:
    rows = 8 if d <= 5120 else 2
    layers = Layers("cuda")
    x = layers.random(8, d)
    layers.norm(x, out=layers.result(d), eps=0.25)
    layers.gates(97, d)
    layers.product(1, d)
    layers.gates(1, d)
    layers.product(2049, d, dtype=torch.float32, scale=0.3)
    layers.product(77, d, interleaved=True)
    assert_as_single_ops(layers, rows, workspace)


def test_products_without_a_norm(workspace) -> None:
    """Rows from before the launch, and results that a product reads right after another one."""
    layers = Layers("cuda")
    x = layers.random(8, 640, dtype=torch.float16)
    first = layers.product(384, 640, x)
    second = layers.product(256, 384, first)
    layers.product(1000, 256, second, layers.random(8, 1000))
    assert_as_single_ops(layers, 6, workspace)


@pytest.mark.parametrize("longest", [2, 3])
@schemes
def test_products_that_leave_blocks_without_items(asymmetric, longest, workspace) -> None:
    """As few teams as w4_matvec has blocks: the last ones only hand on, product after product."""
    most = 2 * devices()[0].num_sms
    groups = 5
    row_blocks = 4 * (8 * most * (longest - 1) // (4 * groups) + 1)
    items = groups * row_blocks
    assert longest == -(-items // (8 * most)) and -(-items // (8 * longest)) <= most - 2
    d, n = 128 * groups, 64 * row_blocks  # n by d has as many items as d by n
    layers = Layers("cuda", asymmetric=asymmetric)
    x = layers.random(8, d)
    layers.norm(x)
    first = layers.product(n, d)
    second = layers.product(d, n, first, x)
    layers.norm(second)
    inner = layers.product(n // 2, d, interleaved=True, scale=2.0**-3)
    layers.product(d, n // 2, inner, second, scale=2.0**3)
    layers.product(n - 3, d, dtype=torch.float32)
    assert_as_single_ops(layers, 5, workspace)


def test_bfloat16_scales(workspace) -> None:
    layers = Layers("cuda")
    layers.norm(layers.random(8, 384))
    layers.product(200, 384)
    op = layers.ops[-1]
    size = op.weight.data.numel() // (4 * 3)  # an item
    items = op.weight.data.view(4 * 3, size).clone()
    scales = items[:, 4096 : 4096 + 128].contiguous().view(torch.float16)
    items[:, 4096 : 4096 + 128] = scales.to(torch.bfloat16).view(torch.uint8)
    weight = type(op.weight)(items.flatten(), 200, 384, scale_dtype="bfloat16")
    layers.ops[-1] = op._replace(weight=weight)
    assert_as_single_ops(layers, 3, workspace)


def test_many_ops(workspace) -> None:
    layers = Layers("cuda")
    x = layers.random(8, 256)
    for _ in range(60):
        x = layers.mlp(x, 384)
    assert_as_single_ops(layers, 4, workspace)


# Nothing cached, borders of leaves, several leaves of both sizes.
POSITIONS = [0, 1, 62, 63, 64, 65, 127, 300]
caches_of = pytest.mark.parametrize("cache", ["float16", "bfloat16", "float8_e4m3fn"])


@rows_of
@caches_of
@pytest.mark.parametrize("position", POSITIONS)
def test_attention_has_the_bits_of_its_own_kernels(position, cache, rows, workspace) -> None:
    layers = Layers("cuda")
    shape = Attention(6, 2, position, cache)
    layers.attention_layer(layers.random(8, 256), shape)
    assert_as_single_ops(layers, rows, workspace)


@caches_of
@pytest.mark.parametrize("heads", [(1, 1), (8, 1), (14, 2), (24, 4), (5, 5)], ids=str)
def test_any_number_of_heads(heads, cache, workspace) -> None:
    layers = Layers("cuda")
    layers.attention_layer(layers.random(8, 256), Attention(*heads, 190, cache, norm=torch.float16))
    assert_as_single_ops(layers, 5, workspace)


@caches_of
def test_attention_of_rows_from_before_the_launch(cache, workspace) -> None:
    """And with rows so long that both teams of a block attend."""
    layers = Layers("cuda")
    layers.norm(layers.random(8, 5120))
    layers.gates(1, 5120)
    rows = [layers.random(8, width * 256, dtype=torch.float16) for width in (12, 2, 2)]
    layers.attend(*rows, Attention(6, 2, 2300, cache, 2400))
    assert_as_single_ops(layers, 8, workspace)


@pytest.mark.parametrize("position", [-1, 313, 1 << 30])
def test_a_position_out_of_range_changes_nothing(position, workspace) -> None:
    layers = Layers("cuda")
    layers.attention_layer(layers.random(8, 256), Attention(6, 2, 100))
    layers.attentions[0].position.fill_(position)
    before = copy.deepcopy(layers)
    layers.poison()
    run_stream(layers.ops, rows=8, workspace=workspace)
    assert layers.attentions[0].out.isnan().all()
    for ours, theirs in zip(layers.attentions[0][7:9], before.attentions[0][7:9], strict=True):
        assert same_bits(ours, theirs)


@pytest.mark.parametrize("rows", [1, 5, 8], ids=lambda r: f"R{r}")
@schemes
def test_a_whole_pass_is_one_launch(asymmetric, rows, workspace) -> None:
    shapes = [Attention(6, 2, 126), Attention(6, 2, 126, "float8_e4m3fn")]
    layers = whole_pass("cuda", SIZES[1], shapes, asymmetric=asymmetric)
    assert_as_single_ops(layers, rows, workspace)


def test_a_whole_pass_matches_the_reference(workspace, assert_close) -> None:
    layers = whole_pass("cuda", SIZES[1], [Attention(4, 2, 70)])
    twin = copy.deepcopy(layers)
    for one in (layers, twin):
        one.poison()
    weight_stream_reference(twin.ops, rows=3)
    run_stream(layers.ops, rows=3, workspace=workspace)
    for i, (ours, theirs) in enumerate(zip(layers.results, twin.results, strict=True)):
        assert_close(f"result {i}", theirs[:3], ours[:3], 1e-2)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_rows_that_are_not_finite_stay_where_they_are(value, workspace) -> None:
    layers = Layers("cuda")
    x = layers.random(8, 640)
    behind = layers.mlp(layers.mlp(x, 384), 384)
    layers.norm(behind, out=layers.result(640))
    layers.gates(7, 640)
    layers.product(1001, 640)
    clean = copy.deepcopy(layers)
    x[1, 5], x[4, 639] = float(value), float(value)
    for one in (clean, layers):
        one.poison()
        run_stream(one.ops, rows=7, workspace=workspace)
    good, bad = [0, 2, 3, 5, 6], [1, 4]
    for ours, theirs in zip(layers.results, clean.results, strict=True):
        assert same_bits(ours[good], theirs[good])
        assert not ours[bad].isfinite().all(dim=1).any()
        assert theirs[good].isfinite().all()


def test_a_nan_of_a_step_takes_its_row_and_what_follows(workspace) -> None:
    layers = decoder("cuda", SIZES[1], num_layers=1)
    clean = copy.deepcopy(layers)
    x = next(op.x for op in layers.ops if isinstance(op, StreamNorm))
    x[2, 3] = float("nan")
    for one in (clean, layers):
        one.poison()
        run_stream(one.ops, rows=5, workspace=workspace)
    for ours, theirs in zip(layers.results, clean.results, strict=True):
        assert same_bits(ours[:2], theirs[:2])
    assert layers.deltas[0].out[2:5].isnan().all()
    assert same_bits(layers.deltas[0].state.recurrent, clean.deltas[0].state.recurrent)


def test_a_row_has_the_same_bits_alone_and_among_others(workspace) -> None:
    layers = decoder("cuda", SIZES[2], num_layers=2)
    twins = [copy.deepcopy(layers) for _ in ROWS]
    for rows, twin in zip(ROWS, twins, strict=True):
        twin.poison()
        run_stream(twin.ops, rows=rows, workspace=workspace)
    for rows, twin in zip(ROWS, twins, strict=True):
        for ours, all_rows in zip(twin.results, twins[-1].results, strict=True):
            assert same_bits(ours[:rows], all_rows[:rows]), f"of {rows} rows"


def test_repeats_its_bits_and_what_it_read_stays(workspace) -> None:
    layers = decoder("cuda", SIZES[3], num_layers=3)
    program = program_of(layers.ops)
    start = [delta.state.recurrent.clone() for delta in layers.deltas]
    first = None
    for _ in range(10):
        layers.poison()
        for delta, recurrent in zip(layers.deltas, start, strict=True):
            delta.state.recurrent.copy_(recurrent)
        program.run(rows=5, workspace=workspace)
        again = [wide.clone() for wide in layers.wide]
        again += [delta.state.recurrent.clone() for delta in layers.deltas]
        first = first or again
        assert all(same_bits(a, b) for a, b in zip(first, again, strict=True))
    assert (workspace == 255).all()


def test_a_chain_of_passes_in_a_graph_equals_gdn_step(workspace) -> None:
    """Layers in two launches, then gdn_keep, with any number of accepted rows at each turn."""
    rows, sizes = 4, SIZES[1]
    layers = decoder("cuda", sizes, num_layers=2)
    middle = 9  # ops of a layer
    programs = [program_of(layers.ops[:middle]), program_of(layers.ops[middle:])]
    x = next(op.x for op in layers.ops if isinstance(op, StreamNorm))

    def turn():
        layers.poison()
        for program in programs:
            program.run(rows=rows, workspace=workspace)
        for delta in layers.deltas:
            gdn_keep(
                delta.rows.qkv[:rows, None],
                delta.updates[:rows, None],
                pending_qkv=delta.pending.qkv[:, None],
                pending_updates=delta.pending.updates[:, None],
                windows=delta.state.conv_window[None],
                num_accepted=delta.num_accepted,
            )

    twin = copy.deepcopy(layers)
    twin_x = next(op.x for op in twin.ops if isinstance(op, StreamNorm))
    reset = copy.deepcopy(layers)

    turn()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        turn()
    for ours, before in zip(layers.deltas, reset.deltas, strict=True):
        for one, other in zip(
            (*ours.state, *ours.pending), (*before.state, *before.pending), strict=True
        ):
            one.copy_(other)

    for step, accepted in enumerate((3, 0, 4, 1, 2, 4)):
        draw = torch.Generator("cuda").manual_seed(step)
        x.copy_(torch.randn(x.shape, generator=draw, device="cuda"))
        twin_x.copy_(x)
        for delta in (*layers.deltas, *twin.deltas):
            delta.num_accepted.fill_(accepted)
        graph.replay()

        twin.poison()
        windows = []
        for delta in twin.deltas:  # the window as gdn_step itself moves it
            inputs = torch.cat((delta.state.conv_window, delta.pending.qkv[:accepted].T), dim=1)
            windows.append(inputs[:, -3:].contiguous())
        by_single_ops(twin.ops, rows)
        for delta, window in zip(twin.deltas, windows, strict=True):
            delta.state.conv_window.copy_(window)
            for kept, new in zip(delta.pending, (delta.rows.qkv, delta.updates), strict=True):
                kept[:rows] = new[:rows]
        for ours, theirs in zip(layers.wide, twin.wide, strict=True):
            assert same_bits(ours, theirs), f"turn {step}"
        for ours, theirs in zip(layers.deltas, twin.deltas, strict=True):
            for a, b in zip(
                (*ours.state, *ours.pending), (*theirs.state, *theirs.pending), strict=True
            ):
                assert same_bits(a, b), f"turn {step}"


def test_a_replay_by_itself(workspace) -> None:
    layers = decoder("cuda", SIZES[2], num_layers=1, accepted=5)
    twin = copy.deepcopy(layers)
    for one in (layers, twin):
        one.poison()
    by_single_ops(twin.ops, 1)
    run_stream([StreamReplay(layers.deltas[0])], rows=1, workspace=workspace)
    assert same_bits(layers.deltas[0].state.recurrent, twin.deltas[0].state.recurrent)
    assert all((wide.view(torch.uint8) == 255).all() for wide in layers.wide)


def test_the_clock_runs_forward(workspace) -> None:
    layers = decoder("cuda", SIZES[1], num_layers=1)
    layers.poison()
    num_sms = devices()[0].num_sms
    clock = torch.zeros(len(layers.ops), 4, num_sms, dtype=torch.int64, device="cuda")
    run_stream(layers.ops, rows=2, workspace=workspace, clock=clock)
    began, ended = clock[:, 0], clock[:, 3]
    assert (began > 0).all() and (ended >= began).all()
    assert (began[1:] >= ended[:-1]).all()


def test_rows_that_do_not_fit_shared_memory(workspace) -> None:
    layers = Layers("cuda")
    layers.norm(layers.random(8, 8192), out=layers.result(8192))
    slots = [weight_stream_slots(rows, 8192, asymmetric=False) for rows in ROWS]
    assert slots == sorted(slots, reverse=True) and slots[0] > 0
    for rows, num_slots in zip(ROWS, slots, strict=True):
        layers.poison()
        if num_slots == 0:
            with pytest.raises(UnsupportedShapeError, match="do not fit the shared memory"):
                run_stream(layers.ops, rows=rows, workspace=workspace)
        else:
            run_stream(layers.ops, rows=rows, workspace=workspace)
            assert layers.results[0][:rows].isfinite().all()


def test_runs_on_the_stream_that_is_asked_for(workspace) -> None:
    layers = decoder("cuda", SIZES[1], num_layers=1)
    twin = copy.deepcopy(layers)
    for one in (layers, twin):
        one.poison()
    run_stream(twin.ops, rows=3, workspace=workspace)
    x = next(op.x for op in layers.ops if isinstance(op, StreamNorm))
    source = x.clone()
    x.zero_()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        # The copy waits on this stream: a kernel on another one would read zeros.
        torch.cuda._sleep(10_000_000)
        x.copy_(source)
    run_stream(layers.ops, rows=3, workspace=workspace, stream=stream)
    stream.synchronize()
    assert all(same_bits(a, b) for a, b in zip(layers.wide, twin.wide, strict=True))
