# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Triton kernels of the chunked Gated DeltaNet. The launches are in gdn.py.

In a chunk of 64 tokens of one value head, with S the state before it, g the log decays, G their
running sum and D[i, j] = exp(G[i] - G[j]) for j <= i, the rule "d[i] = beta[i] (v[i] - what the
state, decayed and corrected up to token i, predicts for k[i])" reads

    d[i] = beta[i] (v[i] - exp(G[i]) k[i] S - sum over j < i of D[i, j] (k[i] . k[j]) d[j])

that is (I + A) d = beta (v - exp(G) k S) with A[i, j] = beta[i] D[i, j] (k[i] . k[j]) below the
diagonal. A does not depend on S, so (I + A)^-1 is computed for all chunks at once, and only

    d = (I + A)^-1 beta (v - exp(G) k S)          S <- exp(G[63]) S + k^T (exp(G[63] - G) d)

is left for the pass from chunk to chunk. Then, again for all chunks at once,

    o = exp(G) q S + (D * q k^T) d

    qkv --heads--> q k v --systems--> G beta (I + A)^-1 --states--> S of every chunk, d --outputs-->

Every exponent is a difference with the later sum first, so it is never positive. The sums reach
-64 * 104, where float32 keeps 4e-4 of an exponent; so they are formed in float64 and stored as a
float32 G_high and the rest G_low, and a difference is (G_high[i] - G_high[j]) + (G_low[i] -
G_low[j]). Where decay is left the first part is exact, or as small as its error is relative. Tokens
past the end have k = v = beta = g = 0 and change nothing.

Precision. Sums are float32. The operands of the tensor cores are float16 for activations of 16
bits: its 11 bits of significand are what keeps the state within 1e-3, which bfloat16 cannot. q and
k have length 1 at most, v and S are as large as the convolved values, which must stay below 65504.
The inverse is computed in three TF32 products per product, about float32. For float32 activations
the operands are float32 and every product is of that kind.
"""

import triton
import triton.language as tl

CHUNK = 64  # tokens of one triangular system
CONV_TAPS = 4


@triton.jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _softplus(x):
    # log1p(y) = y log(u) / (u - 1) with u = 1 + y rounded: the error of u cancels.
    y = tl.exp(-tl.abs(x))
    u = 1.0 + y
    log1p = tl.where(u == 1.0, y, y * (tl.log(u) / tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.maximum(x, 0.0) + log1p


@triton.jit
def _dot(b_a, b_b):
    """Multiply float32 operands in three TF32 products, float16 ones in one."""
    return tl.dot(b_a, b_b, input_precision="tf32x3")


@triton.jit
def _decay(later, later_low, earlier, earlier_low):
    """Return exp(later - earlier) for running sums of logs, in two parts each, that do not rise."""
    difference = (later - earlier) + (later_low - earlier_low)
    return tl.exp(tl.where(difference > 0.0, 0.0, difference))  # a NaN stays one


@triton.jit
def _earlier_and_later(b_x, n: tl.constexpr, w: tl.constexpr):
    """Split [2 n w] into the first and the second block of width w of each of n pairs, [n, w]."""
    return tl.split(tl.permute(tl.reshape(b_x, (n, 2, w)), (0, 2, 1)))


@triton.jit(do_not_specialize=["T"])
def heads_kernel(
    qkv, conv_weight, conv_window, heads, T, s_qkv, scale,
    H: tl.constexpr, C: tl.constexpr, K: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Convolve, apply SiLU, normalise q and k: one program per BT tokens and head.

    qkv [T, C], conv_weight [C, 4], conv_window [C, 3] -> heads [T, C]: the H heads of q (scaled),
    then those of k, then those of v.
    """
    i_t, i_head = tl.program_id(0), tl.program_id(1)
    o_t = i_t * BT + tl.arange(0, BT)
    o_c = i_head * K + tl.arange(0, K)
    b_x = tl.zeros((BT, K), tl.float32)
    for i_tap in tl.static_range(4):
        o_row = o_t + (i_tap - 3)
        inside = (o_row >= 0) & (o_row < T)
        p_row = qkv + o_row[:, None].to(tl.int64) * s_qkv + o_c[None, :]
        b_tap = tl.load(p_row, mask=inside[:, None], other=0.0).to(tl.float32)
        if i_t == 0:  # the tokens before the first one
            p_window = conv_window + o_c[None, :] * 3 + (o_row[:, None] + 3)
            b_tap += tl.load(p_window, mask=o_row[:, None] < 0, other=0.0).to(tl.float32)
        b_x += b_tap * tl.load(conv_weight + o_c * 4 + i_tap).to(tl.float32)[None, :]
    b_x = _silu(b_x)
    if i_head < 2 * H:
        norm = tl.rsqrt(tl.sum(b_x * b_x, axis=1) + 1e-6)
        if i_head < H:
            norm *= scale
        b_x *= norm[:, None]
    p_heads = heads + o_t[:, None].to(tl.int64) * C + o_c[None, :]
    tl.store(p_heads, b_x.to(heads.dtype.element_ty), mask=o_t[:, None] < T)


@triton.jit(do_not_specialize=["T"])
def window_kernel(qkv, conv_window, T, s_qkv, C: tl.constexpr, BC: tl.constexpr):
    """Replace conv_window [C, 3] by the last 3 of (window, rows of qkv), after heads_kernel."""
    o_c = tl.program_id(0) * BC + tl.arange(0, BC)[:, None]
    o_tap = tl.arange(0, 4)[None, :]
    valid = (o_c < C) & (o_tap < 3)
    o_row = T - 3 + o_tap
    p_row = qkv + o_row.to(tl.int64) * s_qkv + o_c
    b_new = tl.load(p_row, mask=valid & (o_row >= 0), other=0.0).to(tl.float32)
    p_old = conv_window + o_c * 3 + (o_row + 3)
    b_new += tl.load(p_old, mask=valid & (o_row < 0), other=0.0).to(tl.float32)
    tl.debug_barrier()  # all is read before any is overwritten
    tl.store(conv_window + o_c * 3 + o_tap, b_new.to(conv_window.dtype.element_ty), mask=valid)


@triton.jit
def _invert_unit_lower(b_a):
    """Return (I + a)^-1 for strictly lower triangular a [4, 16, 16], by doubling.

    With the diagonal blocks of width w inverted in x, the block below the diagonal of each pair of
    them is -(x a x) there: [[P, 0], [C, Q]]^-1 = [[P^-1, 0], [-Q^-1 C P^-1, Q^-1]].
    """
    o_i, o_j = tl.arange(0, 16)[None, :, None], tl.arange(0, 16)[None, None, :]
    b_x = tl.where(o_i == o_j, 1.0, 0.0) - tl.where(o_i // 2 == o_j // 2, b_a, 0.0)
    for log_width in tl.static_range(1, 4):
        pair = (o_i >> (log_width + 1)) == (o_j >> (log_width + 1))
        b_off = tl.where(pair & ((o_i >> log_width) != (o_j >> log_width)), b_a, 0.0)
        b_x -= _dot(b_x, _dot(b_off, b_x))
    return b_x


@triton.jit
def _couple(b_k, b_k_earlier, b_g, b_low, b_g_earlier, b_low_earlier, b_beta):
    """Return blocks [n, w, w] of A: beta[i] exp(G[i] - G[j]) (k[i] . k[j]), not yet masked."""
    b_dot = _dot(b_k, tl.permute(b_k_earlier, (0, 2, 1)))
    b_decay = _decay(
        b_g[:, :, None], b_low[:, :, None], b_g_earlier[:, None, :], b_low_earlier[:, None, :]
    )
    return b_dot * b_decay * b_beta[:, :, None]


@triton.jit
def _load_keys(keys, o_t, T, C: tl.constexpr, K: tl.constexpr):
    p_k = keys + o_t[:, :, None].to(tl.int64) * C + tl.arange(0, K)[None, None, :]
    return tl.load(p_k, mask=o_t[:, :, None] < T, other=0.0)


@triton.jit(do_not_specialize=["T"])
def systems_kernel(
    heads, a, b, a_log, dt_bias, log_decay, beta, inverse, T, s_a, s_b,
    H: tl.constexpr, HV: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Compute the gates and (I + A)^-1: one program per chunk and value head.

    heads [T, C], a and b [T, HV] -> log_decay [chunks, HV, 2, 64] (G_high, G_low), beta
    [chunks, HV, 64] and inverse [chunks, HV, 64, 64]. The four diagonal blocks of width 16 are
    inverted together, then joined to two of width 32 and to one of 64, each time with the block of
    A between a pair:

        X0                                      X0
        .  X1                 X01               Y  X1
        .  .  X2      ->      .    X23    ->    .  .  X2
        .  .  .  X3                             Z  Z  Y  X3      Y = -X1 A10 X0, Z = -X23 A X01
    """
    i_head, i_t = tl.program_id(0), tl.program_id(1)
    t0 = i_t * 64
    keys = heads + (H + i_head // (HV // H)) * K
    i_system = i_t.to(tl.int64) * HV + i_head

    o_i = tl.arange(0, 64)
    o_t = t0 + o_i
    valid = o_t < T
    b_a = tl.load(a + o_t.to(tl.int64) * s_a + i_head, mask=valid, other=0.0).to(tl.float32)
    b_b = tl.load(b + o_t.to(tl.int64) * s_b + i_head, mask=valid, other=0.0).to(tl.float32)
    bias = tl.load(dt_bias + i_head).to(tl.float32)
    b_g = -tl.exp(tl.load(a_log + i_head).to(tl.float32)) * _softplus(b_a + bias)
    # Below -104 the decay is 0 in float32; larger sums would only cost the others their digits.
    b_g = tl.where(b_g < -104.0, -104.0, b_g)  # a NaN stays one
    b_sum = tl.cumsum(tl.where(valid, b_g, 0.0).to(tl.float64), 0)
    b_g = b_sum.to(tl.float32)
    b_low = (b_sum - b_g.to(tl.float64)).to(tl.float32)
    b_beta = tl.where(valid, 1.0 / (1.0 + tl.exp(-b_b)), 0.0)
    tl.store(log_decay + i_system * 128 + o_i, b_g)
    tl.store(log_decay + i_system * 128 + 64 + o_i, b_low)
    tl.store(beta + i_system * 64 + o_i, b_beta)

    o_16, o_32 = tl.arange(0, 16), tl.arange(0, 32)
    lower = o_16[None, :, None] > o_16[None, None, :]
    b_k = _load_keys(keys, t0 + tl.arange(0, 4)[:, None] * 16 + o_16[None, :], T, C, K)
    g16, low16 = tl.reshape(b_g, (4, 16)), tl.reshape(b_low, (4, 16))
    b_x = _couple(b_k, b_k, g16, low16, g16, low16, tl.reshape(b_beta, (4, 16)))
    b_x = _invert_unit_lower(tl.where(lower, b_x, 0.0))

    # Of every pair of blocks the earlier one and the later one.
    g_earlier, g_later = _earlier_and_later(b_g, 2, 16)
    low_earlier, low_later = _earlier_and_later(b_low, 2, 16)
    _, beta_later = _earlier_and_later(b_beta, 2, 16)
    x_earlier, x_later = tl.split(tl.permute(tl.reshape(b_x, (2, 2, 16, 16)), (0, 2, 3, 1)))
    o_pair = t0 + tl.arange(0, 2)[:, None] * 32 + o_16[None, :]
    k_earlier = _load_keys(keys, o_pair, T, C, K)
    k_later = _load_keys(keys, o_pair + 16, T, C, K)
    b_y = _couple(k_later, k_earlier, g_later, low_later, g_earlier, low_earlier, beta_later)
    b_y = -_dot(x_later, _dot(b_y, x_earlier))
    top = tl.join(x_earlier, tl.zeros((2, 16, 16), tl.float32))
    b_x = tl.join(top, tl.join(b_y, x_later))  # [pair, i, j, column, row] of blocks
    b_x = tl.reshape(tl.permute(b_x, (0, 4, 1, 3, 2)), (2, 32, 32))

    g_earlier, g_later = _earlier_and_later(b_g, 1, 32)
    low_earlier, low_later = _earlier_and_later(b_low, 1, 32)
    _, beta_later = _earlier_and_later(b_beta, 1, 32)
    x_earlier, x_later = tl.split(tl.permute(tl.reshape(b_x, (1, 2, 32, 32)), (0, 2, 3, 1)))
    k_earlier = _load_keys(keys, t0 + o_32[None, :], T, C, K)
    k_later = _load_keys(keys, t0 + 32 + o_32[None, :], T, C, K)
    b_y = _couple(k_later, k_earlier, g_later, low_later, g_earlier, low_earlier, beta_later)
    b_y = -_dot(x_later, _dot(b_y, x_earlier))

    dtype = inverse.dtype.element_ty
    p_x = inverse + i_system * 4096 + o_32[None, :, None] * 64 + o_32[None, None, :]
    tl.store(p_x, x_earlier.to(dtype))
    tl.store(p_x + 32, tl.zeros((1, 32, 32), dtype))
    tl.store(p_x + 32 * 64, b_y.to(dtype))
    tl.store(p_x + 32 * 64 + 32, x_later.to(dtype))


@triton.jit(do_not_specialize=["T"])
def states_kernel(
    heads, log_decay, beta, inverse, state, states, T,
    H: tl.constexpr, HV: tl.constexpr, C: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BV: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Carry the state from chunk to chunk: one program per BV columns of V and value head.

    Writes the state before every chunk to states [chunks, HV, K, V], overwrites v in heads by d
    (each program reads and writes its own columns), and advances state [HV, K, V].
    """
    i_v, i_head = tl.program_id(0), tl.program_id(1)
    o_i, o_k = tl.arange(0, 64), tl.arange(0, K)
    o_v = i_v * BV + tl.arange(0, BV)
    dtype = heads.dtype.element_ty
    p_keys = heads + (H + i_head // (HV // H)) * K + o_k[None, :]
    p_values = heads + 2 * H * K + i_head * V + o_v[None, :]
    o_state = o_k[:, None] * V + o_v[None, :]

    p_state = state + i_head * K * V + o_state
    b_s = tl.load(p_state)
    for i_t in tl.range(0, tl.cdiv(T, 64), num_stages=STAGES):
        i_system = i_t * HV + i_head.to(tl.int64)
        o_t = i_t * 64 + o_i
        o_row = o_t[:, None].to(tl.int64) * C
        valid = o_t[:, None] < T
        b_k = tl.load(p_keys + o_row, mask=valid, other=0.0)
        b_v = tl.load(p_values + o_row, mask=valid, other=0.0).to(tl.float32)
        b_g = tl.load(log_decay + i_system * 128 + o_i)
        b_low = tl.load(log_decay + i_system * 128 + 64 + o_i)
        b_beta = tl.load(beta + i_system * 64 + o_i)
        b_inverse = tl.load(inverse + i_system * 4096 + o_i[:, None] * 64 + o_i[None, :])
        total = tl.load(log_decay + i_system * 128 + 63)
        total_low = tl.load(log_decay + i_system * 128 + 127)

        b_s_operand = b_s.to(dtype)
        tl.store(states + i_system * K * V + o_state, b_s_operand)
        b_predicted = _dot(b_k, b_s_operand)
        b_d = b_beta[:, None] * (b_v - tl.exp(b_g)[:, None] * b_predicted)
        b_d = _dot(b_inverse, b_d.to(dtype))
        tl.store(p_values + o_row, b_d.to(dtype), mask=valid)
        b_d = _decay(total, total_low, b_g, b_low)[:, None] * b_d
        b_s = b_s * tl.exp(total) + _dot(tl.trans(b_k), b_d.to(dtype))
    tl.store(p_state, b_s)


@triton.jit(do_not_specialize=["T"])
def outputs_kernel(
    heads, log_decay, states, z, norm_weight, out, T, s_z, s_out, eps,
    H: tl.constexpr, HV: tl.constexpr, C: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """Read the state with q, add the chunk's own part, normalise and gate.

    One program per chunk and value head; the value heads of a key head are neighbours, so they
    find its q and k in the cache. heads holds d where v was. out [T, HV * V].
    """
    i_head, i_t = tl.program_id(0), tl.program_id(1)
    o_i, o_v = tl.arange(0, 64), tl.arange(0, V)
    i_key = i_head // (HV // H)
    i_system = i_t.to(tl.int64) * HV + i_head
    o_t = i_t * 64 + o_i
    valid = o_t[:, None] < T
    p_row = heads + o_t[:, None].to(tl.int64) * C
    p_states = states + i_system * K * V + o_v[None, :]
    b_o = tl.zeros((64, V), tl.float32)
    b_pair = tl.zeros((64, 64), tl.float32)
    for i_k in tl.range(0, K, BK):
        o_k = i_k + tl.arange(0, BK)
        b_q = tl.load(p_row + i_key * K + o_k[None, :], mask=valid, other=0.0)
        b_k = tl.load(p_row + (H + i_key) * K + o_k[None, :], mask=valid, other=0.0)
        b_s = tl.load(p_states + o_k[:, None] * V)
        b_o += _dot(b_q, b_s)
        b_pair += _dot(b_q, tl.trans(b_k))
    b_g = tl.load(log_decay + i_system * 128 + o_i)
    b_low = tl.load(log_decay + i_system * 128 + 64 + o_i)
    b_o *= tl.exp(b_g)[:, None]
    b_pair *= _decay(b_g[:, None], b_low[:, None], b_g[None, :], b_low[None, :])
    b_pair = tl.where(o_i[:, None] >= o_i[None, :], b_pair, 0.0)
    b_d = tl.load(p_row + 2 * H * K + i_head * V + o_v[None, :], mask=valid, other=0.0)
    b_o += _dot(b_pair.to(b_d.dtype), b_d)

    b_o *= tl.rsqrt(tl.sum(b_o * b_o, axis=1) / V + eps)[:, None]
    b_o *= tl.load(norm_weight + o_v).to(tl.float32)[None, :]
    o_z = i_head * V + o_v[None, :]
    b_z = tl.load(z + o_t[:, None].to(tl.int64) * s_z + o_z, mask=valid, other=0.0)
    b_o *= _silu(b_z.to(tl.float32))
    p_out = out + o_t[:, None].to(tl.int64) * s_out + o_z
    tl.store(p_out, b_o.to(out.dtype.element_ty), mask=valid)
