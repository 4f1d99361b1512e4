"""The ops behind the logits on the emulated card: the cases of the GPU tests, at small sizes."""

import pytest

torch = pytest.importorskip("torch")

from . import test_logit_adjust_gpu as adjust  # noqa: E402
from . import test_logprobs_gpu as logprobs  # noqa: E402
from . import test_sample_gpu as sample  # noqa: E402
from . import test_speculative_accept_gpu as accept  # noqa: E402
from . import test_speculative_sample_gpu as speculative  # noqa: E402
from .emulated import emulated, seed  # noqa: E402, F401

pytestmark = pytest.mark.usefixtures("seed")


@sample.each_setting
def test_sample(settings) -> None:
    for n in (1, 7, 2049):
        sample.test_matches_the_reference_on_odd_widths(settings, n)


def test_sample_of_a_row() -> None:
    sample.test_a_row_alone_is_a_row_among_others_bit_for_bit((0.7, 20, 0.95, 0.0))
    sample.test_rows_without_a_finite_maximum_have_no_id(1.0)
    sample.test_strides_and_alignment_change_no_bit()


@pytest.mark.parametrize("certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize(("rows", "n"), [(1, 3), (5, 40), (3, 2049)])
def test_speculative_sample(rows, n, certain) -> None:
    speculative.test_cycles_in_a_row_match_the_reference(rows, n, certain)


def test_speculative_sample_of_bad_input() -> None:
    speculative.test_a_draft_outside_the_vocabulary_is_refused()
    speculative.test_a_row_without_probabilities_emits_minus_one()


@pytest.mark.parametrize("rows", [1, 2, 8, 32])
def test_speculative_accept(rows) -> None:
    accept.test_cycles_in_a_row_match_the_reference(rows)


@pytest.mark.parametrize("accepted", range(5))
def test_speculative_accept_of_any_number(accepted) -> None:
    accept.test_every_number_of_accepted_drafts(accepted)


@pytest.mark.parametrize("settings", adjust.SETTINGS, ids=lambda s: "-".join(map(str, s)))
@pytest.mark.parametrize(("rows", "n"), [(1, 9), (5, 2049)])
def test_logit_adjust(rows, n, settings) -> None:
    adjust.test_matches_the_reference(settings, n, rows)


def test_logit_adjust_of_a_row_and_in_place() -> None:
    adjust.test_a_row_alone_is_a_row_among_others()
    adjust.test_in_place_and_strided_and_nothing_else_is_written()
    adjust.test_what_is_not_finite_becomes_nan_and_is_not_masked()


@pytest.mark.parametrize("num_ids", [None, 0, 3, 9])
def test_history_append(num_ids) -> None:
    adjust.test_history_append_matches_the_reference(num_ids)


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize(("n", "num_top"), [(1, 1), (255, 0), (2049, 5), (5000, 20)])
def test_logprobs(n, num_top, ties) -> None:
    logprobs.test_matches_the_reference(n, num_top, ties)


def test_logprobs_of_a_row_and_what_is_not_finite() -> None:
    logprobs.test_a_row_alone_is_a_row_among_others_bit_for_bit()
    logprobs.test_rows_without_a_finite_maximum_and_ids_outside()
    logprobs.test_strides_and_alignment_change_no_bit()
