"""Whatever a draft guesses, tokens are distributed as the target says: chi-square with fixed seeds.

The target is a table: one row of logits for the first token and one per first token for the second.
The exact probabilities of all pairs are computed here, from the definitions of the parameters.
"""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from bytebound import Engine, Proposal, SamplingParams
from bytebound.executor import Observer
from bytebound.philox import Purpose
from bytebound.sampling import Sampler
from bytebound.speculation import accept

VOCAB = 6
PROMPT = [0]
DRAWS = 15_000
SIGNIFICANCE = 0.001

Propose = Callable[[int | None, Sampler, int], Proposal]

_GENERATOR = torch.Generator().manual_seed(4)
FIRST = torch.randn(VOCAB, generator=_GENERATOR) * 1.5
SECOND = torch.randn(VOCAB, VOCAB, generator=_GENERATOR) * 1.5
# What the draft believes: related to the target, and often wrong.
BELIEF_FIRST = FIRST + torch.randn(VOCAB, generator=_GENERATOR)
BELIEF_SECOND = SECOND + torch.randn(VOCAB, VOCAB, generator=_GENERATOR)

PARAMS = {
    "T=1": {"temperature": 1.0},
    "T=0.7,top_p=0.8,top_k=4": {"temperature": 0.7, "top_p": 0.8, "top_k": 4},
    "T=1.5,top_p=0.9": {"temperature": 1.5, "top_p": 0.9},
    "T=2,min_p=0.2,bias": {"temperature": 2.0, "min_p": 0.2, "logit_bias": {1: 2.0, 3: -100}},
}


def row_after(last: int | None, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return first if last is None else second[last]


class RememberingSampler(Sampler):
    """Computes the distribution of each table row once: thousands of draws ask for it."""

    memory: dict[int, torch.Tensor]

    def probs(self, raw: torch.Tensor) -> torch.Tensor:
        return self._remember(raw, super().probs)

    def draft_probs(self, raw: torch.Tensor) -> torch.Tensor:
        return self._remember(raw, super().draft_probs)

    def _remember(
        self, raw: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        if raw.data_ptr() not in self.memory:
            self.memory[raw.data_ptr()] = compute(raw)
        return self.memory[raw.data_ptr()]


def drawn(last: int | None, sampler: Sampler, position: int) -> Proposal:
    """One guess from the draft's own distribution."""
    probs = sampler.draft_probs(row_after(last, BELIEF_FIRST, BELIEF_SECOND))
    return Proposal((sampler.draw(probs, position, Purpose.DRAFT),), probs[None])


def picked(last: int | None, sampler: Sampler, position: int) -> Proposal:
    """One guess that is no draw: the draft's favourite."""
    return Proposal((int(row_after(last, BELIEF_FIRST, BELIEF_SECOND).argmax()),))


def nothing(last: int | None, sampler: Sampler, position: int) -> Proposal:
    return Proposal(())


def misstated(last: int | None, sampler: Sampler, position: int) -> Proposal:
    """A guess whose stated distribution is not the one it was drawn from."""
    return Proposal(drawn(last, sampler, position).ids, torch.full((1, VOCAB), 1 / VOCAB).double())


def draw_pairs(params: SamplingParams, propose: Propose, *, draws: int = DRAWS) -> torch.Tensor:
    """How often each pair of first tokens came, [VOCAB, VOCAB], one request per seed."""
    counts = torch.zeros(VOCAB, VOCAB, dtype=torch.float64)
    # Penalties make a distribution depend on history: then nothing can be remembered.
    plain = params.repetition_penalty == 1 and params.presence_penalty == 0
    memory: dict[int, torch.Tensor] = {}
    for seed in range(draws):
        sampler = (RememberingSampler if plain else Sampler)(
            params, PROMPT, VOCAB, frozenset(), seed
        )
        if isinstance(sampler, RememberingSampler):
            sampler.memory = memory
        tokens: list[int] = []
        while len(tokens) < 2:
            last = tokens[-1] if tokens else None
            proposal = propose(last, sampler, 1 + len(tokens))
            # A list, not a copy: the sampler remembers rows by their place in the table.
            rows = [row_after(before, FIRST, SECOND) for before in (last, *proposal.ids)]
            tokens += accept(proposal, rows, sampler, 1 + len(tokens))
        counts[tokens[0], tokens[1]] += 1
    return counts


def exact_pairs(params: SamplingParams) -> torch.Tensor:
    """Probability of each pair [VOCAB, VOCAB], by the documented order of the parameters."""
    first = exact(FIRST, params, PROMPT, [])
    return torch.stack(
        [first[i] * exact(SECOND[i], params, [*PROMPT, i], [i]) for i in range(VOCAB)]
    )


def exact(
    row: torch.Tensor, params: SamplingParams, seen: Sequence[int], generated: Sequence[int]
) -> torch.Tensor:
    values = row.double().tolist()
    for i in range(VOCAB):
        bias = (params.logit_bias or {}).get(i, 0.0)
        values[i] = -math.inf if bias == -100 else values[i] + bias
        if i in seen:
            scale = params.repetition_penalty
            values[i] = values[i] / scale if values[i] > 0 else values[i] * scale
        if i in generated:
            values[i] -= params.presence_penalty
    weights = [math.exp(value / params.temperature) for value in values]
    order = sorted(range(VOCAB), key=lambda i: (-weights[i], i))
    if params.top_k:
        order = order[: params.top_k]
    total = sum(weights[i] for i in order)
    kept, reached = [], 0.0
    for i in order:
        if reached < params.top_p * total:
            kept.append(i)
        reached += weights[i]
    kept = [i for i in kept if weights[i] >= params.min_p * weights[order[0]]]
    probs = torch.zeros(VOCAB, dtype=torch.float64)
    for i in kept:
        probs[i] = weights[i] / sum(weights[j] for j in kept)
    return probs


def p_value(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """Chance of a chi-square at least this large; cells that expect under 5 are taken together."""
    counts, expected = counts.flatten(), expected.flatten() * counts.sum()
    if (counts[expected == 0] > 0).any():
        return 0.0
    small = expected < 5
    observed = torch.cat((counts[~small], counts[small].sum()[None]))
    wanted = torch.cat((expected[~small], expected[small].sum()[None]))
    used = wanted > 0
    observed, wanted = observed[used], wanted[used]
    chi_square = ((observed - wanted) ** 2 / wanted).sum()
    freedom = torch.tensor((len(wanted) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, chi_square / 2))


@pytest.mark.parametrize("propose", [drawn, picked])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
def test_pairs_follow_the_target_whatever_the_draft_guesses(
    params: dict[str, float], propose: Propose
) -> None:
    wanted = SamplingParams(**params)
    assert p_value(draw_pairs(wanted, propose), exact_pairs(wanted)) > SIGNIFICANCE


def test_pairs_follow_the_target_without_a_draft() -> None:
    params = SamplingParams(temperature=0.7, top_p=0.8, top_k=4)
    assert p_value(draw_pairs(params, nothing, draws=5_000), exact_pairs(params)) > SIGNIFICANCE


@pytest.mark.parametrize("propose", [drawn, picked])
def test_pairs_follow_the_penalties_of_accepted_tokens(propose: Propose) -> None:
    """The second row is penalised by the accepted first token, never by a refused guess."""
    params = SamplingParams(temperature=1.0, repetition_penalty=1.6, presence_penalty=1.0)
    counts = draw_pairs(params, propose, draws=3_000)
    assert p_value(counts, exact_pairs(params)) > SIGNIFICANCE
    without = exact_pairs(SamplingParams(temperature=1.0))
    assert p_value(counts, without) < 1e-9


def test_a_wrong_rule_is_seen() -> None:
    """The statistic tells these rows from those of other rules: the tests above can fail."""
    cold = SamplingParams(temperature=0.7, top_p=0.8, top_k=4)
    warm = SamplingParams(temperature=1.0)
    counts = draw_pairs(warm, drawn, draws=5_000)
    for other in (cold, SamplingParams(temperature=0.9), SamplingParams(temperature=1, top_k=5)):
        assert p_value(counts, exact_pairs(other)) < 1e-6
    belief = torch.softmax(BELIEF_FIRST.double(), 0)[:, None] * torch.softmax(
        BELIEF_SECOND.double(), 1
    )
    assert p_value(counts, belief) < 1e-6
    lying = draw_pairs(warm, misstated, draws=5_000)
    assert p_value(lying, exact_pairs(warm)) < 1e-6


def test_guesses_stand_as_often_as_the_ratio_rule_allows() -> None:
    """sum(min(p, q)), far above what two independent draws would agree on."""
    params = SamplingParams(temperature=1.0)
    stood = 0
    draws = 4_000
    for seed in range(draws):
        sampler = Sampler(params, PROMPT, VOCAB, frozenset(), seed)
        proposal = drawn(None, sampler, 1)
        rows = torch.stack((FIRST, SECOND[proposal.ids[0]]))
        stood += len(list(accept(proposal, rows, sampler, 1))) == 2
    p, q = torch.softmax(FIRST.double(), 0), torch.softmax(BELIEF_FIRST.double(), 0)
    rate = float(torch.minimum(p, q).sum())
    deviation = math.sqrt(rate * (1 - rate) / draws)
    assert abs(stood / draws - rate) < 4 * deviation
    assert stood / draws > float((p * q).sum()) + 10 * deviation


class TableExecutor:
    """The table as a model: each row of logits depends on the last id alone."""

    last_hidden = None
    vocab_size = VOCAB
    max_len = 16
    prefill_chunk = 16
    prefill_floor = 16
    snapshot_bytes = 0
    epoch = 0

    def reset(self) -> None:
        self.position = 0
        self.epoch += 1

    def prefill(self, ids: Sequence[int], observer: Observer | None = None) -> torch.Tensor:
        self.position += len(ids)
        return FIRST

    def verify(self, ids: Sequence[int]) -> torch.Tensor:
        return SECOND[list(ids)]

    def commit(self, count: int) -> None:
        self.position += count

    def score(self, ids: Sequence[int]) -> torch.Tensor:
        return SECOND[list(ids)]


class BelievingDraft:
    """Draws chains of guesses from the draft's table."""

    name = "believing"

    def begin(self, first_id: int) -> None:
        self.position = 1

    def observe(self, next_ids: Sequence[int], hidden: torch.Tensor | None) -> None:
        self.last = next_ids[-1]
        self.position += len(next_ids)

    def propose(self, count: int, sampler: Sampler) -> Proposal:
        ids, probs = [self.last], []
        for depth in range(count):
            probs.append(sampler.draft_probs(BELIEF_SECOND[ids[-1]]))
            ids.append(sampler.draw(probs[-1], self.position + depth, Purpose.DRAFT))
        return Proposal(tuple(ids[1:]), torch.stack(probs))


def test_the_engine_keeps_the_distribution_over_several_drafted_tokens() -> None:
    """Second and third token of four, both inside chains of guesses, against the exact chain."""
    draws = 3_000
    engine = Engine(TableExecutor(), draft=BelievingDraft(), num_draft_tokens=3)
    counts = torch.zeros(VOCAB, VOCAB, dtype=torch.float64)
    accepted = 0
    for seed in range(draws):
        params = SamplingParams(max_tokens=4, temperature=1.0, seed=seed)
        result = engine.generate(PROMPT, params)
        counts[result.token_ids[2], result.token_ids[3]] += 1
        accepted += result.stats.accepted
    step = torch.softmax(SECOND.double(), 1)
    third = torch.softmax(FIRST.double(), 0) @ step @ step
    assert p_value(counts, third[:, None] * step) > SIGNIFICANCE
    assert draws < accepted < 3 * draws
