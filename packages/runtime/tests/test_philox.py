import numpy as np
import pytest
from bytebound.philox import Purpose, philox4x32, uniform
from hypothesis import given
from hypothesis import strategies as st

ONES = 0xFFFFFFFF


# Known answers of the Random123 distribution, file kat_vectors, "philox4x32 10".
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_known_answers(counter, key, expected):
    assert philox4x32(counter, key) == expected


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.sampled_from(Purpose))
def test_uniform_is_in_range_and_repeatable(seed, position, purpose):
    value = uniform(seed, position, purpose)
    assert 0.0 <= value < 1.0
    assert value == uniform(seed, position, purpose)


def test_largest_words_stay_below_one(monkeypatch):
    monkeypatch.setattr("bytebound.philox.philox4x32", lambda counter, key: (ONES,) * 4)
    assert uniform(0, 0, 0) == 1 - 2**-53


def test_seed_position_and_purpose_all_matter():
    values = {
        uniform(seed, position, purpose)
        for seed in (0, 1, 2**32, 2**64 - 1)
        for position in (0, 1, 2**32)
        for purpose in Purpose
    }
    assert len(values) == 4 * 3 * len(Purpose)


def test_negative_seed_is_taken_modulo_two_to_the_64():
    assert uniform(-1, 5, Purpose.TARGET) == uniform(2**64 - 1, 5, Purpose.TARGET)


@pytest.mark.parametrize("purpose", Purpose)
def test_uniform_over_positions(purpose):
    values = np.array([uniform(7, position, purpose) for position in range(10_000)])
    counts, _ = np.histogram(values, bins=20, range=(0, 1))
    chi_square = float(((counts - 500) ** 2 / 500).sum())
    # 19 degrees of freedom: the 0.001 quantile is 43.8.
    assert chi_square < 43.8
    assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 0.04
