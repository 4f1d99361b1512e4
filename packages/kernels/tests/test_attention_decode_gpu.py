"""The kernels against the reference in float64, on a GPU."""

from dataclasses import dataclass
from typing import Any

import pytest
from bytebound_kernels import (
    argmax,
    argmax_workspace_bytes,
    attention_decode,
    attention_decode_workspace_bytes,
)
from bytebound_kernels.ops.attention_decode import attention_decode_reference
from bytebound_kernels.ops.attention_decode.reference import _normed, _turned

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

DH = 256
BIG, TINY = (24, 4), (2, 1)
# Groups of 3, 7 and 8 queries a row; with 8 rows the last two need more than one block a kv head.
SHAPES = [BIG, TINY, (6, 2), (14, 2), (8, 1)]
# Relative RMS error: what float16 and bfloat16 round off in the cache, the weights and the result.
TOLERANCE = {
    ("float16", "float16"): 1e-3,
    ("float16", "float8_e4m3fn"): 1e-3,
    ("float16", "bfloat16"): 4e-3,
    ("bfloat16", "bfloat16"): 4e-3,
    ("bfloat16", "float8_e4m3fn"): 4e-3,
}
# Around every length at which pieces or tiles begin, and around powers of two.
EDGES = [31, 32, 63, 64, 255, 256, 2047, 2048, 2049, 4095, 4096, 8191, 8192, 32767, 32769]

pairs = pytest.mark.parametrize(
    ("dtype", "cache"), list(TOLERANCE), ids=[f"{x}-{c}" for x, c in TOLERANCE]
)
# Positions of a cache: up to 8,448 the leaves are shared out among other blocks.
rooms = pytest.mark.parametrize("room", [700, 8452], ids=["short", "long"])
caches = pytest.mark.parametrize("cache", ["float16", "bfloat16", "float8_e4m3fn"])
shapes = pytest.mark.parametrize("heads", SHAPES, ids=lambda heads: f"NH{heads[0]}-NKV{heads[1]}")


def random(seed, *shape):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32)


def nan(*shape, dtype):
    if dtype == torch.float8_e4m3fn:
        return torch.full(shape, 0x7F, device="cuda", dtype=torch.uint8).view(dtype)
    return torch.full(shape, float("nan"), device="cuda", dtype=dtype)


def bits(tensor):
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()]
    return tensor.contiguous().view(integer)


def same_bits(a, b):
    return torch.equal(bits(a), bits(b))


def inv_freq_of(rotary_dim=64, theta=1e7):
    exponents = torch.arange(0, rotary_dim, 2, device="cuda") / rotary_dim
    return 1.0 / theta**exponents


@dataclass
class State:
    """A cache whose first positions hold random rows, and the rest NaN."""

    k: Any
    v: Any
    k_scale: Any = None
    v_scale: Any = None

    @classmethod
    def filled(cls, cache, kv_heads, positions, length, seed=100):
        dtype = getattr(torch, cache)
        parts, scales = [], []
        for i in range(2):
            part = nan(kv_heads, positions, DH, dtype=dtype)
            scale = nan(kv_heads, positions, dtype=torch.float32) if cache[:6] == "float8" else None
            for head in range(kv_heads if length else 0):
                rows = random(seed + 2 * head + i, length, DH)
                if scale is not None:
                    scale[head, :length] = rows.abs().amax(-1) / 448
                    rows = rows / scale[head, :length, None]
                part[head, :length] = rows.to(dtype)
            parts.append(part)
            scales.append(scale)
        return cls(*parts, *scales)

    def tensors(self):
        return [t for t in (self.k, self.v, self.k_scale, self.v_scale) if t is not None]

    def clone(self):
        return State(*(None if t is None else t.clone() for t in vars(self).values()))

    def values(self, length):
        """The rows up to a length as numbers, keys and values."""
        for name, t, scale in (("k", self.k, self.k_scale), ("v", self.v, self.v_scale)):
            rows = t[:, :length].double()
            yield name, rows if scale is None else rows * scale[:, :length, None].double()

    def same(self, other):
        return all(map(same_bits, self.tensors(), other.tensors()))


class Layer:
    """The constant inputs, and one workspace that is poisoned before each call."""

    def __init__(self, heads, positions, dtype="float16", max_rows=8, norm_dtype=None):
        self.heads, self.kv_heads = heads
        self.dtype = getattr(torch, dtype)
        norm_dtype = self.dtype if norm_dtype is None else norm_dtype
        self.q_norm, self.k_norm = ((random(i, DH) * 0.2).to(norm_dtype) for i in (1, 2))
        self.inv_freq = inv_freq_of()
        self.workspace = torch.empty(
            attention_decode_workspace_bytes(max_rows, self.heads, positions),
            dtype=torch.uint8,
            device="cuda",
        )
        self.position = torch.zeros(1, dtype=torch.int32, device="cuda")

    def rows(self, count, seed=0):
        widths = (self.heads * 2 * DH, self.kv_heads * DH, self.kv_heads * DH)
        return tuple(random(seed + i, count, n).to(self.dtype) for i, n in enumerate(widths))

    def launch(self, rows, state, out, **keywords):
        return attention_decode(
            *rows,
            *(self.q_norm, self.k_norm, self.inv_freq, self.position, state.k, state.v),
            k_scale=state.k_scale,
            v_scale=state.v_scale,
            out=out,
            workspace=self.workspace,
            **keywords,
        )

    def run(self, rows, position, state, **keywords):
        out = nan(rows[0].shape[0], self.heads * DH, dtype=self.dtype)
        self.workspace.fill_(0xFF)
        self.position.fill_(position)
        return self.launch(rows, state, out, **keywords)

    def reference(self, rows, position, state, **keywords):
        return attention_decode_reference(
            *rows,
            *(self.q_norm, self.k_norm, self.inv_freq, position, state.k, state.v),
            k_scale=state.k_scale,
            v_scale=state.v_scale,
            **keywords,
        )


def pick(rows, where):
    return tuple(part[where] for part in rows)


def check(layer, rows, position, state, tolerance, assert_close, **keywords):
    """Compare out and both states; return what the kernels left."""
    expected_state = state.clone()
    expected = layer.reference(rows, position, expected_state, **keywords)
    out = layer.run(rows, position, state, **keywords)
    name = f"out at {position}"
    assert_close(name, expected, out, tolerance)
    end = position + rows[0].shape[0]
    both = zip(expected_state.values(end), state.values(end), strict=True)
    for (part, wanted), (_, got) in both:
        # A float8 key next to the middle of two may go to the other one, which is 6 % off.
        limit = 1e-3 if state.k_scale is None else 1e-2
        assert_close(f"{part} at {position}", wanted[:, position:], got[:, position:], limit)
        assert torch.equal(wanted[:, :position], got[:, :position]), f"{part} changed"
    for wanted, got in zip(expected_state.tensors(), state.tensors(), strict=True):
        assert same_bits(wanted[:, end:], got[:, end:]), f"written beyond {end}"
    return out


@rooms
@pairs
@shapes
def test_matches_the_reference(room, heads, dtype, cache, assert_close) -> None:
    layer = Layer(heads, room, dtype)
    for count, position in (
        (1, 0),
        (8, 0),
        (1, 299),
        (2, 63),
        (3, 510),
        (5, 637),
        (7, 30),
        (8, 692),
    ):
        state = State.filled(cache, heads[1], room, position)
        rows = layer.rows(count, seed=count)
        check(layer, rows, position, state, TOLERANCE[dtype, cache], assert_close)


@caches
def test_every_length_up_to_200(cache, assert_close) -> None:
    layer = Layer(TINY, 256)
    state = State.filled(cache, 1, 256, 0)
    rows = layer.rows(200)
    for position in range(200):
        row = pick(rows, slice(position, position + 1))
        check(layer, row, position, state, TOLERANCE["float16", cache], assert_close)


@caches
@pytest.mark.parametrize("heads", [BIG, TINY], ids=["27B", "tiny"])
def test_around_the_edges_of_pieces(heads, cache, assert_close) -> None:
    layer = Layer(heads, 33000)
    whole = State.filled(cache, heads[1], 33000, 32769)
    for i, position in enumerate(EDGES):
        count = 1 + i % 5
        state = whole.clone()
        for t in state.tensors():
            t[:, position:] = nan(1, dtype=t.dtype)
        rows = layer.rows(count, seed=i)
        check(layer, rows, position, state, TOLERANCE["float16", cache], assert_close)


@pytest.mark.parametrize("cache", ["bfloat16", "float8_e4m3fn"])
def test_the_longest_context(cache, assert_close) -> None:
    positions = 262144
    layer = Layer(BIG, positions, max_rows=5)
    state = State.filled(cache, 4, positions, positions)
    tolerance = TOLERANCE["float16", cache]
    expected_state = state.clone()
    rows = layer.rows(5)
    expected = layer.reference(rows, positions - 5, expected_state)
    out = layer.run(rows, positions - 5, state)
    assert_close("out", expected, out, tolerance)
    for wanted, got in zip(expected_state.tensors(), state.tensors(), strict=True):
        assert_close("rows", wanted[:, -5:], got[:, -5:], 1e-2)
        assert same_bits(wanted[:, :-5], got[:, :-5])
    for r in range(5):
        alone = layer.run(pick(rows, slice(r, r + 1)), positions - 5 + r, state)
        assert same_bits(alone, out[r : r + 1]), f"row {r}"


def test_rotary_is_exact_at_any_position(assert_close) -> None:
    layer = Layer(TINY, 2**20, max_rows=1)
    state = State(*(torch.zeros(1, 2**20, DH, device="cuda", dtype=torch.float16) for _ in "kv"))
    rows = layer.rows(1)
    for position in (0, 1, 1000, 32_767, 262_143, 2**20 - 1):
        layer.run(rows, position, state)
        at = torch.tensor([position], device="cuda")
        normed = _normed(rows[1].double()[:, None], layer.k_norm, 1e-6)
        expected = _turned(normed, layer.inv_freq, at)[0]
        assert_close(f"k at {position}", expected, state.k[:, position], 4e-4)


@rooms
def test_constants_are_used(room, assert_close) -> None:
    layer = Layer((6, 2), room, "bfloat16", norm_dtype=torch.float32)
    rows = layer.rows(3)
    rows[1].mul_(1e-3)  # so that eps matters
    for rotary_dim, eps, scale in (
        (16, 1e-6, 0.05),
        (64, 1e-2, 0.1),
        (128, 0.0, -0.02),
        (256, 1, 0),
    ):
        layer.inv_freq = inv_freq_of(rotary_dim, 1e4)
        state = State.filled("bfloat16", 2, room, 200)
        check(layer, rows, 200, state, 4e-3, assert_close, eps=eps, scale=scale)


@rooms
@caches
def test_as_many_rows_and_rotary_dims_as_there_can_be(room, cache, assert_close) -> None:
    # More than the shared memory in which rows are made has room for; among others it has.
    layer = Layer(BIG, room)
    layer.inv_freq = inv_freq_of(256, 1e4)
    rows = layer.rows(8)
    for position in (0, 60, 61, 690):
        state = State.filled(cache, 4, room, position)
        apart = state.clone()
        out = check(layer, rows, position, state, TOLERANCE["float16", cache], assert_close)
        for r in range(8):
            alone = layer.run(pick(rows, slice(r, r + 1)), position + r, apart)
            assert same_bits(alone, out[r : r + 1]), f"row {r} at {position}"
        assert state.same(apart)


@caches
@shapes
def test_a_row_has_the_same_bits_alone_and_among_others(heads, cache) -> None:
    layer = Layer(heads, 9000)
    whole = State.filled(cache, heads[1], 9000, 8300)
    rows = layer.rows(8)
    for position in (0, 25, 60, 2043, 2044, 8188, 8280):
        together, apart, mixed = whole.clone(), whole.clone(), whole.clone()
        out = layer.run(rows, position, together)
        assert out.isfinite().all()
        for r in range(8):
            alone = layer.run(pick(rows, slice(r, r + 1)), position + r, apart)
            assert same_bits(alone, out[r : r + 1]), f"row {r} at {position}"
        first = layer.run(pick(rows, slice(0, 3)), position, mixed)
        rest = layer.run(pick(rows, slice(3, 8)), position + 3, mixed)
        assert same_bits(torch.cat((first, rest)), out)
        assert together.same(apart) and together.same(mixed)


@caches
@shapes
def test_the_size_of_the_cache_changes_no_bit(heads, cache) -> None:
    # Up to 8,448 positions another number of blocks divides the leaves.
    for count, position in ((1, 0), (5, 1020), (8, 2045), (1, 8300), (5, 8400)):
        found = []
        for positions in (8448, 8452):
            layer = Layer(heads, positions)
            state = State.filled(cache, heads[1], positions, position)
            out = layer.run(layer.rows(count), position, state)
            found.append((out, *(part[:, : position + count] for part in state.tensors())))
        assert all(map(same_bits, *found)), f"{count} rows at {position}"
        assert found[0][0].isfinite().all()


@caches
def test_rejected_rows_leave_no_trace(cache) -> None:
    layer = Layer(BIG, 400)
    for position in (59, 90, 253):
        state = State.filled(cache, 4, 400, position)
        clean = state.clone()
        draft, rows = layer.rows(5, seed=50), layer.rows(7)
        # Two rows of the first five are accepted.
        verified = tuple(torch.cat((a[:2], b[2:5])) for a, b in zip(rows, draft, strict=True))
        first = layer.run(verified, position, state)
        second = layer.run(pick(rows, slice(2, 7)), position + 2, state)
        steps = [layer.run(pick(rows, slice(r, r + 1)), position + r, clean) for r in range(7)]
        assert same_bits(torch.cat((first[:2], second)), torch.cat(steps))
        assert state.same(clean)


@pytest.mark.parametrize("count", [1, 5], ids=lambda n: f"R{n}")
@pytest.mark.parametrize("cache", ["bfloat16", "float8_e4m3fn"])
def test_one_graph_serves_every_position_and_repeats_its_bits(cache, count) -> None:
    layer = Layer(BIG, 9000, "bfloat16")
    state = State.filled(cache, 4, 9000, 8500)
    rows = layer.rows(count)
    out = nan(count, 24 * DH, dtype=torch.bfloat16)
    layer.run(rows, 0, state.clone())  # loads the kernels, which must not happen under capture
    layer.workspace.fill_(0xFF)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer.launch(rows, state, out)
    for position in (8400, 2046, 62, 1, 0, 4095):
        eager_state = state.clone()
        eager = layer.run(rows, position, eager_state)
        graph.replay()
        torch.cuda.synchronize()
        assert same_bits(out, eager) and state.same(eager_state), f"at {position}"

    reference, before = out.clone(), state.clone()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(2500):
        out.fill_(float("nan"))
        graph.replay()
        wrong += (bits(out) != bits(reference)).sum()
    assert wrong.item() == 0 and state.same(before)


def test_back_to_back_calls_on_one_workspace() -> None:
    # Each call may start while the one before it still runs.
    layer = Layer(BIG, 3000)
    states = [State.filled("bfloat16", 4, 3000, 2900, seed=10 * i) for i in range(6)]
    rows = [layer.rows(1 + i, seed=10 * i) for i in range(6)]
    layer.position.fill_(2800)
    apart = [layer.run(r, 2800, s.clone()) for r, s in zip(rows, states, strict=True)]
    outs = [torch.empty_like(out) for out in apart]
    for _ in range(50):
        for out in outs:
            out.fill_(float("nan"))
        for r, s, out in zip(rows, states, outs, strict=True):
            layer.launch(r, s, out)
        assert all(map(same_bits, outs, apart))


@caches
@pytest.mark.parametrize("count", [1, 5], ids=lambda n: f"R{n}")
def test_the_position_may_come_from_the_kernel_right_before(cache, count) -> None:
    # Blocks that start while that kernel runs find an older position there, or none that is valid.
    layer = Layer(BIG, 9000)
    whole = State.filled(cache, 4, 9000, 8500)
    rows = layer.rows(count)
    workspace = torch.zeros(argmax_workspace_bytes(1), dtype=torch.uint8, device="cuda")
    out = nan(count, 24 * DH, dtype=torch.float16)
    for position in (0, 62, 1023, 8400):
        logits = torch.zeros(1, 9000, device="cuda")
        logits[0, position] = 1.0
        expected_state = whole.clone()
        expected = layer.run(rows, position, expected_state)
        for before in (-7, 0, position + 1, 8500, 2**31 - 1):
            for _ in range(20):
                state = whole.clone()
                out.fill_(float("nan"))
                layer.workspace.fill_(0xFF)
                layer.position.fill_(before)
                argmax(logits, out=layer.position, workspace=workspace)
                layer.launch(rows, state, out)
                assert same_bits(out, expected), f"{position}, before {before}"
                assert state.same(expected_state), f"{position}, before {before}"


@rooms
@caches
@pytest.mark.parametrize("part", ["query", "gate", "k", "v"])
def test_what_is_not_finite_stays_in_the_rows_that_see_it(room, cache, part) -> None:
    layer = Layer(BIG, room)
    for position in (30, 61, 254):  # new rows on one, and on both sides of an edge
        for bad in (float("nan"), float("inf")):
            state = State.filled(cache, 4, room, position)
            rows = layer.rows(6)
            clean = layer.run(rows, position, state.clone())
            q_gate, k, v = (tensor.clone() for tensor in rows)
            if part == "query":
                q_gate[3, 7 * 512 + 5] = bad
            elif part == "gate":
                q_gate[3, 7 * 512 + 256 + 5] = float("nan")
            elif part == "k":
                k[3, 256 + 5] = bad
            else:
                v[3, 256 + 5] = bad
            out = layer.run((q_gate, k, v), position, state)
            assert same_bits(out[:3], clean[:3])
            new, old = out.view(6, 24, DH), clean.view(6, 24, DH)
            if part in ("query", "gate"):
                assert new[3, 7, 5].isnan() and same_bits(out[4:], clean[4:])
                assert same_bits(new[3, :7], old[3, :7]) and same_bits(new[3, 8:], old[3, 8:])
            else:
                # kv head 1 serves the query heads 6 to 11.
                assert not new[3:, 6:12, 5].isfinite().any()
                assert same_bits(new[:, :6], old[:, :6]) and same_bits(new[:, 12:], old[:, 12:])


@rooms
@caches
def test_strides_and_alignment_change_no_bit_and_nothing_else_is_written(room, cache) -> None:
    heads, kv_heads = 6, 2
    layer = Layer((heads, kv_heads), room)
    rows = layer.rows(4)
    state = State.filled(cache, kv_heads, room, 250)
    plain = layer.run(rows, 250, state.clone())
    widths = [part.shape[1] for part in rows]
    for offset, gap in ((0, 0), (8, 16), (1, 3), (4, 0)):
        fused = nan(4, offset + sum(widths) + gap, dtype=torch.float16)
        parts = fused[:, offset : offset + sum(widths)].split(widths, dim=1)
        for part, values in zip(parts, rows, strict=True):
            part.copy_(values)
        wide_out = torch.full((4, offset + heads * DH + gap), 7.0, device="cuda").half()
        out = wide_out[:, offset : offset + heads * DH]
        # The cache of one layer out of several, with a guard behind each head.
        wide = State(*(None if t is None else guarded(t) for t in vars(state).values()))
        inner = State(*(None if t is None else t[:, :room] for t in vars(wide).values()))
        before = wide.clone()
        num_bytes = attention_decode_workspace_bytes(4, heads, room)
        workspace = torch.full((num_bytes + 64,), 0xA5, dtype=torch.uint8, device="cuda")
        layer.workspace = workspace[:num_bytes]
        layer.position.fill_(250)
        layer.launch(parts, inner, out)
        assert same_bits(out, plain), f"offset {offset}, gap {gap}"
        assert (workspace[num_bytes:] == 0xA5).all()
        out.fill_(7.0)
        assert (wide_out == 7.0).all(), f"written outside: offset {offset}, gap {gap}"
        for now, then in zip(wide.tensors(), before.tensors(), strict=True):
            assert same_bits(now[:, :250], then[:, :250])
            assert same_bits(now[:, 254:], then[:, 254:])


def guarded(tensor):
    wide = torch.empty(
        (tensor.shape[0], tensor.shape[1] + 16, *tensor.shape[2:]),
        dtype=tensor.dtype,
        device="cuda",
    )
    wide.view(torch.uint8).fill_(0x7F)
    wide[:, : tensor.shape[1]] = tensor
    return wide


def test_a_position_out_of_range_changes_nothing() -> None:
    layer = Layer(BIG, 300)
    state = State.filled("bfloat16", 4, 300, 300)
    before = state.clone()
    for position in (-1, 297, 300, 2**31 - 1, -(2**31)):
        assert layer.run(layer.rows(4), position, state).isnan().all()
        assert state.same(before)
    assert layer.run(layer.rows(4), 296, state).isfinite().all()


def test_runs_on_the_stream_that_is_asked_for() -> None:
    layer = Layer(TINY, 300)
    state = State.filled("float16", 1, 300, 200)
    rows = layer.rows(2)
    plain = layer.run(rows, 200, state.clone())
    stream = torch.cuda.Stream()
    late = tuple(torch.zeros_like(part) for part in rows)
    out = torch.empty_like(plain)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        # The copies wait on this stream: a kernel on another one would read zeros.
        torch.cuda._sleep(10_000_000)
        for part, values in zip(late, rows, strict=True):
            part.copy_(values)
    layer.launch(late, state, out, stream=stream)
    stream.synchronize()
    assert same_bits(out, plain)
