# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Triton kernels of gated attention over many new rows. The launches are in attention.py.

    q_gate k v --append--> q (normalised, turned), cache extended --attend--> out, gated

The cache is float16, bfloat16, or bytes of float8 e4m3 with a float32 scale max |x| / 448 for each
head and position; a vector that is not finite is stored as zeros with a NaN scale. Bytes are
packed and unpacked with integer arithmetic, so no conversion instruction of the newest cards is
needed: a byte s eeee mmm moved to the bits s 0eeee mmm0000000 is the float16 of 2^-8 times its
value, exactly, subnormals included. The 2^8 goes into the scale.

Precision: norms, rotation, scores and sums are float32. The operands of the tensor cores, q and the
softmax weights among them, have the dtype of the cache, or float16 with a float8 cache.
"""

import triton
import triton.language as tl


@triton.jit
def _pack_float8(b_x):
    """Round float32 of magnitude up to 448 to e4m3, to nearest even; return bytes."""
    size = tl.abs(b_x)
    # The least of the binary exponents that e4m3 has is -6; three more bits follow the first.
    exponent = tl.maximum(size.to(tl.int32, bitcast=True) >> 23, 127 - 6)
    # Adding 1.5 * 2^23 units of the last place rounds to that place.
    magic = (((exponent + 20) << 23) | 0x400000).to(tl.float32, bitcast=True)
    size = (size + magic) - magic
    bits = (size * 0.00390625).to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) >> 7
    return tl.where(b_x < 0, bits | 0x80, bits).to(tl.uint8)


@triton.jit
def _unpack_float8(b_bytes):
    """Return 2^-8 times the value of e4m3 bytes, as float16."""
    bits = b_bytes.to(tl.int16)
    return (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)


@triton.jit
def _store_cached(cache, scales, o_slot, b_x, mask, DH: tl.constexpr, FLOAT8: tl.constexpr):
    """Store rows b_x [BT, DH] at the slots o_slot (int64, in positions) of a cache."""
    p_cache = cache + o_slot[:, None] * DH + tl.arange(0, DH)[None, :]
    if FLOAT8:
        finite = tl.sum(tl.where(tl.abs(b_x) < float("inf"), 0, 1), axis=1) == 0
        b_x = tl.where(finite[:, None], b_x, 0.0)
        b_scale = tl.math.div_rn(tl.max(tl.abs(b_x), axis=1), 448.0)
        divisor = tl.where(b_scale > 0.0, b_scale, 1.0)
        b_x = tl.math.div_rn(b_x, tl.broadcast_to(divisor[:, None], b_x.shape))
        tl.store(p_cache, _pack_float8(b_x), mask=mask[:, None])
        tl.store(scales + o_slot, tl.where(finite, b_scale, float("nan")), mask=mask)
    else:
        tl.store(p_cache, b_x.to(cache.dtype.element_ty), mask=mask[:, None])


@triton.jit
def _norm_and_turn(x, o_row, mask, weight, inv_freq, o_t, eps, DH: tl.constexpr, N: tl.constexpr):
    """Normalise rows [BT, DH] at x + o_row; turn dims i and i + N, i < N, by o_t inv_freq[i]."""
    o_d = tl.arange(0, DH)
    # The other dim of a pair; the rest stand for themselves.
    o_other = tl.where(o_d < N, o_d + N, tl.where(o_d < 2 * N, o_d - N, o_d))
    p_x = x + o_row[:, None]
    b_x = tl.load(p_x + o_d[None, :], mask=mask[:, None], other=0.0).to(tl.float32)
    b_other = tl.load(p_x + o_other[None, :], mask=mask[:, None], other=0.0).to(tl.float32)
    norm = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / DH + eps)[:, None]
    b_x *= norm * (1.0 + tl.load(weight + o_d).to(tl.float32))[None, :]
    b_other *= norm * (1.0 + tl.load(weight + o_other).to(tl.float32))[None, :]
    turns = o_d < 2 * N
    b_freq = tl.load(inv_freq + o_d % N, mask=turns, other=0.0)
    angle = o_t.to(tl.float32)[:, None] * b_freq[None, :]
    b_sin = tl.where(o_d < N, -1.0, 1.0)[None, :] * tl.sin(angle)
    return tl.where(turns[None, :], b_x * tl.cos(angle) + b_other * b_sin, b_x)


@triton.jit(do_not_specialize=["T", "position", "NH", "NKV", "s_scale"])
def append_kernel(
    q_gate, k, v, q_norm, k_norm, inv_freq, q, k_cache, v_cache, k_scale, v_scale, bad_v,
    T, position, NH, NKV, s_q_gate, s_k, s_v, s_cache, s_scale, eps,
    DH: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, FLOAT8: tl.constexpr,
):  # fmt: skip
    """Prepare q [T, NH, DH] and extend the cache: one program per BT rows and head of q, k or v.

    s_cache and s_scale are the distances between heads, in elements; N pairs of dims turn. bad_v
    [NKV, T] marks the values that are not finite in a 16-bit cache.
    """
    i_t, i_head = tl.program_id(0), tl.program_id(1)
    o_row = i_t * BT + tl.arange(0, BT)
    mask = o_row < T
    o_row = o_row.to(tl.int64)
    o_t = position + o_row
    if i_head < NH:
        b_q = _norm_and_turn(
            q_gate + i_head * 2 * DH, o_row * s_q_gate, mask, q_norm, inv_freq, o_t, eps, DH, N
        )
        p_q = q + (o_row[:, None] * NH + i_head) * DH + tl.arange(0, DH)[None, :]
        tl.store(p_q, b_q.to(q.dtype.element_ty), mask=mask[:, None])
    elif i_head < NH + NKV:
        i_kv = i_head - NH
        b_k = _norm_and_turn(k + i_kv * DH, o_row * s_k, mask, k_norm, inv_freq, o_t, eps, DH, N)
        p_scale = k_scale + i_kv.to(tl.int64) * s_scale
        _store_cached(k_cache + i_kv.to(tl.int64) * s_cache, p_scale, o_t, b_k, mask, DH, FLOAT8)
    else:
        i_kv = i_head - NH - NKV
        p_v = v + o_row[:, None] * s_v + i_kv * DH + tl.arange(0, DH)[None, :]
        b_v = tl.load(p_v, mask=mask[:, None], other=0.0).to(tl.float32)
        p_scale = v_scale + i_kv.to(tl.int64) * s_scale
        _store_cached(v_cache + i_kv.to(tl.int64) * s_cache, p_scale, o_t, b_v, mask, DH, FLOAT8)
        if not FLOAT8:
            size = tl.abs(b_v.to(v_cache.dtype.element_ty).to(tl.float32))
            bad = tl.sum(tl.where(size < float("inf"), 0, 1), axis=1) > 0
            tl.store(bad_v + i_kv * T + o_row, bad.to(tl.uint8), mask=mask)


@triton.jit
def _attend(
    b_acc, b_sum, b_max, b_q, k_cache, v_cache, k_scale, v_scale, bad_v, position, o_t,
    first, end, unit,
    DH: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr, FLOAT8: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Add positions first .. end - 1 to the running softmax of rows at positions o_t.

    A row's weight for a position that it does not see is 0, but 0 * NaN is NaN. So masked tiles
    take a value that is not finite as zeros, and make a NaN of the sum of the rows that see it.
    """
    o_n, o_d = tl.arange(0, BN), tl.arange(0, DH)
    for i_n in tl.range(first, end, BN, num_stages=STAGES):
        o_s = i_n + o_n
        p_tile = o_s[:, None].to(tl.int64) * DH + o_d[None, :]
        if MASKED:
            b_k = tl.load(k_cache + p_tile, mask=o_s[:, None] < end, other=0)
        else:
            b_k = tl.load(k_cache + p_tile)
        if FLOAT8:
            b_k = _unpack_float8(b_k)
        b_s = tl.dot(b_q, tl.trans(b_k)) * unit
        if FLOAT8:
            b_s *= tl.load(k_scale + o_s, mask=o_s < end, other=0.0)[None, :] * 256.0
        if MASKED:
            visible = o_s[None, :] <= o_t[:, None]
            b_s = tl.where(visible, b_s, float("-inf"))
        largest = tl.maximum(b_max, tl.max(b_s, axis=1))
        b_p = tl.exp2(b_s - largest[:, None])
        shrink = tl.exp2(b_max - largest)
        b_sum = b_sum * shrink + tl.sum(b_p, axis=1)
        b_max = largest
        if FLOAT8:
            b_p *= tl.load(v_scale + o_s, mask=o_s < end, other=0.0)[None, :] * 256.0
            if MASKED:  # the scale of a position that is not seen may be NaN
                b_p = tl.where(visible, b_p, 0.0)
        if MASKED:
            mask = o_s < end
            if not FLOAT8:
                p_bad = bad_v + (o_s - position)
                bad = tl.load(p_bad, mask=mask & (o_s >= position), other=0) != 0
                b_sum += tl.sum(tl.where(visible & bad[None, :], float("nan"), 0.0), axis=1)
                mask = mask & (bad == 0)
            b_v = tl.load(v_cache + p_tile, mask=mask[:, None], other=0)
        else:
            b_v = tl.load(v_cache + p_tile)
        if FLOAT8:
            b_v = _unpack_float8(b_v)
        b_acc = b_acc * shrink[:, None] + tl.dot(b_p.to(b_v.dtype), b_v)
    return b_acc, b_sum, b_max


@triton.jit(do_not_specialize=["T", "position", "NH", "NKV", "s_scale"])
def attend_kernel(
    q, q_gate, k_cache, v_cache, k_scale, v_scale, bad_v, out, T, position, NH, NKV,
    s_q_gate, s_cache, s_scale, s_out, unit,
    DH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, FLOAT8: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    r"""Attend and gate: one program per BM rows and query head; the longest rows start first.

          positions 0 ..............  position + i_row
        rows  |  whole tiles of BN  |  masked tiles \ |

    unit is the scale of the scores times log2(e): weights are powers of two.
    """
    i_head = tl.program_id(0)
    i_row = (tl.num_programs(1) - 1 - tl.program_id(1)) * BM
    i_kv = (i_head // (NH // NKV)).to(tl.int64)
    k_cache += i_kv * s_cache
    v_cache += i_kv * s_cache
    k_scale += i_kv * s_scale
    v_scale += i_kv * s_scale
    bad_v += i_kv * T
    o_d = tl.arange(0, DH)
    o_row = i_row + tl.arange(0, BM)
    mask = o_row[:, None] < T
    p_q = q + (o_row[:, None].to(tl.int64) * NH + i_head) * DH + o_d[None, :]
    b_q = tl.load(p_q, mask=mask, other=0.0)

    b_acc = tl.zeros((BM, DH), tl.float32)
    b_sum = tl.zeros((BM,), tl.float32)
    b_max = tl.full((BM,), float("-inf"), tl.float32)
    whole = (position + i_row + 1) // BN * BN  # seen by every row of the tile
    end = position + tl.minimum(i_row + BM, T)
    o_t = position + o_row
    b_acc, b_sum, b_max = _attend(
        b_acc, b_sum, b_max, b_q, k_cache, v_cache, k_scale, v_scale, bad_v, position, o_t,
        0, whole, unit, DH, BN, False, FLOAT8, STAGES,
    )  # fmt: skip
    b_acc, b_sum, b_max = _attend(
        b_acc, b_sum, b_max, b_q, k_cache, v_cache, k_scale, v_scale, bad_v, position, o_t,
        whole, end, unit, DH, BN, True, FLOAT8, STAGES,
    )  # fmt: skip

    o_row = o_row[:, None].to(tl.int64)
    p_gate = q_gate + o_row * s_q_gate + (2 * i_head + 1) * DH + o_d[None, :]
    b_gate = tl.load(p_gate, mask=mask, other=0.0).to(tl.float32)
    b_acc = b_acc / b_sum[:, None] / (1.0 + tl.exp(-b_gate))
    p_out = out + o_row * s_out + i_head * DH + o_d[None, :]
    tl.store(p_out, b_acc.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["T"])
def gate_kernel(x, q_gate, out, T, s_q_gate, s_out, DH: tl.constexpr, BT: tl.constexpr):
    """Multiply x [NH, T, DH] by sigmoid(gate) into out [T, NH * DH]."""
    i_t, i_head = tl.program_id(0), tl.program_id(1)
    o_row = (i_t * BT + tl.arange(0, BT))[:, None]
    o_d = tl.arange(0, DH)[None, :]
    mask = o_row < T
    p_x = x + (i_head.to(tl.int64) * T + o_row) * DH + o_d
    b_x = tl.load(p_x, mask=mask, other=0.0).to(tl.float32)
    o_row = o_row.to(tl.int64)
    p_gate = q_gate + o_row * s_q_gate + (2 * i_head + 1) * DH + o_d
    b_gate = tl.load(p_gate, mask=mask, other=0.0).to(tl.float32)
    p_out = out + o_row * s_out + i_head * DH + o_d
    tl.store(p_out, (b_x / (1.0 + tl.exp(-b_gate))).to(out.dtype.element_ty), mask=mask)
