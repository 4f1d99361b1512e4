"""How many guesses a turn asks for."""

import random

import pytest
from bytebound import Engine, InvalidSettingError
from bytebound.cuda.depth import COST_OF_A_GUESS, AdaptiveDepth, FixedDepth


def after(chances: list[float], turns: int = 200, seed: int = 1) -> list[int]:
    """Depths of the last turns, where guess i stands with chance i."""
    choose, policy = random.Random(seed), AdaptiveDepth(len(chances))
    depths = list[int]()
    for _ in range(turns):
        depth = policy.depth
        depths.append(depth)
        stood = 0
        while stood < depth and choose.random() < chances[stood]:
            stood += 1
        policy.observe(depth, stood)
    return depths[turns // 2 :]


def test_guesses_that_always_stand_are_asked_for() -> None:
    assert set(after([1.0] * 7)) == {7}


def test_guesses_that_never_stand_are_not_but_tried_again() -> None:
    depths = after([0.0] * 7)
    assert set(depths) == {0, 1} and 4 <= sum(depths) <= 7


def test_guesses_that_stand_again_are_found() -> None:
    policy = AdaptiveDepth(4)
    for _ in range(60):
        policy.observe(policy.depth, 0)
    assert policy.depth <= 1
    for _ in range(200):
        policy.observe(policy.depth, policy.depth)
    assert policy.depth == 4


def test_the_depth_follows_the_acceptance() -> None:
    means = [sum(depths) / len(depths) for depths in (after([p] * 7) for p in (0.3, 0.6, 0.9))]
    assert means[0] < means[1] < means[2] and means[0] < 2 and means[2] > 5


def test_a_depth_behind_one_that_falls_is_given_up() -> None:
    depths = after([0.95, 0.95, 0.02, 0.9, 0.9])
    assert sum(depths) / len(depths) == pytest.approx(2, abs=0.3)


def test_what_lies_behind_a_fallen_guess_is_not_learnt_from() -> None:
    policy, other = AdaptiveDepth(3), AdaptiveDepth(3)
    policy.observe(3, 0)
    other.observe(1, 0)
    assert policy._chances == other._chances


def test_a_request_starts_afresh() -> None:
    policy = AdaptiveDepth(5)
    first = policy.depth
    for _ in range(50):
        policy.observe(5, 0)
    assert policy.depth == 0
    policy.begin()
    assert policy.depth == first


def test_a_fixed_depth_stays() -> None:
    policy = FixedDepth(4)
    policy.begin()
    policy.observe(4, 0)
    assert policy.depth == 4 and 0 < COST_OF_A_GUESS < 1


def test_it_is_refused_where_it_would_do_nothing() -> None:
    for settings in ({"backend": "reference"}, {"backend": "reference", "draft": "ngram"}):
        with pytest.raises(InvalidSettingError, match="adaptive_depth=True"):
            Engine.from_pretrained("tiny", adaptive_depth=True, **settings)
