"""The parts of the training whose mistakes would not show in a loss curve."""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

HERE = Path(__file__).parents[1]
REPO = HERE.parents[1]
FOLDER = REPO / "packages/runtime/src/bytebound/models/tiny"
PROBLEMS = REPO / "evals/src/bytebound_evals/data/problems.jsonl"
sys.path.insert(0, str(HERE))  # the tools are scripts that import their neighbours

from chats import chat  # noqa: E402
from data import FULL, ID_MASK, mark_assistant  # noqa: E402
from kernels import chunk_gradients  # noqa: E402
from model import TinyModel, qwen, tiny_config  # noqa: E402
from problems import conversation, held_out, problem  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


def draft_step_by_step(model, embedding, hidden, start, depth):
    """Drafting as an engine does it: cached true entries before `start`, then token by token."""
    layer = model.mtp.layers[0]
    attention = layer.self_attn
    cos, sin = model.rotary(embedding)
    keys, values = [], []

    def push(x, at):
        normed = layer.input_layernorm(x)
        query, gate = attention.q_proj(normed).view(1, 1, 2, 512).chunk(2, -1)
        query = attention.q_norm(query).transpose(1, 2)
        key = attention.k_norm(attention.k_proj(normed)[:, :, None]).transpose(1, 2)
        here = slice(at, at + 1)
        query, key = qwen.apply_rotary_pos_emb(query, key, cos[:, here], sin[:, here])
        keys.append(key)
        values.append(attention.v_proj(normed)[:, None])
        return query, gate.reshape(1, 1, 512)

    for at in range(start):
        push(model.mtp.join(embedding[:, at : at + 1], hidden[:, at : at + 1]), at)
    state, outputs = hidden[:, start : start + 1], []
    for at in range(start, start + depth):
        x = model.mtp.join(embedding[:, at : at + 1], state)
        query, gate = push(x, at)
        mixed = F.scaled_dot_product_attention(
            query, torch.cat(keys, 2), torch.cat(values, 2), enable_gqa=True
        )
        mixed = mixed.transpose(1, 2).reshape(1, 1, 512)
        x = x + attention.o_proj(mixed * torch.sigmoid(gate))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        state = model.mtp.norm(x)
        outputs.append(state)
    return outputs


@torch.no_grad()
def test_unrolled_drafts_equal_drafting_step_by_step():
    torch.manual_seed(0)
    model = TinyModel(tiny_config()).eval()
    for p in model.mtp.parameters():
        if p.ndim == 2:
            torch.nn.init.normal_(p, std=0.06)
    embedding, hidden = torch.randn(2, 1, 14, 256).unbind(0)
    unrolled = model.draft(embedding, hidden, 4)
    torch.testing.assert_close(unrolled[0], model.draft_first(embedding, hidden))
    for start in (0, 3, 9):
        for d, state in enumerate(draft_step_by_step(model, embedding, hidden, start, 4)):
            torch.testing.assert_close(
                unrolled[d][:, start + d : start + d + 1], state, rtol=1e-4, atol=1e-5
            )


def test_chunk_gradients_equal_autograd():
    torch.manual_seed(0)
    batch, heads, keys, values, chunk = 2, 3, 16, 8, 64
    length, scale = 2 * chunk, 16**-0.5

    def chunked(x):
        return x.view(batch, 2, chunk, heads, -1).transpose(2, 3)

    q, k = (torch.randn(batch, length, heads, keys, requires_grad=True) for _ in range(2))
    v = torch.randn(batch, length, heads, values)
    decay = (-0.1 * torch.rand(batch, 2, chunk, heads)).cumsum(2).view(batch, length, heads)
    decay.requires_grad_()
    h, dh = torch.randn(2, batch, 2, heads, keys, values).unbind(0)
    do, dv = torch.randn(2, batch, length, heads, values).unbind(0)
    log2 = decay / math.log(2)
    cq, ck, cv, g = chunked(q), chunked(k), chunked(v), chunked(log2)
    pairs = torch.exp2(g - g.mT)
    out = scale * ((cq * torch.exp2(g)) @ h + torch.tril(cq @ ck.mT * pairs) @ cv)
    last = g[..., -1:, :]
    state = torch.exp2(last) * h + (ck * torch.exp2(last - g)).mT @ cv
    ((out * chunked(do)).sum() + (state * dh).sum()).backward()
    w = torch.randn(batch, length, heads, keys)
    with torch.no_grad():
        dq, dk, dw, dg = chunk_gradients(q, k, v, do, h, dh, w, log2, dv, scale, chunk)
        wanted_dw = -(chunked(dv) @ h.mT).transpose(2, 3).reshape(w.shape)
    for found, wanted in ((dq, q.grad), (dk, k.grad), (dg, decay.grad), (dw, wanted_dw)):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_held_out_problems_are_the_shipped_ones_and_answer_themselves():
    rows = [json.loads(line) for line in PROBLEMS.read_text(encoding="utf-8").splitlines()]
    assert rows == [{"question": p.question, "answer": p.answer} for p in held_out()]
    assert len({row["question"] for row in rows}) == 300
    for row in rows:
        *steps, last = row["answer"].split("\n")
        shown = steps[-1].split("<<")[1].split(">>")[0]
        sum_text, result = shown.split("=")
        assert eval(sum_text) == int(result) == int(last.removeprefix("#### "))


@pytest.mark.parametrize("thinking", [False, True])
def test_a_generation_prompt_is_a_prefix_of_the_trained_text(tokenizer, thinking):
    messages = conversation(problem(random.Random(1)), thinking)
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    prompt = tokenizer.apply_chat_template(
        messages[:1], tokenize=False, add_generation_prompt=True, enable_thinking=thinking
    )
    assert whole.startswith(prompt)
    assert whole.endswith("<|im_end|>\n")


def test_only_what_the_assistant_writes_is_marked(tokenizer):
    rng = random.Random(3)
    for _ in range(30):
        messages, tools = chat(rng)
        text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
        ids = np.array(tokenizer(text)["input_ids"], dtype=np.uint16)
        stream = mark_assistant(ids, tokenizer)
        assert np.array_equal(stream & ID_MASK, ids)
        marked = tokenizer.decode([int(t) & ID_MASK for t in stream if t & FULL])
        turns = text.split("<|im_start|>")[1:]
        written = [turn.split("<|im_end|>")[0] for turn in turns if turn.startswith("assistant")]
        assert marked == "".join(f"<|im_start|>{turn}<|im_end|>" for turn in written)


def test_the_vocabulary_is_exact_and_loses_nothing(tokenizer):
    assert len(tokenizer) == 4096
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    text = "Zwölf Boxkämpfer:\n\tx = 12345  # 漢字 🙂\r\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
