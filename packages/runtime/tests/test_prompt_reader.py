"""Prefix reuse: a prompt read after others is, to the bit, the prompt read alone, and costs less.

The model is small and cut into passes of a few ids, so that short prompts have many cuts.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from bytebound.checkpoint import load_checkpoint
from bytebound.config import ModelConfig
from bytebound.drafts import Draft, MtpDraft, NgramDraft, Proposal
from bytebound.executor import Observer, Snapshot
from bytebound.prompt_reader import PromptReader, cuts
from bytebound.reference.executor import ReferenceExecutor
from bytebound.reference.state import KvCache
from bytebound.scripted import ScriptedDraft, ScriptedExecutor
from bytebound.weights import ModelWeights
from hypothesis import given, settings
from hypothesis import strategies as st

from .checkpoints import random_checkpoint

CHUNK, FLOOR, TURN = 16, 5, 3
MAX_LEN = 400
DRAFTS = ("none", "mtp", "ngram")
PLENTY = 1 << 30


@dataclass(frozen=True)
class Model:
    weights: ModelWeights
    config: ModelConfig

    def reader(
        self,
        draft: str = "none",
        *,
        snapshots: int = 1000,
        max_len: int = MAX_LEN,
        parked: int = 0,
    ) -> "Reader":
        executor = CountingExecutor(
            self.weights, self.config, max_len=max_len, prefill_chunk=CHUNK, prefill_floor=FLOOR
        )
        drafts: dict[str, Draft | None] = {
            "none": None,
            "mtp": MtpDraft(self.weights, self.config, max_len=max_len),
            "ngram": NgramDraft(min_ngram=1),
        }
        return Reader(
            executor,
            drafts[draft],
            turn_starts={TURN},
            snapshot_bytes=snapshots * executor.snapshot_bytes,
            conversation_bytes=parked,
        )


class CountingExecutor(ReferenceExecutor):
    """Counts the ids that were really processed, and may fail at one of its passes."""

    rows = 0
    fail_in: int | None = None  # passes until one fails half-way

    def prefill(self, ids: Sequence[int], observer: Observer | None = None) -> torch.Tensor:
        if self.fail_in == 0:
            self.fail_in, position = None, self.position
            recurrent = self.state.layers[2].recurrent
            super().prefill(ids, observer)  # KV, draft and state have advanced ...
            self.state.layers[2].recurrent = recurrent  # ... but in the last layer
            self.state.position = position
            raise torch.OutOfMemoryError("out of memory, for the test")
        if self.fail_in is not None:
            self.fail_in -= 1
        self.rows += len(ids)
        return super().prefill(ids, observer)


class Reader(PromptReader):
    executor: CountingExecutor

    def processed(self, prompt: Sequence[int]) -> int:
        """Read the prompt; how many of its ids were processed for it."""
        before = self.executor.rows
        self.read(prompt)
        return self.executor.rows - before


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = random_checkpoint(
        tmp_path_factory.mktemp("model"),
        seed=5,
        num_hidden_layers=3,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
    ).folder
    config = ModelConfig.from_folder(folder)
    loaded = load_checkpoint(folder, config, dtype=torch.float32, device=torch.device("cpu"))
    return Model(loaded.weights, config)


def some_ids(choose: random.Random, count: int) -> list[int]:
    """Random ids, a turn start among them every ten or so."""
    return [TURN if choose.random() < 0.1 else choose.randrange(10, 150) for _ in range(count)]


def related(choose: random.Random, earlier: list[list[int]]) -> list[int]:
    """A prompt that shares a beginning with one of the earlier ones, or is new."""
    base = choose.choice(earlier) if earlier else []
    kind = choose.choice(["grow", "branch", "cut", "same", "new"])
    shared = {"grow": len(base), "same": len(base), "new": 0}.get(
        kind, choose.randint(0, len(base))
    )
    more = 0 if kind in ("same", "cut") else choose.randint(1, 50)
    return (base[:shared] + some_ids(choose, more))[: MAX_LEN - 20] or [choose.randrange(10, 150)]


def decode(reader: PromptReader, choose: random.Random, steps: int) -> None:
    """What an answer does to executor and draft: guesses, accepted in part."""
    executor, draft = reader.executor, reader.draft
    for _ in range(steps):
        rows = some_ids(choose, choose.randint(1, 4))
        hidden = executor.last_hidden
        if draft is not None:
            draft.observe([rows[0]], hidden[:1])
            draft.propose(3, GREEDY)
        executor.verify(rows)
        kept = choose.randint(1, len(rows))
        executor.commit(kept)
        if draft is not None and kept > 1:
            draft.observe(rows[1:kept], executor.last_hidden[: kept - 1])
        executor.last_hidden = executor.last_hidden[kept - 1 :][:1]


class _Greedy:
    greedy = True

    def draft_argmax(self, raw: torch.Tensor, ids: Sequence[int]) -> int:
        return int(raw.argmax())


GREEDY: Any = _Greedy()


def assert_same(warm: PromptReader, cold: PromptReader, length: int) -> None:
    """Everything that later tokens can depend on, bit for bit."""
    one, other = warm.executor, cold.executor
    assert one.position == other.position == length
    assert torch.equal(one.last_hidden, other.last_hidden)
    for a, b in zip(one.state.layers, other.state.layers, strict=True):
        if isinstance(a, KvCache):
            assert torch.equal(a.k[:, :length], b.k[:, :length])
            assert torch.equal(a.v[:, :length], b.v[:, :length])
        else:
            assert torch.equal(a.recurrent, b.recurrent)
            assert torch.equal(a.conv_window, b.conv_window)
    if isinstance(warm.draft, MtpDraft):
        rows = length - 1
        assert warm.draft.length == cold.draft.length == rows
        assert torch.equal(warm.draft.kv.k[:, :rows], cold.draft.kv.k[:, :rows])
        assert torch.equal(warm.draft.kv.v[:, :rows], cold.draft.kv.v[:, :rows])
    if isinstance(warm.draft, NgramDraft):
        assert warm.draft.ids == cold.draft.ids
        assert warm.draft._ends == cold.draft._ends


class TestWarmIsCold:
    @pytest.mark.parametrize("snapshots", [1, 2, 5, 1000])
    @pytest.mark.parametrize("draft", DRAFTS)
    @settings(max_examples=6, deadline=None)
    @given(seed=st.integers(0, 2**32))
    def test_any_order_of_related_prompts(
        self, model: Model, draft: str, snapshots: int, seed: int
    ) -> None:
        """E01: branches, edits, cuts back, repeats; with answers between them."""
        choose = random.Random(seed)
        warm, cold = model.reader(draft, snapshots=snapshots), model.reader(draft, snapshots=0)
        earlier: list[list[int]] = []
        for _ in range(7):
            prompt = related(choose, earlier)
            earlier.append(prompt)
            before = warm.executor.rows
            got, expected = warm.read(prompt), cold.read(prompt)
            assert torch.equal(got, expected)
            assert_same(warm, cold, len(prompt))
            assert cold.cached_tokens == 0
            assert warm.cached_tokens == len(prompt) - (warm.executor.rows - before)
            assert warm.kept_bytes <= snapshots * warm.executor.snapshot_bytes
            decode(warm, choose, choose.randint(0, 4))

    @pytest.mark.parametrize("draft", DRAFTS)
    @pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
    def test_prompts_as_short_as_the_conv_window(
        self, model: Model, draft: str, length: int
    ) -> None:
        """E05, with a hit at the end of every one of them."""
        warm, cold = model.reader(draft), model.reader(draft, snapshots=0)
        prompt = list(range(10, 10 + length))
        for cached in (0, length, length):
            assert torch.equal(warm.read(prompt), cold.read(prompt))
            assert warm.cached_tokens == cached
            assert_same(warm, cold, length)
            decode(warm, random.Random(1), 3)

    def test_an_edit_just_before_and_just_behind_each_cut(self, model: Model) -> None:
        prompt = some_ids(random.Random(3), 120)
        stops = cuts(prompt, chunk=CHUNK, floor=FLOOR, turn_starts={TURN})
        assert len(stops) > 8
        for stop in stops:
            for place in (stop - 1, stop, stop + 1):
                warm, cold = model.reader(), model.reader(snapshots=0)
                warm.read(prompt)
                edited = [*prompt[:place], 9, *prompt[place + 1 :]]
                assert torch.equal(warm.read(edited), cold.read(edited))
                assert warm.cached_tokens <= place
                # An edit that starts or ends a turn may move this cut, never an earlier one.
                before = [cut for cut in stops if cut < place]
                assert warm.cached_tokens >= (before[-1] if before else 0)

    def test_a_prompt_that_ends_at_a_cut_of_a_longer_one(self, model: Model) -> None:
        prompt = some_ids(random.Random(4), 60)
        warm, cold = model.reader("mtp"), model.reader("mtp", snapshots=0)
        warm.read(prompt)
        for stop in reversed(cuts(prompt, chunk=CHUNK, floor=FLOOR, turn_starts={TURN})):
            assert torch.equal(warm.read(prompt[:stop]), cold.read(prompt[:stop]))
            assert warm.cached_tokens == stop
            assert_same(warm, cold, stop)

    def test_an_end_that_is_no_cut_of_the_next_prompt_is_no_hit(self, model: Model) -> None:
        """Going on from there would cut the prompt as no cold run does."""
        prompt = list(range(10, 10 + CHUNK + 7))
        warm, cold = model.reader(), model.reader(snapshots=0)
        warm.read(prompt)
        longer = prompt + list(range(50, 60))
        assert torch.equal(warm.read(longer), cold.read(longer))
        assert warm.cached_tokens == CHUNK
        # Its KV was written again on the way, in other passes: the old end is void.
        assert torch.equal(warm.read(prompt), cold.read(prompt))
        assert warm.cached_tokens == CHUNK


class TestCost:
    @pytest.mark.parametrize("draft", DRAFTS)
    def test_a_turn_costs_what_is_new(self, model: Model, draft: str) -> None:
        """E02: rows counted, not times. From the last cut on, which lies before a turn's start."""
        reader, choose = model.reader(draft), random.Random(6)
        prompt = some_ids(choose, 30)
        reader.read(prompt)
        for _ in range(12):
            old = len(prompt)
            answer = [choose.randrange(10, 150) for _ in range(6)]
            prompt = [*prompt, *answer, TURN, *(choose.randrange(10, 150) for _ in range(9)), TURN]
            prompt += [11, 12]
            rows = reader.processed(prompt)
            assert reader.cached_tokens == len(prompt) - rows
            assert rows <= len(prompt) - old + CHUNK
            decode(reader, choose, 3)
        assert reader.processed(prompt) == 0
        assert reader.cached_tokens == len(prompt)

    def test_nothing_is_kept_with_a_budget_of_0(self, model: Model) -> None:
        reader, prompt = model.reader(snapshots=0), some_ids(random.Random(6), 50)
        assert [reader.processed(prompt), reader.processed(prompt)] == [50, 50]
        assert reader.cached_tokens == reader.kept_bytes == 0

    def test_a_budget_that_shrank_below_one_state_keeps_none(self, model: Model) -> None:
        """As the memory plan shrinks it where the context needs the room."""
        executor = model.reader().executor
        reader = PromptReader(executor, snapshot_bytes=executor.snapshot_bytes - 1)
        reader.read([5, 6, 7])
        assert reader.kept_bytes == 0

    def test_the_size_of_a_snapshot_is_known_beforehand(self, model: Model) -> None:
        reader = model.reader()
        reader.read([5, 6, 7])
        assert reader.kept_bytes == reader.executor.snapshot_bytes > 0

    def test_a_long_conversation_in_bounded_memory(self, model: Model) -> None:
        """E03: 300 turns, each within the budget at every moment; then the longest prompt."""
        budget, max_len = 4, 4000
        reader = model.reader("mtp", snapshots=budget, max_len=max_len)
        snapshot, choose, most = reader.executor.snapshot, random.Random(8), 0

        def watched() -> Snapshot:
            nonlocal most
            taken = snapshot()
            most = max(most, reader.kept_bytes + taken.num_bytes)
            return taken

        reader.executor.snapshot = watched  # type: ignore[method-assign]
        prompt = some_ids(choose, 20)
        reader.read(prompt)
        for _ in range(300):
            prompt += [*some_ids(choose, 4), TURN, *some_ids(choose, 5), TURN, 11]
            rows = reader.processed(prompt)
            assert reader.cached_tokens == len(prompt) - rows
            assert rows <= 11 + 2 * CHUNK
        assert most == budget * reader.executor.snapshot_bytes
        longest = (prompt + some_ids(choose, max_len))[:max_len]
        cold = model.reader("mtp", snapshots=0, max_len=max_len)
        assert torch.equal(reader.read(longest), cold.read(longest))
        assert reader.cached_tokens >= len(prompt) - 2 * CHUNK

    def test_a_branch_far_back_costs_in_proportion(self, model: Model) -> None:
        """With few snapshots, those of a long prompt lie the sparser, the further back."""
        prompt = [choose_id % 140 + 10 for choose_id in range(390)]
        for place in range(20, 380, 30):
            reader = model.reader(snapshots=6)
            reader.read(prompt)
            branch = [*prompt[:place], 9, *prompt[place:]][:MAX_LEN]
            assert reader.processed(branch) <= 3 * (len(branch) - place) + CHUNK


class TestTrouble:
    @pytest.mark.parametrize("draft", DRAFTS)
    @pytest.mark.parametrize("failing", [0, 1, 2, 4])
    def test_a_failure_in_mid_prompt(self, model: Model, draft: str, failing: int) -> None:
        """E07: that request fails, the next ones are right, and hits are real."""
        choose = random.Random(9)
        warm, cold = model.reader(draft), model.reader(draft, snapshots=0)
        first = some_ids(choose, 40)
        warm.read(first)
        longer = first + some_ids(choose, 90)
        warm.executor.fail_in = failing
        with pytest.raises(torch.OutOfMemoryError):
            warm.read(longer)
        for prompt in (longer, first, longer[:100]):
            before = warm.executor.rows
            assert torch.equal(warm.read(prompt), cold.read(prompt))
            assert_same(warm, cold, len(prompt))
            assert warm.cached_tokens == len(prompt) - (warm.executor.rows - before)

    def test_what_was_read_before_the_failure_is_not_read_again(self, model: Model) -> None:
        reader, prompt = model.reader(), some_ids(random.Random(9), 130)
        stops = cuts(prompt, chunk=CHUNK, floor=FLOOR, turn_starts={TURN})
        reader.executor.fail_in = 5
        with pytest.raises(torch.OutOfMemoryError):
            reader.read(prompt)
        assert reader.processed(prompt) == len(prompt) - stops[4]

    def test_a_state_that_cannot_be_kept_costs_time_only(
        self, model: Model, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """E03: what saves time never takes a request the memory that it needs."""
        reader, cold = model.reader(), model.reader(snapshots=0)
        prompt = some_ids(random.Random(9), 130)

        def fail() -> Snapshot:
            raise torch.OutOfMemoryError("out of memory, for the test")

        with monkeypatch.context() as patched:
            patched.setattr(reader.executor, "snapshot", fail)
            assert torch.equal(reader.read(prompt), cold.read(prompt))
        assert reader.kept_bytes == 0
        assert reader.processed(prompt) == len(prompt)
        assert reader.processed(prompt) == 0

    @pytest.mark.parametrize("where", ["snapshot", "restore", "reset"])
    def test_a_failure_while_state_is_moved(
        self, model: Model, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        warm, cold = model.reader("mtp"), model.reader("mtp", snapshots=0)
        first = some_ids(random.Random(10), 70)
        second = first[:50] + some_ids(random.Random(11), 40)
        new = some_ids(random.Random(12), 40)
        warm.read(first)

        def fail(*args: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(warm.executor, where, fail)
            with pytest.raises(KeyboardInterrupt):
                warm.read(new if where == "reset" else second)
        for prompt in (second, new, first):
            assert torch.equal(warm.read(prompt), cold.read(prompt))
            assert_same(warm, cold, len(prompt))

    @pytest.mark.parametrize("name", ["mtp", "ngram"])
    def test_a_draft_that_fails(
        self, model: Model, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        warm, cold = model.reader(name), model.reader(name, snapshots=0)
        first = some_ids(random.Random(10), 70)
        warm.read(first)
        longer = first + some_ids(random.Random(11), 60)
        for calls in range(6):
            observe, left = type(warm.draft).observe, calls

            def failing(ids: Sequence[int], hidden: Any, observe: Any = observe) -> None:
                nonlocal left
                if left == 0:
                    raise RuntimeError("the draft failed")
                left -= 1
                observe(warm.draft, ids, hidden)

            with monkeypatch.context() as patched:
                patched.setattr(warm.draft, "observe", failing)
                with pytest.raises(RuntimeError, match="the draft failed"):
                    warm.read(longer)
            for prompt in (longer, first):
                assert torch.equal(warm.read(prompt), cold.read(prompt))
                assert_same(warm, cold, len(prompt))

    def test_numbers_that_are_not_finite_are_not_kept(self, model: Model) -> None:
        reader, cold = model.reader(), model.reader(snapshots=0)
        prompt = some_ids(random.Random(13), 60)
        weight = model.weights.layers[0].mlp.down_proj
        sound = weight.clone()
        weight.fill_(float("nan"))
        assert reader.read(prompt).isnan().all()
        weight.copy_(sound)
        assert torch.equal(reader.read(prompt), cold.read(prompt))
        assert reader.cached_tokens == 0

    def test_scoring_takes_the_sequence(self, model: Model) -> None:
        reader, cold = model.reader(), model.reader(snapshots=0)
        prompt = some_ids(random.Random(14), 60)
        reader.read(prompt)
        reader.executor.score(some_ids(random.Random(15), 80))
        assert torch.equal(reader.read(prompt), cold.read(prompt))
        assert reader.cached_tokens == 0
        assert_same(reader, cold, len(prompt))

    def test_two_readers_of_one_executor(self, model: Model) -> None:
        cold, choose = model.reader(snapshots=0), random.Random(16)
        one = model.reader()
        other = PromptReader(one.executor, turn_starts={TURN})
        prompts = [some_ids(choose, 60), some_ids(choose, 60)]
        for reader, index in ((one, 0), (other, 0), (one, 0), (one, 1), (other, 0), (other, 1)):
            assert torch.equal(reader.read(prompts[index]), cold.read(prompts[index]))

    def test_a_draft_that_cannot_go_back_switches_reuse_off(self, model: Model) -> None:
        class Silent:
            name = "silent"

            def begin(self, first_id: int) -> None:
                self.seen = [first_id]

            def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
                self.seen += next_ids

            def propose(self, count: int, sampler: object) -> Proposal:
                return Proposal(())

        draft, prompt = Silent(), some_ids(random.Random(17), 60)
        reader = PromptReader(model.reader().executor, draft, turn_starts={TURN})
        for _ in range(2):
            reader.read(prompt)
            assert reader.cached_tokens == reader.kept_bytes == 0
            assert draft.seen == prompt


def test_the_scripted_executor_goes_back_too() -> None:
    steps = [[5], [6, 7], [8]]
    draft = ScriptedDraft(steps)
    reader = PromptReader(ScriptedExecutor(steps, 40), draft, turn_starts={TURN})
    prompt = [*range(10, 39), *range(10, 39), TURN, 11]
    for cached in (0, len(prompt)):
        assert int(reader.read(prompt).argmax()) == 5
        assert reader.cached_tokens == cached
        assert reader.executor.position == len(prompt)
        assert draft.observed == prompt
    assert int(reader.read([*prompt, 9, TURN, 12]).argmax()) == 5
    assert reader.cached_tokens == 58
    assert draft.observed == [*prompt, 9, TURN, 12]
