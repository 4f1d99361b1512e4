"""The sampling ops of bytebound-kernels on a CPU, by their own plain references."""

from typing import Any

import bytebound_kernels as bk
import torch
from bytebound_kernels.ops.argmax import argmax_reference
from bytebound_kernels.ops.history_append import history_append_reference
from bytebound_kernels.ops.logit_adjust import logit_adjust_reference
from bytebound_kernels.ops.logprobs import logprobs_reference
from bytebound_kernels.ops.sample import sample_reference
from bytebound_kernels.ops.speculative_accept import speculative_accept_reference
from bytebound_kernels.ops.speculative_sample import speculative_sample_reference

Tensor = torch.Tensor


def argmax(logits: Tensor, *, out: Tensor, workspace: Tensor, id_map: Any = None) -> Tensor:
    assert workspace.numel() >= bk.argmax_workspace_bytes(logits.shape[0])
    return out.copy_(argmax_reference(logits, id_map=id_map))


def logit_adjust(
    logits: Tensor,
    settings: Tensor,
    *,
    out: Tensor,
    generated: Tensor | None = None,
    **lists: Any,
) -> Tensor:
    count = 0 if generated is None else int(generated)
    return out.copy_(logit_adjust_reference(logits, settings, generated=count, **lists))


def history_append(ids: Tensor, num_ids: Tensor, *, seen: Tensor, counts: Tensor) -> None:
    history_append_reference(ids, int(num_ids), seen=seen, counts=counts)


def sample(
    logits: Tensor,
    settings: Tensor,
    *,
    seed: Tensor,
    position: Tensor,
    out: Tensor,
    workspace: Tensor,
    weights: Tensor,
    totals: Tensor,
    position_offset: int = 0,
    purpose: int = 0,
) -> Tensor:
    assert workspace.numel() >= bk.sample_workspace_bytes(*logits.shape)
    start = int(position) + position_offset
    ids, kept = sample_reference(logits, settings, int(seed), start, int(purpose))
    weights.copy_(kept)
    totals.copy_(kept.sum(-1))
    return out.copy_(torch.tensor(ids))


def speculative_accept(ids: Tensor, drafts: Tensor | None, *, cycle: Tensor) -> Tensor:
    guesses = [] if drafts is None else drafts.tolist()
    words, _ = speculative_accept_reference(ids.tolist(), guesses, cycle.tolist())
    return cycle.copy_(torch.tensor(words))


def speculative_sample(
    weights: Tensor,
    totals: Tensor,
    drafts: Tensor,
    *,
    seed: Tensor,
    cycle: Tensor,
    workspace: Tensor,
    draft_weights: Tensor | None,
    draft_totals: Tensor | None,
) -> Tensor:
    assert (draft_weights is None) == (draft_totals is None)
    words, _ = speculative_sample_reference(
        weights, drafts.tolist(), int(seed), cycle.tolist(), draft_weights=draft_weights
    )
    return cycle.copy_(torch.tensor(words))


def logprobs(
    logits: Tensor, ids: Tensor, *, out_values: Tensor, out_ids: Tensor, workspace: Tensor
) -> Tensor:
    values, top = logprobs_reference(logits, ids, out_values.shape[1] - 1)
    out_ids.copy_(top)
    return out_values.copy_(values)


SAMPLING_OPS = {
    op.__name__: op
    for op in (
        argmax, logit_adjust, history_append, sample, speculative_accept, speculative_sample,
        logprobs,
    )
}  # fmt: skip
