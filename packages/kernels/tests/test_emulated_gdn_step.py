"""The Gated DeltaNet step on the emulated card: clusters of blocks that send each other sums."""

import pytest

torch = pytest.importorskip("torch")

from . import test_gdn_step_gpu as gpu  # noqa: E402
from .emulated import emulated, seed  # noqa: E402, F401

pytestmark = pytest.mark.usefixtures("seed")

dtypes = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["half", "bfloat"])
heads = pytest.mark.parametrize("h_hv", [(1, 1), (1, 3), (2, 8)], ids=str)


@pytest.mark.parametrize("num_rows", [1, 3, 8])
@heads
@dtypes
def test_matches_the_reference(dtype, h_hv, num_rows, assert_close) -> None:
    gpu.test_step_matches_the_reference(dtype, h_hv, num_rows, assert_close)


@heads
@dtypes
def test_a_row(dtype, h_hv) -> None:
    gpu.test_rows_have_the_same_bits_alone_and_in_every_form(dtype, h_hv, 5)


@pytest.mark.parametrize(("num_pending", "num_current"), [(1, 1), (3, 0), (5, 3)])
@heads
def test_replay(h_hv, num_pending, num_current) -> None:
    gpu.test_replay_is_stepping_through_the_accepted_rows(h_hv, num_pending, num_current)


def test_what_is_not_used_and_not_written() -> None:
    gpu.test_pending_rows_that_do_not_count_are_not_used()
    gpu.test_slices_of_wider_tensors_and_nothing_else_is_written(torch.float16)
    gpu.test_no_rows_at_all()
