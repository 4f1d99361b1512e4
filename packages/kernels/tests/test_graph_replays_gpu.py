"""Every op gives the same bits in ten thousand runs out of a graph. Small shapes off the grid."""

from collections.abc import Callable
from pathlib import Path

import bytebound_kernels as bk
import pytest
from bytebound_kernels import GdnState, PackedW4, ops

torch = pytest.importorskip("torch")

from .gdn_cases import make, part, some_pending  # noqa: E402
from .graph_runs import Case, assert_runs_repeat  # noqa: E402
from .stream_cases import Sizes, decoder  # noqa: E402

BF16, F32, I32 = torch.bfloat16, torch.float32, torch.int32
PREFILL_OPS = {"attention_prefill", "gdn_prefill"}
CASES: dict[str, Callable[[], Case]] = {}  # by op, and by op and variant


def case(name: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    def keep(function: Callable[[], Case]) -> Callable[[], Case]:
        CASES[name] = function
        return function

    return keep


def random(*shape, seed=0, dtype=F32, scale=1.0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return (torch.randn(shape, generator=generator, device="cuda") * scale).to(dtype)


def empty(*shape, dtype=F32):
    return torch.empty(shape, dtype=dtype, device="cuda")


def ints(*values):
    return torch.tensor(values, dtype=I32, device="cuda")


def bytes_of(count, value):
    return torch.full((count,), value, dtype=torch.uint8, device="cuda")


@case("rms_norm")
def rms_norm_case():
    x, weight, out = random(3, 5120), random(5120, seed=1), empty(3, 5120, dtype=BF16)
    return Case(lambda: bk.rms_norm(x, weight, out=out), {"out": out})


def rms_norm_project_case(rows):
    x, weight = random(rows, 5120), random(5120, seed=1, scale=0.3)
    projection = random(97, 5120, seed=2, dtype=BF16, scale=0.02)
    out, projected = empty(rows, 5120, dtype=BF16), empty(rows, 97, dtype=BF16)
    return Case(
        lambda: bk.rms_norm_project(x, weight, projection, out=out, projected=projected),
        {"out": out, "projected": projected},
    )


@case("rms_norm_project")
def rms_norm_project_of_one_row():
    return rms_norm_project_case(1)


@case("rms_norm_project-rows8")
def rms_norm_project_of_eight_rows():
    return rms_norm_project_case(8)


@case("argmax")
def argmax_case():
    logits, out = random(5, 4099), empty(5, dtype=I32)
    workspace = bytes_of(bk.argmax_workspace_bytes(5), 0)
    return Case(
        lambda: bk.argmax(logits, out=out, workspace=workspace),
        {"out": out},
        kept={"workspace": workspace},
    )


def attention_case(cache, rows=5, position=130, positions=200, num_heads=6, num_kv_heads=2):
    q_gate = random(rows, num_heads * 512, dtype=BF16)
    k, v = (random(rows, num_kv_heads * 256, seed=i, dtype=BF16) for i in (1, 2))
    norms = [random(256, seed=i, dtype=BF16, scale=0.2) for i in (3, 4)]
    inv_freq = 1e7 ** -(torch.arange(0, 64, 2, device="cuda") / 64)
    state = {
        f"{name}_cache": random(num_kv_heads, positions, 256, seed=i).to(cache)
        for i, name in ((5, "k"), (6, "v"))
    }
    if cache == torch.float8_e4m3fn:
        for name in ("k_scale", "v_scale"):
            state[name] = random(num_kv_heads, positions, seed=7).abs() + 0.1
    out = empty(rows, num_heads * 256, dtype=BF16)
    return (q_gate, k, v, *norms, inv_freq), position, state, out


def attention_decode_case(cache):
    """One pass right after the other, at positions far apart."""
    inputs, _, state, out = attention_case(cache)
    positions = [ints(position) for position in (130, 0, 61, 195)]
    outs = torch.stack([out] * len(positions))
    workspace = bytes_of(bk.attention_decode_workspace_bytes(5, 6, 200), 0xFF)

    def call():
        for position, result in zip(positions, outs, strict=True):
            bk.attention_decode(*inputs, position, **state, out=result, workspace=workspace)

    return Case(call, {"outs": outs}, state)


@case("attention_decode")
def attention_decode_in_16_bits():
    return attention_decode_case(BF16)


@case("attention_decode-float8")
def attention_decode_in_float8():
    return attention_decode_case(torch.float8_e4m3fn)


def attention_prefill_case(cache):
    pytest.importorskip("triton")
    from bytebound_kernels.prefill import attention_prefill, attention_prefill_workspace_bytes

    inputs, position, state, out = attention_case(cache, rows=70, position=61)
    workspace = bytes_of(attention_prefill_workspace_bytes(70, 6), 0xFF)
    return Case(
        lambda: attention_prefill(*inputs, position, **state, out=out, workspace=workspace),
        {"out": out},
        state,
    )


@case("attention_prefill")
def attention_prefill_in_16_bits():
    return attention_prefill_case(BF16)


@case("attention_prefill-float8")
def attention_prefill_in_float8():
    return attention_prefill_case(torch.float8_e4m3fn)


@case("gdn_prefill")
def gdn_prefill_case():
    pytest.importorskip("triton")
    from bytebound_kernels.prefill import gdn_prefill, gdn_prefill_workspace_bytes

    rows, z, weights, state = make(2, 6, 130, BF16, device="cuda")
    out = torch.empty_like(z)
    workspace = bytes_of(gdn_prefill_workspace_bytes(130, key_heads=2, value_heads=6), 0xFF)
    inputs = (rows.qkv, z, rows.a, rows.b, *weights, *state)
    return Case(
        lambda: gdn_prefill(*inputs, out=out, workspace=workspace), {"out": out}, state._asdict()
    )


@case("gdn_step")
def gdn_step_that_replays():
    """One pass right after the other, of which more or fewer rows were accepted."""
    rows, z, weights, state = make(2, 6, 8, BF16, device="cuda")
    rows, z = part(rows, 0, 5), z[:5].contiguous()
    pending = some_pending(2, 6, 5, BF16, device="cuda")
    accepted = [ints(count) for count in (2, 0, 3, 1)]
    outs = torch.stack([z] * len(accepted))

    def call():
        for count, out in zip(accepted, outs, strict=True):
            bk.gdn_step(
                rows,
                z,
                weights,
                GdnState(*state),
                commit=False,
                pending=pending,
                num_accepted=count,
                out=out,
            )

    return Case(call, {"outs": outs}, {**state._asdict(), **pending._asdict()})


@case("gdn_step-commit")
def gdn_step_that_commits():
    rows, z, weights, state = make(2, 6, 5, BF16, device="cuda")
    out = torch.empty_like(z)
    return Case(
        lambda: bk.gdn_step(rows, z, weights, GdnState(*state), commit=True, out=out),
        {"out": out},
        state._asdict(),
    )


@case("gdn_keep")
def gdn_keep_case():
    """One pass right after the other, of which more or fewer rows were accepted."""
    inputs = random(5, 3, 514, dtype=BF16), random(5, 3, 8, seed=1)
    state = {
        "pending_qkv": random(8, 3, 514, seed=2, dtype=BF16),
        "pending_updates": random(8, 3, 8, seed=3),
        "windows": random(3, 514, 3, seed=4, dtype=BF16),
    }
    accepted = [ints(count) for count in (2, 0, 8, 1)]

    def call():
        for count in accepted:
            bk.gdn_keep(*inputs, **state, num_accepted=count)

    return Case(call, {}, state)


@case("dense_matvec")
def dense_matvec_case():
    x, weight = random(11, 320, dtype=BF16), random(1001, 320, seed=1, dtype=BF16)
    out = empty(11, 1001)
    workspace = bytes_of(bk.matvec_workspace_bytes(), 0xFF)
    return Case(
        lambda: bk.dense_matvec(x, weight, out=out, workspace=workspace),
        {"out": out},
        kept={"workspace": workspace},
    )


def packing(n, k):
    """An asymmetric matrix that is still to be packed, and the call that does it."""
    generator = torch.Generator("cuda").manual_seed(0)

    def words(*shape):
        low, high = -(2**31), 2**31 - 1
        return torch.randint(low, high, shape, generator=generator, device="cuda", dtype=I32)

    # Packing leaves the rows that fill the last item up as they were.
    data = bytes_of(bk.w4_packed_bytes(n, k, asymmetric=True), 0)
    weight = PackedW4(data, n, k, asymmetric=True, scale_dtype="bfloat16")
    stored = (
        words(n, k // 8),
        (random(n, k // 128).abs() * 0.02 + 0.001).to(BF16),
        words(-(-n // 8), k // 128),
    )
    return weight, lambda: bk.w4_pack(*stored, out=weight)


def packed(n, k):
    weight, pack = packing(n, k)
    pack()
    return weight


@case("w4_pack")
def w4_pack_case():
    weight, pack = packing(200, 384)
    return Case(pack, {}, {"data": weight.data})


@case("w4_matvec")
def w4_matvec_case():
    x, weight, out = random(11, 384, dtype=BF16), packed(1001, 384), empty(11, 1001)
    workspace = bytes_of(bk.matvec_workspace_bytes(), 0xFF)
    return Case(
        lambda: bk.w4_matvec(x, weight, out=out, workspace=workspace),
        {"out": out},
        kept={"workspace": workspace},
    )


@case("w4_matmul")
def w4_matmul_case():
    x, weight, out = random(33, 1280, dtype=BF16), packed(200, 1280), empty(33, 200)
    workspace = bytes_of(bk.w4_matmul_workspace_bytes(), 0xFF)
    return Case(
        lambda: bk.w4_matmul(x, weight, out=out, workspace=workspace),
        {"out": out},
    )


@case("w4_unpack")
def w4_unpack_case():
    weight, out = packed(77, 384), empty(77, 384, dtype=BF16)
    return Case(lambda: bk.w4_unpack(weight, out=out), {"out": out})


@case("weight_stream")
def weight_stream_case():
    """Results are poisoned by the call: what is handed over has bits of its own to wait for."""
    layers = decoder("cuda", Sizes(d=256, h=1, hv=3, f=384), num_layers=2, head=77)
    size = bk.weight_stream_table_bytes(len(layers.ops))
    table = torch.empty(size, dtype=torch.uint8, device="cuda")
    program = bk.StreamProgram(layers.ops, table=table)
    workspace = bytes_of(bk.weight_stream_workspace_bytes(), 0xFF)

    def call():
        layers.poison()
        program.run(rows=5, workspace=workspace)

    results = {f"result {i}": wide for i, wide in enumerate(layers.wide)}
    state = {f"state {i}": delta.state.recurrent for i, delta in enumerate(layers.deltas)}
    return Case(call, results, state, {"workspace": workspace})


@case("embedding_gather")
def embedding_gather_case():
    table, ids, out = random(100, 1028, dtype=BF16), ints(3, 99, 0, -1, 100), empty(5, 1028)
    return Case(lambda: bk.embedding_gather(ids, table, out=out), {"out": out})


@case("history_append")
def history_append_case():
    ids, num_ids = ints(2, 2, 50, -1, 4999, 5000, 2, 7), ints(7)
    state = {"seen": bytes_of(5000, 0), "counts": torch.zeros(5000, dtype=I32, device="cuda")}
    return Case(lambda: bk.history_append(ids, num_ids, **state), {}, state)


@case("logit_adjust")
def logit_adjust_case():
    n = 4099
    logits, out = random(3, n), empty(3, n)
    settings = torch.tensor([1.1, 0.2, 0.3, 4.0], dtype=torch.float64, device="cuda")
    lists = {
        "seen": (random(n, seed=1) > 0).to(torch.uint8),
        "counts": (random(n, seed=1) > 1).to(I32) * 3,
        "generated": ints(2),
        "drafts": ints(5, 7),
        "bias_ids": ints(9, 4000),
        "bias_values": random(2),
        "banned_ids": ints(11, 12),
        "end_ids": ints(n - 1),
    }
    return Case(lambda: bk.logit_adjust(logits, settings, out=out, **lists), {"out": out})


@case("logprobs")
def logprobs_case():
    n, top = 4099, 5
    logits, ids = random(3, n), ints(0, n - 1, 7)
    values, out_ids = empty(3, 1 + top, dtype=torch.float64), empty(3, 1 + top, dtype=I32)
    workspace = bytes_of(bk.logprobs_workspace_bytes(3, n, top), 0)
    return Case(
        lambda: bk.logprobs(logits, ids, out_values=values, out_ids=out_ids, workspace=workspace),
        {"out_values": values, "out_ids": out_ids},
    )


def sample_case(values):
    n = 4099
    logits, settings = random(3, n), torch.tensor(values, dtype=torch.float64, device="cuda")
    seed, position = torch.tensor([7], device="cuda"), ints(3)
    results = {
        "out": empty(3, dtype=I32),
        "weights": empty(3, n, dtype=torch.float64),
        "totals": empty(3, dtype=torch.float64),
    }
    workspace = bytes_of(bk.sample_workspace_bytes(3, n), 0)
    return Case(
        lambda: bk.sample(
            logits, settings, seed=seed, position=position, workspace=workspace, **results
        ),
        results,
    )


@case("sample")
def sample_from_few_ids():
    return sample_case((0.7, 20, 0.95, 0.01))


@case("sample-top_p")
def sample_from_many_ids():
    return sample_case((2.0, 0, 0.9, 0.0))


@case("speculative_accept")
def speculative_accept_case():
    ids, drafts = ints(4, 5, 6, 7), ints(4, 5, 9)
    state = {"cycle": ints(100, *[0] * (bk.CYCLE_HEADER + 3)), "output": ints(*[0] * 6)}
    return Case(lambda: bk.speculative_accept(ids, drafts, **state), {}, state)


def speculative_sample_case(drawn):
    rows, n = 4, 4099
    weights = random(rows, n).double().exp()
    totals = weights.sum(-1)
    drafts = weights.argmax(-1)[:-1].to(I32)
    seed = torch.tensor([3], device="cuda")
    draft = {}
    if drawn:
        draft_weights = random(rows - 1, n, seed=1).double().exp()
        draft = {"draft_weights": draft_weights, "draft_totals": draft_weights.sum(-1)}
    state = {"cycle": ints(100, *[0] * (bk.CYCLE_HEADER + 3)), "output": ints(*[0] * 6)}
    workspace = bytes_of(bk.speculative_sample_workspace_bytes(n), 0)
    return Case(
        lambda: bk.speculative_sample(
            weights, totals, drafts, seed=seed, workspace=workspace, **state, **draft
        ),
        {},
        state,
    )


@case("speculative_sample")
def speculative_sample_of_sure_drafts():
    return speculative_sample_case(False)


@case("speculative_sample-drawn")
def speculative_sample_of_drawn_drafts():
    return speculative_sample_case(True)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_ten_thousand_runs_of_a_graph_repeat_their_bits(name: str) -> None:
    assert_runs_repeat(CASES[name]())


def test_every_op_is_here() -> None:
    folders = {file.parent.name for file in Path(ops.__file__).parent.glob("*/op.py")}
    assert {name.partition("-")[0] for name in CASES} == folders | {"w4_pack"} | PREFILL_OPS
