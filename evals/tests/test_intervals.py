import numpy as np
import pytest
from bytebound_evals.intervals import bootstrap_mean, wilson


def test_a_bootstrap_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    draw = np.random.Generator(np.random.PCG64(1))
    covered = 0
    for _ in range(200):
        values = draw.normal(3.0, 1.0, size=60)
        interval = bootstrap_mean(values.tolist(), [1] * 60)
        assert interval is not None
        covered += interval[0] <= 3.0 <= interval[1]
    assert 0.88 <= covered / 200 <= 0.99


def test_an_interval_narrows_with_the_root_of_the_number_of_blocks() -> None:
    draw = np.random.Generator(np.random.PCG64(2))
    widths = []
    for blocks in (50, 5000):
        interval = bootstrap_mean(draw.normal(size=blocks).tolist(), [1] * blocks)
        assert interval is not None
        widths.append(interval[1] - interval[0])
    assert widths[0] / widths[1] == pytest.approx(10, rel=0.3)


def test_blocks_weigh_by_their_size() -> None:
    # Every block has the same mean, whatever its size: there is nothing to be unsure of.
    assert bootstrap_mean([2.0, 20.0, 6.0], [1, 10, 3]) == pytest.approx((2.0, 2.0))


def test_the_same_numbers_give_the_same_interval() -> None:
    assert bootstrap_mean([1.0, 2.0, 4.0], [1, 1, 1]) == bootstrap_mean([1.0, 2.0, 4.0], [1, 1, 1])


def test_fewer_than_two_blocks_have_no_interval() -> None:
    assert bootstrap_mean([1.0], [1]) is None


@pytest.mark.parametrize(
    ("right", "asked", "interval"),
    [
        # Newcombe 1998, table I, method 3.
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0.0, 0.1611)),
        (1, 29, (0.0061, 0.1718)),
    ],
)
def test_wilson_gives_the_published_intervals(
    right: int, asked: int, interval: tuple[float, float]
) -> None:
    assert wilson(right, asked) == pytest.approx(interval, abs=5e-5)


def test_nothing_asked_has_no_interval() -> None:
    assert wilson(0, 0) is None
