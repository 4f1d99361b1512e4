"""Attention over many rows through Triton's interpreter, on the CPU, against the decode reference.

Run by test_prefill_interpreted.py in a process of its own.
"""

import pytest
import torch
import triton
import triton.language as tl
from bytebound_kernels.ops.attention_decode.reference import attention_decode_reference
from bytebound_kernels.prefill import attention_prefill, attention_prefill_workspace_bytes
from bytebound_kernels.prefill._attention_kernels import _pack_float8, _unpack_float8
from bytebound_kernels.prefill.attention import _DH

TOLERANCE = {"float16": 1e-3, "bfloat16": 5e-3}
S = 96


def arguments(t, dtype="float16", cache="float16", *, nh=2, nkv=1, position=0, seed=0):
    """Random arguments of attention_prefill as a dictionary; the cache is filled up to position."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape, scale=1.0):
        return (torch.randn(shape, generator=generator) * scale).to(getattr(torch, dtype))

    args = {
        "q_gate": random(t, nh * 2 * _DH),
        "k": random(t, nkv * _DH),
        "v": random(t, nkv * _DH),
        "q_norm": random(_DH, scale=0.3),
        "k_norm": random(_DH, scale=0.3),
        "inv_freq": 1.0 / 1e7 ** (torch.arange(0, 64, 2) / 64),
        "position": position,
    }
    for name in ("k", "v"):
        past = torch.full((nkv, S, _DH), float("nan"))
        past[:, :position] = random(nkv, position, _DH).float()
        args[f"{name}_cache"] = past.to(getattr(torch, cache))
        if cache == "float8_e4m3fn":
            args[f"{name}_scale"] = torch.full((nkv, S), float("nan"))
            args[f"{name}_scale"][:, :position] = 0.5
    return args


def copied(args):
    return {n: x.clone() if torch.is_tensor(x) else x for n, x in args.items()}


def check(args, tolerance, assert_close):
    twin = copied(args)
    expected = attention_decode_reference(**twin)
    size = attention_prefill_workspace_bytes(len(args["k"]), args["q_gate"].shape[1] // 512)
    out = attention_prefill(
        **args,
        out=torch.full_like(expected, float("nan"), dtype=args["k"].dtype),
        workspace=torch.full((size,), 255, dtype=torch.uint8),
    )
    assert_close("out", expected, out, tolerance)
    end = args["position"] + len(args["k"])
    for name in ("k_cache", "v_cache"):
        mine, theirs = args[name].float(), twin[name].float()
        if "k_scale" in args:
            scale = name.replace("cache", "scale")
            assert_close(scale, twin[scale][:, :end], args[scale][:, :end], 1e-6)
            assert args[scale][:, end:].isnan().all()
        # A key lies now and then on the other side of a rounding boundary: it comes from float32.
        limit = 1e-6 if name == "v_cache" else 5e-3 if "k_scale" in args else 1e-3
        assert_close(name, theirs[:, :end], mine[:, :end], limit)
        assert mine[:, end:].isnan().all(), f"{name} is written beyond the rows"


@pytest.mark.parametrize("t", [1, 15, 17], ids=lambda t: f"T{t}")
@pytest.mark.parametrize("position", [0, 15, 40], ids=lambda p: f"p{p}")
def test_lengths_and_positions(t, position, assert_close) -> None:
    check(arguments(t, position=position), 1e-3, assert_close)


@pytest.mark.parametrize("position", [0, 21], ids=lambda p: f"p{p}")
@pytest.mark.parametrize("cache", ["float16", "float8_e4m3fn"])  # no bfloat16 product there
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_dtypes(dtype, cache, position, assert_close) -> None:
    tolerance = max(TOLERANCE[dtype], 5e-3 if cache == "float8_e4m3fn" else 0.0)
    check(arguments(19, dtype, cache, nh=4, nkv=2, position=position), tolerance, assert_close)


def test_two_passes_equal_one(assert_close) -> None:
    whole = arguments(40)
    out = attention_prefill(**copied(whole))
    parts = []
    for part in (slice(0, 17), slice(17, 40)):
        rows = {n: whole[n][part] for n in ("q_gate", "k", "v")}
        parts.append(attention_prefill(**(whole | rows | {"position": part.start})))
    assert_close("out", out, torch.cat(parts), 1e-3)


def test_pytorch_serves_a_fresh_cache(assert_close) -> None:
    args = arguments(33, nh=4, nkv=2)
    expected = attention_decode_reference(**copied(args))
    assert_close("out", expected, attention_prefill(**args, backend="sdpa"), 1e-3)


def test_rows_apart(assert_close) -> None:
    args = arguments(18)
    expected = attention_decode_reference(**copied(args))
    wide = torch.full((18, 2 * 512 + 256 + 256 + 16), float("nan"), dtype=torch.float16)
    pieces = wide.split([1024, 256, 256, 16], dim=1)
    for piece, name in zip(pieces, ("q_gate", "k", "v"), strict=False):
        args[name] = piece.copy_(args[name])
    assert_close("out", expected, attention_prefill(**args), 1e-3)


@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.parametrize("cache", ["float16", "float8_e4m3fn"])
def test_what_is_not_finite_reaches_no_earlier_row_and_no_other_head(cache, name) -> None:
    args = arguments(18, cache=cache, nh=4, nkv=2, position=5)
    clean = attention_prefill(**copied(args)).view(18, 4, _DH)
    args[name][7, 5] = float("inf")  # kv head 0
    out = attention_prefill(**args).view(18, 4, _DH)
    assert torch.equal(out[:, 2:], clean[:, 2:])
    assert torch.equal(out[:7, :2], clean[:7, :2])
    assert not out[7:, :2].isfinite().all(-1).any()
    if cache == "float8_e4m3fn":
        scale = args[f"{name}_scale"]
        assert scale[0, 12].isnan() and scale[1, :23].isfinite().all()


@triton.jit
def round_trip_kernel(x, packed, unpacked, N: tl.constexpr):
    o = tl.arange(0, N)
    bits = _pack_float8(tl.load(x + o))
    tl.store(packed + o, bits)
    tl.store(unpacked + o, _unpack_float8(bits).to(tl.float32) * 256.0)


def test_bytes_are_those_of_pytorch() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    every = every[every.isfinite()].sort().values
    middles = (every[1:] + every[:-1]) / 2
    generator = torch.Generator().manual_seed(0)
    others = torch.randn(4096 - 253 - 3 * 252 - 1, generator=generator).exp()
    x = torch.cat((every, middles, middles * 1.0001, middles * 0.9999, others, -torch.zeros(1)))
    x = x[:4096].clamp(-448, 448)
    packed, unpacked = torch.zeros(4096, dtype=torch.uint8), torch.zeros(4096)
    round_trip_kernel[(1,)](x, packed, unpacked, N=4096)
    expected = x.to(torch.float8_e4m3fn)
    assert torch.equal(unpacked, expected.float())
    nonzero = x != 0
    assert torch.equal(packed[nonzero], expected.view(torch.uint8)[nonzero])
