"""Prefill in every chunking, step form and chunked form: same logits, same state."""

from pathlib import Path

import pytest
import torch
from bytebound.checkpoint import load_checkpoint
from bytebound.config import ModelConfig
from bytebound.errors import ContextOverflowError
from bytebound.reference.executor import ReferenceExecutor
from bytebound.reference.gated_delta import DeltaInputs, delta_chunks, delta_step
from bytebound.reference.norm import l2_norm
from bytebound.reference.state import GatedDeltaState, KvCache

from .checkpoints import SHAPES, random_checkpoint

TOLERANCE = 1e-4  # relative, the bound promised for logits against the step form


def make_executor(
    folder: Path, chunk: int = 512, max_len: int = 4096, dtype: torch.dtype = torch.float32
) -> ReferenceExecutor:
    config = ModelConfig.from_folder(folder)
    weights = load_checkpoint(folder, config, dtype=dtype, device=torch.device("cpu")).weights
    return ReferenceExecutor(weights, config, max_len=max_len, prefill_chunk=chunk)


def random_ids(count: int, vocab_size: int) -> list[int]:
    return torch.randint(
        0, vocab_size, (count,), generator=torch.Generator().manual_seed(1)
    ).tolist()


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


def assert_same_state(got: ReferenceExecutor, expected: ReferenceExecutor) -> None:
    """Every piece of both sequences' state, by name."""
    assert got.position == expected.position
    stop = got.position
    for i, (a, b) in enumerate(zip(got.state.layers, expected.state.layers, strict=True)):
        if isinstance(a, KvCache) and isinstance(b, KvCache):
            pairs = {"k": (a.k[:, :stop], b.k[:, :stop]), "v": (a.v[:, :stop], b.v[:, :stop])}
        else:
            assert isinstance(a, GatedDeltaState) and isinstance(b, GatedDeltaState)
            pairs = {
                "recurrent": (a.recurrent, b.recurrent),
                "conv_window": (a.conv_window, b.conv_window),
            }
        for name, (x, y) in pairs.items():
            assert relative_error(x, y) < TOLERANCE, f"layer {i} {name}"


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 63, 64, 65, 127, 200])
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 100, 512])
def test_prefill_in_any_chunking_equals_step_by_step(
    tmp_path: Path, chunk: int, length: int
) -> None:
    """E04, E05, E06, E09: no length and no border loses state, window or position."""
    folder = random_checkpoint(tmp_path, seed=2, **SHAPES["ratio3"]).folder
    steps, chunks = make_executor(folder), make_executor(folder, chunk)
    ids = random_ids(length, steps.vocab_size)
    for token in ids:
        expected = steps.verify([token])[0]
        steps.commit(1)
    got = chunks.prefill(ids)
    assert relative_error(got, expected) < TOLERANCE
    assert_same_state(chunks, steps)


def test_a_long_prompt_is_the_same_in_every_chunking(tmp_path: Path) -> None:
    """E06 at 3,000 tokens."""
    folder = random_checkpoint(tmp_path, seed=2).folder
    whole = make_executor(folder, 4096)
    ids = random_ids(3000, whole.vocab_size)
    expected = whole.prefill(ids)
    for chunk in (64, 100, 512):
        executor = make_executor(folder, chunk)
        assert relative_error(executor.prefill(ids), expected) < TOLERANCE
        assert int(executor.verify([5])[0].argmax()) == int(whole.verify([5])[0].argmax())


def test_reset_leaves_nothing_behind(tmp_path: Path) -> None:
    executor = make_executor(random_checkpoint(tmp_path, seed=2).folder)
    ids = random_ids(50, executor.vocab_size)
    first = executor.prefill(ids)
    executor.verify(ids[:4])
    executor.commit(2)
    executor.reset()
    assert torch.equal(executor.prefill(ids), first)


@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 150])
@pytest.mark.parametrize("chunk", [1, 5, 64])
@pytest.mark.parametrize("decay", ["slow", "mixed", "extreme"])
def test_chunked_delta_rule_equals_the_step_form(tokens: int, chunk: int, decay: str) -> None:
    """Outputs and state, with decays from none to total within one chunk."""
    draw = torch.Generator().manual_seed(tokens)
    heads, key_dim, value_dim = 3, 16, 24
    g = {
        "slow": -0.01 * torch.rand(tokens, heads, generator=draw),
        "mixed": -3.0 * torch.rand(tokens, heads, generator=draw) ** 4,
        "extreme": -1000.0 * (torch.rand(tokens, heads, generator=draw) < 0.1).float() - 1e-3,
    }[decay]
    inputs = DeltaInputs(
        q=l2_norm(torch.randn(tokens, heads, key_dim, generator=draw)),
        k=l2_norm(torch.randn(tokens, heads, key_dim, generator=draw)),
        v=torch.randn(tokens, heads, value_dim, generator=draw),
        g=g,
        beta=torch.rand(tokens, heads, generator=draw),
    )
    start = torch.randn(heads, key_dim, value_dim, generator=draw)
    # The definition in float64, straight from the formula.
    state, outs = start.double(), []
    for q, k, v, log_decay, beta in zip(*(t.double() for t in inputs), strict=True):
        state = log_decay.exp()[:, None, None] * state
        delta = beta[:, None] * (v - torch.einsum("hkv,hk->hv", state, k))
        state = state + k[:, :, None] * delta[:, None, :]
        outs.append(torch.einsum("hkv,hk->hv", state, q))
    expected = torch.stack(outs)

    out, final = delta_chunks(inputs, start, chunk)
    assert relative_error(out, expected) < 1e-5
    assert relative_error(final, state) < 1e-5

    stepped, rows = start, []
    for q, k, v, log_decay, beta in zip(*inputs, strict=True):
        row, stepped = delta_step(q, k, v, log_decay.exp(), beta, stepped)
        rows.append(row)
    assert relative_error(torch.stack(rows), expected) < 1e-5
    assert relative_error(stepped, state) < 1e-5


def test_verify_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    executor = make_executor(random_checkpoint(tmp_path, seed=2).folder, max_len=16)
    with pytest.raises(ValueError, match="1 to 9 rows, got 10"):
        executor.verify([1] * 10)
    executor.prefill([1] * 14)
    with pytest.raises(
        ContextOverflowError, match="3 more tokens after 14 exceed the context of 16"
    ):
        executor.verify([1] * 3)
    assert executor.position == 14
