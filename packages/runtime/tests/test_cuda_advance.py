"""A row that is accepted whatever it says goes into the state at once, with the bits of verify."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from bytebound.checkpoint import read_headers
from bytebound.config import ModelConfig
from bytebound.cuda import step as steps
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.loading import load_weights
from bytebound.cuda.step import settle
from bytebound.names import resolve_model

from .cuda_models import gated_delta_states, some_ids
from .emulated_kernels import emulate

PROMPT, REPLY = some_ids(20), some_ids(12, vocab=3000)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CudaExecutor:
    if request.param == "cpu":
        emulate(monkeypatch)
    folder = resolve_model("tiny")
    config = ModelConfig.from_folder(folder)
    device = torch.device(request.param)
    weights = load_weights(folder, config, read_headers(folder, config), device=device)
    return CudaExecutor(weights, config, max_len=128)


def pass_over(
    executor: CudaExecutor, ids: Sequence[int], accepted: int, pending_rows: int
) -> torch.Tensor:
    """Logits of a pass, as the decode loop runs it; the host's own numbers stay behind."""
    step, state = executor.step, executor.state
    step.buffers.ids[: len(ids)].copy_(torch.tensor(ids, dtype=torch.int32))
    if pending_rows:
        step.verify(executor.weights, state, len(ids), pending_rows)
        state.num_accepted.fill_(accepted)
        state.position.add_(accepted)
    else:
        step.advance(executor.weights, state, step.buffers.ids[:1])
    return step.buffers.logits[: len(ids)].clone()


def settled(executor: CudaExecutor) -> list[torch.Tensor]:
    """What the layers hold once no row is pending."""
    settle(executor.weights, executor.state, executor.config)
    deltas = gated_delta_states(executor.state)
    found = [one.clone() for delta in deltas for one in delta.settled]
    return found + [one.clone() for one in executor.state.caches]


@torch.inference_mode()
def test_the_state_takes_the_row_in_at_once(executor: CudaExecutor) -> None:
    found = []
    for pending_rows in (8, 1, 0):
        executor.reset()
        executor.prefill(PROMPT)
        rows = [pass_over(executor, [one], 1, pending_rows) for one in REPLY]
        deltas = gated_delta_states(executor.state)
        before = [one.clone() for delta in deltas for one in delta.settled]
        after = settled(executor)
        is_settled = all(torch.equal(a, b) for a, b in zip(before, after, strict=False))
        assert is_settled == (pending_rows == 0)
        found.append([*rows, *after])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    assert len({tuple(row.argmax(-1).tolist()) for row in found[0][: len(REPLY)]}) > 1


@torch.inference_mode()
def test_a_pass_reads_no_more_rows_ahead_than_it_is_told(
    executor: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    kernels = steps.bk
    gdn_step = kernels.gdn_step

    def note(*args: Any, **options: Any) -> torch.Tensor:
        told.append(options["pending_rows"])
        return gdn_step(*args, **options)

    monkeypatch.setattr(kernels, "gdn_step", note)
    executor.reset()
    executor.prefill(PROMPT)
    told.clear()
    for pending_rows, expected in ((8, 8), (3, 3), (1, 1)):
        pass_over(executor, REPLY[:1], 1, pending_rows)
        assert told and set(told) == {expected}
        told.clear()


@torch.inference_mode()
def test_no_more_rows_are_pending_than_a_turn_has(executor: CudaExecutor) -> None:
    """Passes of up to three rows: it changes nothing whether room for eight is looked at."""
    counts, found = ((3, 3), (1, 1), (3, 0), (2, 1), (3, 2), (3, 3)), []
    for pending_rows in (8, 3):
        executor.reset()
        executor.prefill(PROMPT)
        logits, start = [], 0
        for rows, accepted in counts:
            logits.append(pass_over(executor, REPLY[start : start + rows], accepted, pending_rows))
            start += accepted
        found.append([*logits, *settled(executor)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
