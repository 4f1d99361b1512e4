"""The reference backend against Hugging Face transformers, which knows nothing of this package."""

from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound import Engine, SamplingParams
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from .checkpoints import SHAPES, random_checkpoint

SHAPES = {
    **{name: SHAPES[name] for name in ("base", "ratio1", "ratio3", "odd")},
    "tied": {"tied": True},
    "sharded": {"shards": 3},
    "family": {  # the head dims of the 27B: 256 / 128 / 128, three value heads a key head
        "hidden_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 3,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
}
TOKENS = 171  # two whole chunks of the delta rule and a part


def prompt(vocab_size: int, length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (length,), generator=generator).tolist()


def oracle(folder: Path) -> Qwen3_5ForCausalLM:
    return Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def reference(folder: Path, **settings: Any) -> Engine:
    settings = {"draft": "none", "max_len": 1024, **settings}
    return Engine.from_pretrained(
        folder, backend="reference", device="cpu", dtype="float32", **settings
    )


@pytest.mark.parametrize("length", [1, 2, 3, 4, 63, 64, 65, TOKENS])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_transformers(tmp_path: Path, shape: str, length: int) -> None:
    """Within 1e-4 of logits that are scaled to unit spread (the checkpoints' own spread is ~8)."""
    folder = random_checkpoint(tmp_path, seed=3, **SHAPES[shape]).folder
    engine = reference(folder)
    ids = prompt(engine.config.vocab_size, length)
    with torch.no_grad():
        expected = oracle(folder)(torch.tensor([ids])).logits[0]
    spread = expected.std()
    torch.testing.assert_close(engine.score(ids) / spread, expected / spread, atol=1e-4, rtol=0)


def test_logits_of_a_default_initialised_model_equal_transformers(tmp_path: Path) -> None:
    """Within 1e-4 as they are, with a rotary section that belongs to a larger head."""
    config = Qwen3_5TextConfig(
        vocab_size=300,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=6,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    )
    torch.manual_seed(0)
    Qwen3_5ForCausalLM(config).save_pretrained(tmp_path)
    ids = prompt(300, TOKENS)
    with torch.no_grad():
        expected = oracle(tmp_path)(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(reference(tmp_path).score(ids), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_200_greedy_tokens_equal_transformers(tmp_path: Path, shape: str) -> None:
    folder = random_checkpoint(tmp_path, seed=4, **SHAPES[shape]).folder
    engine = reference(folder)
    ids = prompt(engine.config.vocab_size, 37)
    model = oracle(folder)
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        expected = model.generate(torch.tensor([ids]), max_new_tokens=200, do_sample=False)
    got = engine.generate(ids, SamplingParams(max_tokens=200, ignore_eos=True))
    assert got.token_ids == expected[0, len(ids) :].tolist()


@pytest.mark.parametrize("position", [600, 4090])
def test_partial_rotary_holds_far_from_the_start(tmp_path: Path, position: int) -> None:
    """E37: a rotation of the whole head looks right for a few tokens and wrong here."""
    shape = {"num_hidden_layers": 2, "layer_types": ["full_attention", "linear_attention"]}
    folder = random_checkpoint(tmp_path, seed=5, **shape).folder
    engine = reference(folder, max_len=4096)
    ids = prompt(engine.config.vocab_size, position + 5)
    with torch.no_grad():
        expected = oracle(folder)(torch.tensor([ids])).logits[0, -5:]
    spread = expected.std()
    got = engine.score(ids)[-5:]
    torch.testing.assert_close(got / spread, expected / spread, atol=1e-4, rtol=0)


def test_nested_config_with_vision_gives_the_same_logits(tmp_path: Path) -> None:
    """E36: the same weights under a flat text config and under the multimodal one."""
    flat = reference(random_checkpoint(tmp_path / "flat", seed=6).folder)
    nested = reference(
        random_checkpoint(tmp_path / "nested", seed=6, nested=True, vision=True).folder
    )
    ids = prompt(flat.config.vocab_size, 90)
    assert torch.equal(flat.score(ids), nested.score(ids))
    assert flat.memory_plan == nested.memory_plan


@pytest.mark.parametrize("shape", ["base", "ratio3"])
def test_bfloat16_follows_float32(tmp_path: Path, shape: str) -> None:
    """Rounding alone separates the two: errors stay a few per cent of the spread."""
    folder = random_checkpoint(tmp_path, seed=8, dtype=torch.bfloat16, **SHAPES[shape]).folder
    exact = reference(folder)
    rounded = Engine.from_pretrained(folder, device="cpu", dtype="bfloat16", draft="none")
    ids = prompt(exact.config.vocab_size, TOKENS)
    expected, got = exact.score(ids), rounded.score(ids)
    assert got.dtype == torch.float32
    error = (got - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error < 0.05, f"relative RMS error {error:.4f}"
    with torch.no_grad():
        theirs = Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        theirs = theirs(torch.tensor([ids])).logits[0].float()
    error_of_theirs = (theirs - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error < 1.5 * error_of_theirs
