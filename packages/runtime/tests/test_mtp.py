"""Drafts of the MTP head against its formulas, written out again in float64 and without a cache."""

from pathlib import Path

import pytest
import torch
from bytebound import Engine, SamplingParams
from bytebound.philox import Purpose
from bytebound.reference.executor import ReferenceExecutor
from bytebound.sampling import Sampler

from .checkpoints import SHAPES, RandomCheckpoint, random_checkpoint
from .test_reference_state import random_ids

Tensors = dict[str, torch.Tensor]


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + weight)


def turn(x: torch.Tensor, theta: float, factor: float) -> torch.Tensor:
    """Rotary embedding of [T, heads, DH], one pair (i, i + half) at a time, as complex numbers."""
    half = int(x.shape[-1] * factor) // 2
    angle = torch.arange(len(x)).double()[:, None] * theta ** -(torch.arange(half).double() / half)
    pair = torch.complex(x[..., :half], x[..., half : 2 * half])
    pair = pair * torch.polar(torch.ones_like(angle), angle)[:, None, :]
    return torch.cat((pair.real, pair.imag, x[..., 2 * half :]), dim=-1)


def head(made: RandomCheckpoint, next_ids: list[int], hidden: torch.Tensor) -> torch.Tensor:
    """All rows of the head at positions 0 .. T-1: output [T, D] after ``mtp.norm``."""
    w = {name: tensor.double() for name, tensor in made.tensors.items()}
    config = made.config
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim, rope = config["head_dim"], config["rope_parameters"]
    embedded = norm(w["model.embed_tokens.weight"][next_ids], w["mtp.pre_fc_norm_embedding.weight"])
    joined = torch.cat((embedded, norm(hidden, w["mtp.pre_fc_norm_hidden.weight"])), dim=-1)
    x = joined @ w["mtp.fc.weight"].T
    layer = {n.removeprefix("mtp.layers.0."): t for n, t in w.items() if "mtp.layers.0." in n}

    y = norm(x, layer["input_layernorm.weight"])
    both = (y @ layer["self_attn.q_proj.weight"].T).view(len(y), heads, 2, dim)
    q, gate = both[:, :, 0], both[:, :, 1]
    k = (y @ layer["self_attn.k_proj.weight"].T).view(len(y), kv_heads, dim)
    v = (y @ layer["self_attn.v_proj.weight"].T).view(len(y), kv_heads, dim)
    theta, factor = rope["rope_theta"], rope["partial_rotary_factor"]
    q = turn(norm(q, layer["self_attn.q_norm.weight"]), theta, factor)
    k = turn(norm(k, layer["self_attn.k_norm.weight"]), theta, factor)
    out = torch.zeros(len(y), heads, dim, dtype=torch.float64)
    for t in range(len(y)):
        for h in range(heads):
            shared = h // (heads // kv_heads)
            weight = torch.softmax(k[: t + 1, shared] @ q[t, h] / dim**0.5, dim=0)
            out[t, h] = (weight @ v[: t + 1, shared]) / (1 + torch.exp(-gate[t, h]))
    x = x + out.flatten(1) @ layer["self_attn.o_proj.weight"].T

    y = norm(x, layer["post_attention_layernorm.weight"])
    gated = y @ layer["mlp.gate_proj.weight"].T
    gated = gated / (1 + torch.exp(-gated)) * (y @ layer["mlp.up_proj.weight"].T)
    x = x + gated @ layer["mlp.down_proj.weight"].T
    return norm(x, w["mtp.norm.weight"])


def expected_drafts(
    made: RandomCheckpoint, ids: list[int], hidden: torch.Tensor, count: int
) -> list[int]:
    """``ids``: all known ids; ``hidden`` [len(ids)-1, D]: the target's rows before the last."""
    lm_head = made.tensors["lm_head.weight"].double()
    next_ids, rows, drafts = ids[1:], hidden.double(), []
    for _ in range(count):
        out = head(made, next_ids, rows)[-1]
        drafts.append(int((lm_head @ out).argmax()))
        next_ids, rows = [*next_ids, drafts[-1]], torch.cat((rows, out[None]))
    return drafts


def target_hidden(executor: ReferenceExecutor, ids: list[int]) -> torch.Tensor:
    """Hidden rows of ``ids``, one by one."""
    executor.reset()
    rows = []
    for token in ids:
        executor.verify([token])
        rows.append(executor.last_hidden[0])
        executor.commit(1)
    return torch.stack(rows)


@pytest.mark.parametrize("shape", ["base", "ratio3", "odd"])
def test_drafts_equal_the_formulas(tmp_path: Path, shape: str) -> None:
    """After the prompt, and again after steps that accepted and refused guesses."""
    made = random_checkpoint(tmp_path, seed=21, **SHAPES[shape])
    engine = Engine.from_pretrained(made.folder, device="cpu", dtype="float32", num_draft_tokens=4)
    prompt = random_ids(23, engine.config.vocab_size)
    log: list[tuple[int, ...]] = []
    propose = engine.draft.propose

    def spy(count: int, sampler: Sampler) -> object:
        proposal = propose(count, sampler)
        log.append(proposal.ids)
        return proposal

    engine.draft.propose = spy
    ids, known = list(prompt), []
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    for event in engine.stream(prompt, params):
        ids += event.token_ids
        known.append(list(ids))
    hidden = target_hidden(engine.executor, ids)
    assert len(log) > 5
    for drafts, so_far in zip(log, known, strict=False):
        assert list(drafts) == expected_drafts(
            made, so_far, hidden[: len(so_far) - 1], len(drafts)
        ), f"after {len(so_far)} ids"


def test_sampled_drafts_carry_the_distribution_they_were_drawn_from(tmp_path: Path) -> None:
    made = random_checkpoint(tmp_path, seed=22)
    engine = Engine.from_pretrained(made.folder, device="cpu", dtype="float32")
    prompt = random_ids(9, engine.config.vocab_size)
    params = SamplingParams(temperature=0.8, top_k=20, seed=1)
    sampler = Sampler(params, prompt, engine.config.vocab_size, frozenset(), 1)
    engine.draft.begin(prompt[0])
    engine.executor.reset()
    engine.executor.prefill(prompt, engine.draft)
    engine.draft.observe([5], engine.executor.last_hidden)
    proposal = engine.draft.propose(3, sampler)
    assert proposal.probs.shape == (3, engine.config.vocab_size)
    torch.testing.assert_close(proposal.probs.sum(-1), torch.ones(3, dtype=torch.float64))
    for i, token in enumerate(proposal.ids):
        assert int((proposal.probs[i] > 0).sum()) <= 20
        # Position of the guess: the prompt, the token after it, the guesses before.
        assert token == sampler.draw(proposal.probs[i], len(prompt) + 1 + i, Purpose.DRAFT)
