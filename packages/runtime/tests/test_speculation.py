"""Speculation never changes a token: exactness, rollback at every depth, known heads."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from bytebound import Engine, Proposal, SamplingParams
from bytebound.reference.executor import ReferenceExecutor
from bytebound.reference.rows import WINDOW
from bytebound.reference.state import GatedDeltaState
from bytebound.sampling import Sampler

from .checkpoints import SHAPES, random_checkpoint, write_tensors
from .test_reference_state import make_executor, random_ids

GREEDY = SamplingParams(max_tokens=100, ignore_eos=True)
CASES = [("base", torch.float32), ("ratio3", torch.float32), ("odd", torch.bfloat16)]


def load(folder: Path, draft: object = "none", count: int = 4, **settings: object) -> Engine:
    return Engine.from_pretrained(
        folder, device="cpu", draft=draft, num_draft_tokens=count, max_len=512, **settings
    )


class KnownFuture:
    """Proposes the true ids after the first, wrong from a given depth on (None: never wrong)."""

    name = "known"

    def __init__(self, future: Sequence[int], wrong_at: int | None, vocab_size: int) -> None:
        self.future, self.wrong_at, self.vocab_size = list(future), wrong_at, vocab_size

    def begin(self, first_id: int) -> None:
        self.seen = 0

    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        self.seen += len(next_ids)

    def propose(self, count: int, sampler: Sampler) -> Proposal:
        ids = self.future[self.seen : self.seen + count]
        if self.wrong_at is not None:
            ids = [
                (token + 1) % self.vocab_size if depth >= self.wrong_at else token
                for depth, token in enumerate(ids)
            ]
        return Proposal(tuple(ids))


@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=[f"{s}-{d}" for s, d in CASES])
def test_a_row_has_the_same_bits_whatever_comes_with_it(
    tmp_path: Path, shape: str, dtype: torch.dtype
) -> None:
    """Promise 1 at its root: rows of 1..9-row passes equal those of 1-row passes."""
    folder = random_checkpoint(tmp_path, seed=11, dtype=dtype, **SHAPES[shape]).folder
    alone, together = make_executor(folder, dtype=dtype), make_executor(folder, dtype=dtype)
    ids = random_ids(150, alone.vocab_size)
    start = 40
    alone.prefill(ids[:start])
    together.prefill(ids[:start])
    choose = random.Random(5)
    position = start
    while position < len(ids) - 9:
        count = choose.randint(1, 9)
        kept = choose.randint(1, count)
        # Rows that will be refused hold ids that plain decoding never sees.
        passed = ids[position : position + kept] + [
            choose.randrange(90) for _ in range(count - kept)
        ]
        rows = together.verify(passed)
        hidden = together.last_hidden
        for i in range(kept):
            assert torch.equal(rows[i], alone.verify([ids[position + i]])[0]), position + i
            assert torch.equal(hidden[i], alone.last_hidden[0])
            alone.commit(1)
        together.commit(kept)
        position += kept
    assert position - start > 5 * WINDOW  # every slot, several times
    for a, b in zip(alone.state.layers, together.state.layers, strict=True):
        if isinstance(a, GatedDeltaState):
            assert torch.equal(a.recurrent, b.recurrent)
            assert torch.equal(a.conv_window, b.conv_window)


@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=[f"{s}-{d}" for s, d in CASES])
def test_greedy_output_is_plain_output_for_every_draft_and_depth(
    tmp_path: Path, shape: str, dtype: torch.dtype
) -> None:
    """E12, E17: MTP, n-gram and random drafts of 1 to 8 ids change nothing, drafts do happen."""
    folder = random_checkpoint(tmp_path, seed=12, dtype=dtype, **SHAPES[shape]).folder
    name = str(dtype).removeprefix("torch.")
    plain = load(folder, dtype=name)
    prompt = random_ids(29, plain.config.vocab_size)
    expected = plain.generate(prompt, GREEDY).token_ids
    for count in (1, 2, 3, 4, 5, 6, 7, 8):
        engine = load(folder, "mtp", count, dtype=name)
        result = engine.generate(prompt, GREEDY)
        assert result.token_ids == expected
        assert result.stats.drafted >= count
    result = load(folder, "ngram", 5, dtype=name).generate(prompt * 3, GREEDY)
    assert result.token_ids == plain.generate(prompt * 3, GREEDY).token_ids


@pytest.mark.parametrize(
    ("count", "wrong_at"),
    [(count, depth) for count in (1, 4, 8) for depth in (*range(count), None)],
)
def test_forced_rejection_at_every_depth(tmp_path: Path, wrong_at: int | None, count: int) -> None:
    """KV, recurrent state and conv window roll back from any depth: the text stays plain."""
    folder = random_checkpoint(tmp_path, seed=13).folder
    plain = load(folder, dtype="float32")
    prompt = random_ids(21, plain.config.vocab_size)
    expected = plain.generate(prompt, GREEDY).token_ids
    draft = KnownFuture([*prompt[1:], *expected], wrong_at, plain.config.vocab_size)
    result = load(folder, draft, count, dtype="float32").generate(prompt, GREEDY)
    assert result.token_ids == expected
    gained = (count if wrong_at is None else wrong_at) + 1
    assert result.stats.steps == -(-(len(expected) - 1) // gained)
    assert result.stats.accepted == len(expected) - 1 - result.stats.steps
    if wrong_at is None:
        # Never more guesses than can still be used: all of them stood.
        assert result.stats.accepted == result.stats.drafted


def test_a_head_that_copies_the_target_is_always_accepted(tmp_path: Path) -> None:
    """With layers that add nothing, target and head both see the last token alone.

    fc passes the embedding half through (E11: norms read as ``w`` and not ``1 + w`` would pass
    nothing), and both final norms are the same.
    """
    made = random_checkpoint(tmp_path, seed=14)
    tensors = dict(made.tensors)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            tensors[name] = torch.zeros_like(tensor)
    size = tensors["model.norm.weight"].shape[0]
    zeros = torch.zeros(size)
    tensors["mtp.pre_fc_norm_embedding.weight"] = zeros
    tensors["mtp.fc.weight"] = torch.cat((torch.eye(size), torch.zeros(size, size)), dim=1)
    tensors["mtp.norm.weight"] = tensors["model.norm.weight"].clone()
    write_tensors(made.folder, tensors)
    plain = load(made.folder, dtype="float32").generate([1, 2, 3], GREEDY)
    result = load(made.folder, "mtp", 4, dtype="float32").generate([1, 2, 3], GREEDY)
    assert result.token_ids == plain.token_ids
    assert result.stats.drafted > 40
    assert result.stats.accepted == result.stats.drafted


def test_acceptance_does_not_depend_on_the_prefill_chunk(tmp_path: Path) -> None:
    """E24: the head's cache sees every prompt position, over chunk borders too."""
    folder = random_checkpoint(tmp_path, seed=15).folder
    drafted = []
    for chunk in (5, 64, 512):
        engine = load(folder, "mtp", 3, dtype="float32")
        executor = engine.executor
        assert isinstance(executor, ReferenceExecutor)
        executor.prefill_chunk = chunk
        seen: list[tuple[int, ...]] = []
        propose = engine.draft.propose
        engine.draft.propose = lambda count, sampler, ask=propose, log=seen: (
            log.append((p := ask(count, sampler)).ids) or p
        )
        engine.generate(random_ids(300, executor.vocab_size), GREEDY)
        drafted.append(seen)
    assert drafted[0] == drafted[1] == drafted[2]
    assert len(drafted[0]) > 15
