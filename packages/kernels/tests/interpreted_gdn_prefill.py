"""The chunked Gated DeltaNet through Triton's interpreter, on the CPU, against the step form.

Run by test_prefill_interpreted.py in a process of its own: the switch has to be set before Triton
is imported.
"""

import pytest
import torch
from bytebound_kernels.prefill import gdn_prefill, gdn_prefill_workspace_bytes
from bytebound_kernels.prefill.reference import gdn_prefill_reference

LENGTHS = [1, 2, 3, 16, 17, 63, 64, 65, 129]
STATE_TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-3}
OUT_TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 5e-3}  # rounding included

CASES = [(t, "float32") for t in LENGTHS] + [
    (t, dtype) for t in (17, 65) for dtype in ("float16", "bfloat16")
]
dtypes = pytest.mark.parametrize("dtype", list(STATE_TOLERANCE))


def arguments(t, dtype="float32", *, h=1, hv=2, k=32, seed=0, decay=1.0):
    """Random arguments of gdn_prefill as a dictionary."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape, scale=1.0, dtype=dtype):
        return (torch.randn(shape, generator=generator) * scale).to(getattr(torch, dtype))

    c = 2 * h * k + hv * k
    return {
        "qkv": random(t, c),
        "z": random(t, hv * k),
        "a": random(t, hv),
        "b": random(t, hv),
        "conv_weight": random(c, 4, scale=0.5),
        "a_log": random(hv, dtype="float32") * decay,
        "dt_bias": random(hv, dtype="float32"),
        "norm_weight": 1 + random(k, scale=0.1),
        "conv_window": random(c, 3, dtype="float32"),
        "state": random(hv, k, k, dtype="float32"),
    }


def rows(args, part):
    """The same arguments for some of the rows; window and state stay the same tensors."""
    return {n: x[part] if n in ("qkv", "z", "a", "b") else x for n, x in args.items()}


def check(args, dtype, assert_close):
    expected = gdn_prefill_reference(**args)
    out = gdn_prefill(**args, out=torch.full_like(args["z"], float("nan")))
    assert_close("out", expected[0], out, OUT_TOLERANCE[dtype])
    assert_close("state", expected[1], args["state"], STATE_TOLERANCE[dtype])
    assert torch.equal(args["conv_window"].double(), expected[2])


@pytest.mark.parametrize(("t", "dtype"), CASES, ids=[f"T{t}-{dtype}" for t, dtype in CASES])
def test_matches_the_step_form(t, dtype, assert_close) -> None:
    check(arguments(t, dtype), dtype, assert_close)


@pytest.mark.parametrize(("h", "hv"), [(2, 2), (1, 3)], ids=["H2-HV2", "H1-HV3"])
def test_other_head_counts(h, hv, assert_close) -> None:
    check(arguments(70, h=h, hv=hv), "float32", assert_close)


@dtypes
def test_the_model_width(dtype, assert_close) -> None:
    check(arguments(70, dtype, k=128), dtype, assert_close)


def test_equal_keys_without_decay_do_not_blow_up(assert_close) -> None:
    """The triangular system at its stiffest: all of A near one."""
    args = arguments(130, "float16")
    args["qkv"][:] = args["qkv"][:1]
    args["b"][:], args["a"][:] = 8.0, -20.0
    check(args, "float16", assert_close)


def test_decays_that_forget_everything(assert_close) -> None:
    args = arguments(90)
    args["a"][::7], args["a_log"][:] = 60.0, 2.5
    check(args, "float32", assert_close)


@pytest.mark.parametrize("split", [1, 64, 67])
def test_two_passes_equal_one(split, assert_close) -> None:
    whole, parts = arguments(70), arguments(70)
    out = gdn_prefill(**whole)
    first = gdn_prefill(**rows(parts, slice(0, split)))
    second = gdn_prefill(**rows(parts, slice(split, None)))
    assert_close("out", out, torch.cat((first, second)), 1e-5)
    assert_close("state", whole["state"], parts["state"], 1e-5)
    assert torch.equal(whole["conv_window"], parts["conv_window"])


def test_continues_by_single_steps(assert_close) -> None:
    args = arguments(70)
    expected = gdn_prefill_reference(**args)
    gdn_prefill(**rows(args, slice(0, 66)))
    for t in range(66, 70):
        out, state, window = gdn_prefill_reference(**rows(args, slice(t, t + 1)))
        args["state"], args["conv_window"] = state.float(), window.float()
        assert_close(f"out {t}", expected[0][t : t + 1], out, 1e-5)
    assert_close("state", expected[1], args["state"], 1e-5)


def test_rows_apart_in_place_and_a_workspace_of_the_told_size(assert_close) -> None:
    args = arguments(65, hv=3)
    expected = gdn_prefill_reference(**args)
    c, width = args["qkv"].shape[1], args["z"].shape[1]
    wide = torch.full((65, c + width + 2 * 3 + 5), float("nan"))
    pieces = wide.split([c, width, 3, 3, 5], dim=1)
    for piece, name in zip(pieces, ("qkv", "z", "a", "b"), strict=False):
        args[name] = piece.copy_(args[name])
    size = gdn_prefill_workspace_bytes(
        65, key_heads=1, value_heads=3, head_dim=32, dtype=torch.float32
    )
    workspace = torch.full((size + 8,), 255, dtype=torch.uint8)
    out = gdn_prefill(**args, out=args["z"], workspace=workspace[:size])
    assert out is args["z"]
    assert_close("out", expected[0], out, 1e-5)
    assert_close("state", expected[1], args["state"], 1e-5)
    assert (workspace[size:] == 255).all()
    assert wide[:, -5:].isnan().all()


def test_a_nan_takes_its_head_and_no_other(assert_close) -> None:
    args = arguments(100, hv=3)
    args["qkv"][70, 2 * 32 + 32 + 3] = float("nan")  # of v, value head 1
    args["a"][80, 2] = float("nan")
    expected = gdn_prefill_reference(**args)
    out = gdn_prefill(**args).view(100, 3, 32)
    assert_close("head 0", expected[0].view(100, 3, 32)[:, 0], out[:, 0], 1e-5)
    assert_close("state 0", expected[1][0], args["state"][0], 1e-5)
    assert_close("before", expected[0].view(100, 3, 32)[:64], out[:64], 1e-5)
    assert out[70:, 1].isnan().any(-1).all() and out[80:, 2].isnan().all()
    assert args["state"][2].isnan().all()


def test_no_tokens_change_nothing() -> None:
    args = arguments(0)
    before = args["state"].clone(), args["conv_window"].clone()
    assert gdn_prefill(**args).shape == (0, 64)
    assert torch.equal(before[0], args["state"]) and torch.equal(before[1], args["conv_window"])
