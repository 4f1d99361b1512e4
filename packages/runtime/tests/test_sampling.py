import math
from collections import Counter

import numpy as np
import pytest
import torch
from bytebound.errors import InvalidRequestError, NonFiniteLogitsError
from bytebound.philox import Purpose
from bytebound.sampling import Sampler, SamplingParams
from hypothesis import given, settings
from hypothesis import strategies as st

VOCAB = 8
ROW = torch.tensor([1.0, 3.0, -2.0, 3.0, 0.0, 2.0, -1.0, 0.5])


def sampler(prompt=(), end_ids=frozenset(), seed=0, vocab=VOCAB, **params):
    return Sampler(SamplingParams(**params), list(prompt), vocab, frozenset(end_ids), seed)


class TestParams:
    def test_defaults(self):
        params = SamplingParams()
        assert (params.max_tokens, params.temperature, params.top_p) == (256, 0.0, 1.0)
        assert params.greedy
        assert SamplingParams(32, 0.7, 0.9, 20, 0.1).min_p == 0.1

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *(("max_tokens", value) for value in (-1, 1.5, "3", True, None, math.nan)),
            *(("temperature", value) for value in (-0.1, math.nan, math.inf, "1", None, True)),
            *(("top_p", value) for value in (0, -1, 1.01, math.nan, None, [0.5])),
            *(("top_k", value) for value in (-1, 2.0, True, "5", None)),
            *(("min_p", value) for value in (-0.1, 1.1, math.nan)),
            *(("repetition_penalty", value) for value in (0, -1, math.nan, math.inf, 10**400)),
            *(("presence_penalty", value) for value in (-2.1, 2.1, math.nan, -math.inf)),
            *(("frequency_penalty", value) for value in (-2.1, 2.1, math.nan, "1")),
            *(("logit_bias", value) for value in ([1], {1: 101}, {1: math.nan}, {-1: 1})),
            *(("logit_bias", value) for value in ({"1": 1}, {True: 1}, {1: True}, {1.0: 1})),
            *(("seed", value) for value in (1.0, "1", True, 2**64, -(2**63) - 1)),
            *(("stop", value) for value in ("", [""], ["a", 1], b"a", 3, {"a": 1}, None)),
            *(("stop_token_ids", value) for value in (3, "3", b"3", [-1], [1.0], [True], None)),
            *(("ignore_eos", value) for value in (1, 0, "true", None)),
            *(("min_tokens", value) for value in (-1, 0.0, True)),
            *(("logprobs", value) for value in (-1, 1.0, True, "1")),
        ],
    )
    def test_a_wrong_value_names_field_value_and_range(self, field, value):
        with pytest.raises(InvalidRequestError, match=rf"^{field}: got .+, expected "):
            SamplingParams(**{field: value})

    def test_min_tokens_above_max_tokens(self):
        with pytest.raises(InvalidRequestError, match=r"min_tokens: got 5.*max_tokens, which is 4"):
            SamplingParams(max_tokens=4, min_tokens=5)
        assert SamplingParams(max_tokens=4, min_tokens=4).min_tokens == 4

    def test_numpy_values_become_python_values(self):
        params = SamplingParams(
            max_tokens=np.int64(5),
            temperature=np.float32(0.5),
            top_k=np.uint8(3),
            seed=np.int32(-4),
            stop_token_ids=np.array([1, 2]),
            ignore_eos=np.bool_(True),
            logit_bias={np.int64(1): np.float64(2)},
        )
        assert (params.max_tokens, params.temperature, params.top_k) == (5, 0.5, 3)
        assert (params.seed, params.stop_token_ids, params.ignore_eos) == (-4, (1, 2), True)
        values = (params.max_tokens, params.temperature, params.seed, params.ignore_eos)
        assert [type(value) for value in values] == [int, float, int, bool]
        assert params.logit_bias == {1: 2.0}
        with pytest.raises(InvalidRequestError, match="top_k"):
            SamplingParams(top_k=np.bool_(True))

    def test_one_stop_string_is_a_list_of_one(self):
        assert SamplingParams(stop="ab").stop == ("ab",)
        assert SamplingParams(stop=["ab", "c"]).stop == ("ab", "c")

    def test_whole_numbers_pass_for_real_ones(self):
        assert SamplingParams(temperature=1, top_p=1, min_p=0).temperature == 1.0

    def test_the_callers_bias_is_copied(self):
        bias = {1: 2.0}
        params = SamplingParams(logit_bias=bias)
        bias[1] = 9.0
        assert params.logit_bias == {1: 2.0}

    def test_ids_are_checked_against_the_vocabulary(self):
        SamplingParams(logit_bias={7: 1}, stop_token_ids=[7], logprobs=8).check_vocab(8)
        for wrong in ({"logit_bias": {8: 1}}, {"stop_token_ids": [1, 8]}, {"logprobs": 9}):
            with pytest.raises(InvalidRequestError, match=f"^{next(iter(wrong))}: got "):
                SamplingParams(**wrong).check_vocab(8)


class TestLogits:
    def test_nothing_set_returns_the_row_itself(self):
        assert sampler().logits(ROW) is ROW

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_logits_that_are_not_finite(self, bad):
        row = ROW.clone()
        row[4] = bad
        for method in (sampler().logits, sampler(temperature=1).probs, sampler().argmax):
            with pytest.raises(NonFiniteLogitsError):
                method(row)

    def test_bias(self):
        row = sampler(logit_bias={2: 10, 0: -1.5}).logits(ROW)
        assert row.tolist() == [-0.5, 3.0, 8.0, 3.0, 0.0, 2.0, -1.0, 0.5]
        assert ROW[2] == -2.0

    def test_a_bias_of_minus_100_bans(self):
        row = torch.tensor([0.0, 1000.0, 0.0])
        banned = sampler(vocab=3, logit_bias={1: -100}, temperature=1.0)
        assert banned.argmax(row) == 0
        assert banned.probs(row)[1] == 0
        assert banned.draft_probs(row)[1] == 0

    def test_repetition_over_prompt_and_completion(self):
        state = sampler(prompt=[1, 2], repetition_penalty=2.0)
        assert state.logits(ROW).tolist() == [1.0, 1.5, -4.0, 3.0, 0.0, 2.0, -1.0, 0.5]
        state.append(3)
        state.append(3)
        assert state.logits(ROW)[3] == 1.5

    def test_presence_and_frequency_over_the_completion_only(self):
        state = sampler(prompt=[0, 0, 1], presence_penalty=0.5, frequency_penalty=0.25)
        assert torch.equal(state.logits(ROW), ROW)
        for token in (1, 1, 5):
            state.append(token)
        assert state.logits(ROW).tolist() == [1.0, 2.0, -2.0, 3.0, 0.0, 1.25, -1.0, 0.5]

    def test_bias_comes_before_the_penalties(self):
        state = sampler(
            prompt=[4], logit_bias={4: 4.0}, repetition_penalty=2.0, presence_penalty=0.5
        )
        state.append(4)
        assert state.logits(ROW)[4] == 1.5

    def test_end_ids_are_masked_until_min_tokens(self):
        state = sampler(end_ids={1, 99}, min_tokens=2)
        for _ in range(2):
            assert state.logits(ROW)[1] == -math.inf
            assert state.argmax(ROW) == 3
            state.append(3)
        assert state.logits(ROW)[1] == 3.0

    def test_nothing_left_to_choose(self):
        state = sampler(vocab=2, logit_bias={0: -100}, end_ids={1}, min_tokens=1)
        with pytest.raises(InvalidRequestError, match="no token is left"):
            state.argmax(ROW[:2])

    @pytest.mark.parametrize("penalty", [5e-324, 1e-30, 1e30, 1.7e308])
    @pytest.mark.parametrize("scale", [0.0, 1.0, 1e30])
    def test_an_extreme_penalty_stays_finite(self, penalty, scale):
        state = sampler(prompt=range(VOCAB), repetition_penalty=penalty, temperature=1.0)
        assert state.logits(ROW * scale).isfinite().all()
        assert float(state.probs(ROW * scale).sum()) == pytest.approx(1)


class TestProbs:
    def test_temperature(self):
        got = sampler(temperature=0.7).probs(ROW)
        assert got.dtype == torch.float64
        assert torch.allclose(got, torch.softmax(ROW.double() / 0.7, 0))

    @pytest.mark.parametrize("temperature", [1e-6, 1e-300, 5e-324])
    def test_a_tiny_temperature_shares_between_the_highest(self, temperature):
        got = sampler(temperature=temperature).probs(ROW * 1e4)
        assert got.tolist() == [0, 0.5, 0, 0.5, 0, 0, 0, 0]

    @pytest.mark.parametrize("temperature", [1e6, 1e300])
    def test_a_huge_temperature_is_uniform(self, temperature):
        got = sampler(temperature=temperature).probs(ROW)
        assert torch.allclose(got, torch.full((VOCAB,), 1 / VOCAB, dtype=torch.float64))

    @pytest.mark.parametrize(
        ("top_k", "kept"),
        [
            (1, {1}),
            (2, {1, 3}),
            (3, {1, 3, 5}),
            (8, set(range(8))),
            (9, set(range(8))),
            (0, set(range(8))),
        ],
    )
    def test_top_k(self, top_k, kept):
        got = sampler(temperature=1.0, top_k=top_k).probs(ROW)
        assert set(torch.nonzero(got).flatten().tolist()) == kept
        assert float(got.sum()) == pytest.approx(1)

    def test_top_p_keeps_the_smallest_set_that_reaches_it(self):
        row = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
        for top_p, kept in (
            (0.01, {1}),
            (0.39, {1}),
            (0.41, {1, 3}),
            (0.69, {1, 3}),
            (0.71, {1, 2, 3}),
        ):
            got = sampler(temperature=1.0, top_p=top_p, vocab=4).probs(row)
            assert set(torch.nonzero(got).flatten().tolist()) == kept

    def test_ties_go_to_the_lowest_ids(self):
        flat = torch.zeros(1000)
        for params in ({"top_k": 4}, {"top_p": 0.0035}):
            got = sampler(temperature=1.0, vocab=1000, **params).probs(flat)
            assert torch.nonzero(got).flatten().tolist() == [0, 1, 2, 3]

    def test_min_p_is_relative_to_the_likeliest(self):
        row = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
        got = sampler(temperature=1.0, min_p=0.6, vocab=4).probs(row)
        assert set(torch.nonzero(got).flatten().tolist()) == {1, 3}
        assert sampler(temperature=1.0, min_p=1.0, vocab=4).probs(row)[1] == 1

    def test_top_p_counts_within_top_k(self):
        row = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
        got = sampler(temperature=1.0, top_k=2, top_p=0.5, vocab=4).probs(row)
        assert got.tolist() == [1, 0, 0, 0]

    def test_greedy_is_certain(self):
        assert sampler().probs(ROW).tolist() == [0, 1, 0, 0, 0, 0, 0, 0]

    def test_a_draft_sees_no_history(self):
        state = sampler(
            prompt=[1],
            temperature=0.5,
            top_k=3,
            repetition_penalty=3.0,
            presence_penalty=1.0,
            logit_bias={4: 5.0},
            end_ids={4},
            min_tokens=3,
        )
        plain = sampler(temperature=0.5, top_k=3, logit_bias={4: 5.0})
        state.append(4)
        assert torch.equal(state.draft_probs(ROW), plain.probs(ROW))
        assert not torch.equal(state.probs(ROW), plain.probs(ROW))

    def test_a_draft_may_know_fewer_ids(self):
        row = ROW.clone()
        row[1] = -math.inf
        got = sampler(temperature=1.0, top_p=0.99).draft_probs(row)
        assert got[1] == 0
        assert float(got.sum()) == pytest.approx(1)
        only = torch.full((VOCAB,), -math.inf)
        only[2] = 1.0
        assert sampler(temperature=1.0, logit_bias={2: -100}).draft_probs(only) is None
        with pytest.raises(NonFiniteLogitsError):
            sampler(temperature=1.0).draft_probs(torch.full((VOCAB,), math.nan))

    @settings(max_examples=60)
    @given(
        st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=30),
        st.floats(1e-3, 5),
        st.integers(0, 40),
        st.floats(0.01, 1),
        st.floats(0, 1),
    )
    def test_always_a_distribution_over_the_likeliest(
        self, values, temperature, top_k, top_p, min_p
    ):
        row = torch.tensor(values)
        state = sampler(
            vocab=len(values), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
        )
        got = state.probs(row)
        kept = got > 0
        assert float(got.sum()) == pytest.approx(1)
        assert kept[row.argmax()]
        if top_k:
            assert int(kept.sum()) <= top_k
        assert (got >= 0).all()
        if (~kept).any() and temperature > 0.1:
            assert row[kept].min() >= row[~kept].max()


class TestChoice:
    def test_greedy_takes_the_lowest_id_of_equals(self):
        assert sampler().choose(ROW, 0) == 1
        assert sampler(vocab=50_000).argmax(torch.zeros(50_000)) == 0

    def test_the_draw_inverts_the_cdf_in_id_order(self, monkeypatch):
        state = sampler(temperature=1.0, vocab=4)
        probs = torch.tensor([0.0, 0.25, 0.0, 0.75], dtype=torch.float64)
        for number, token in ((0.0, 1), (0.2499, 1), (0.25, 3), (1 - 2**-53, 3)):
            monkeypatch.setattr(state, "uniform", lambda position, purpose, n=number: n)
            assert state.draw(probs, 0, Purpose.TARGET) == token
            assert state.draw(probs * 0.37, 0, Purpose.TARGET) == token

    def test_a_draw_never_takes_what_has_no_probability(self, monkeypatch):
        state = sampler(temperature=1.0, vocab=4)
        monkeypatch.setattr(state, "uniform", lambda position, purpose: 1 - 2**-53)
        for tail in range(1, 200):
            probs = torch.tensor([0.0, tail / 7, tail / 3, 0.0], dtype=torch.float64)
            assert state.draw(probs, 0, Purpose.TARGET) == 2

    def test_nothing_to_draw_from(self):
        for total in (0.0, math.nan):
            with pytest.raises(ValueError, match="cannot draw"):
                sampler(temperature=1.0).draw(torch.full((VOCAB,), total), 0, Purpose.TARGET)

    def test_the_draw_depends_on_seed_position_and_purpose_alone(self):
        first, other = sampler(temperature=5.0, seed=1), sampler(temperature=5.0, seed=2)
        before = [first.choose(ROW, position) for position in range(50)]
        for position in range(50):
            first.draw(first.probs(ROW), position, Purpose.DRAFT)
        assert [first.choose(ROW, position) for position in range(50)] == before
        assert [other.choose(ROW, position) for position in range(50)] != before

    def test_draws_follow_the_distribution(self):
        state = sampler(temperature=0.7, top_p=0.95, top_k=6, seed=3)
        probs = state.probs(ROW)
        draws = 20_000
        counts = Counter(state.draw(probs, i, Purpose.TARGET) for i in range(draws))
        kept = torch.nonzero(probs).flatten().tolist()
        assert set(counts) <= set(kept)
        expected = [draws * float(probs[i]) for i in kept]
        chi_square = sum((counts[i] - e) ** 2 / e for i, e in zip(kept, expected, strict=True))
        # At most 5 degrees of freedom: the 0.001 quantile is 20.5.
        assert chi_square < 20.5


class TestLogprob:
    def test_the_models_own_distribution(self):
        expected = torch.log_softmax(ROW.double(), 0)
        for params in ({}, {"temperature": 2.0, "top_k": 1}, {"repetition_penalty": 2.0}):
            state = sampler(prompt=[1], logprobs=3, logit_bias={1: -100}, **params)
            entry = state.token_logprob(ROW, 5)
            assert entry.logprob == pytest.approx(float(expected[5]))
            assert [token for token, _ in entry.top] == [1, 3, 5]
            assert [value for _, value in entry.top] == pytest.approx(expected[[1, 3, 5]].tolist())

    def test_the_chosen_token_is_always_listed(self):
        entry = sampler(logprobs=2).token_logprob(ROW, 2)
        assert [token for token, _ in entry.top] == [1, 3, 2]
        assert entry.top[-1] == (2, entry.logprob)
        assert sampler(logprobs=0).token_logprob(ROW, 2).top == ((2, entry.logprob),)

    def test_all_ids_sum_to_one(self):
        entry = sampler(logprobs=VOCAB).token_logprob(ROW, 0)
        assert len(entry.top) == VOCAB
        assert math.fsum(math.exp(value) for _, value in entry.top) == pytest.approx(1)

    def test_ties_by_id(self):
        entry = sampler(logprobs=3, vocab=500).token_logprob(torch.zeros(500), 400)
        assert [token for token, _ in entry.top] == [0, 1, 2, 400]
