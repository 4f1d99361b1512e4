"""The weight stream on the emulated card: all kinds of records, and blocks that wait for each
other's results while the kernel runs."""

import pytest

torch = pytest.importorskip("torch")

from . import test_weight_stream_gpu as gpu  # noqa: E402
from .emulated import emulated, seed  # noqa: E402, F401

pytestmark = pytest.mark.usefixtures("seed")

sizes_of = pytest.mark.parametrize("sizes", gpu.SIZES[:2], ids=str)
# A kernel each; from five rows on an item meets them in two sets.
rows_of = pytest.mark.parametrize("rows", [1, 3, 4, 5, 8])
schemes = pytest.mark.parametrize("asymmetric", [False, True], ids=["symmetric", "asymmetric"])


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEBOUND_EMULATION_PATIENCE", "2")


@pytest.fixture
def workspace():
    """Its own for each test: a kernel that was given up leaves its sums in it."""
    size = gpu.weight_stream_workspace_bytes(0)
    return torch.full((size,), 255, dtype=torch.uint8)


def small(sizes, rows, asymmetric, workspace, **options):
    options = {"num_layers": 1, "head": 101, **options}
    layers = gpu.decoder("cuda", sizes, asymmetric=asymmetric, **options)
    gpu.assert_as_single_ops(layers, rows, workspace)
    assert (workspace == 255).all(), "a call left something in the workspace"


@rows_of
@schemes
@sizes_of
def test_layers_have_the_bits_of_the_single_ops(sizes, asymmetric, rows, workspace) -> None:
    small(sizes, rows, asymmetric, workspace)


@rows_of
@schemes
def test_rows_that_come_from_many_blocks_while_they_are_read(asymmetric, rows, workspace) -> None:
    """One product after the other, without a norm: nothing else waits for all of a row."""
    layers = gpu.Layers("cuda", asymmetric=asymmetric)
    x = layers.random(8, 384, dtype=torch.float16)
    for n, k in ((640, 384), (384, 640), (640, 384)):
        x = layers.product(n, k, x)
    layers.product(200, 640, x, dtype=torch.float32)
    gpu.assert_as_single_ops(layers, rows, workspace)
    assert (workspace == 255).all(), "a call left something in the workspace"


@pytest.mark.parametrize("accepted", [-1, 0, 1, 4, 9])
def test_any_number_of_accepted_rows(accepted, workspace) -> None:
    small(gpu.SIZES[0], 5, False, workspace, accepted=accepted, num_layers=2)


@pytest.mark.parametrize("longest", [2, 3])
@schemes
def test_products_that_leave_blocks_without_items(asymmetric, longest, workspace) -> None:
    gpu.test_products_that_leave_blocks_without_items(asymmetric, longest, workspace)
    assert (workspace == 255).all(), "a call left something in the workspace"


@schemes
def test_matches_the_reference(asymmetric, workspace, assert_close) -> None:
    gpu.test_one_layer_matches_the_reference(asymmetric, 5, gpu.SIZES[0], workspace, assert_close)


def test_a_replay_by_itself_and_the_clock(workspace) -> None:
    gpu.test_a_replay_by_itself(workspace)
    gpu.test_the_clock_runs_forward(workspace)


def test_a_row(workspace) -> None:
    layers = gpu.decoder("cuda", gpu.SIZES[0], num_layers=1, head=101)
    twins = {rows: gpu.copy.deepcopy(layers) for rows in (1, 2, 3, 5, 8)}
    for rows, twin in twins.items():
        twin.poison()
        gpu.run_stream(twin.ops, rows=rows, workspace=workspace)
    for rows, twin in twins.items():
        for ours, all_rows in zip(twin.results, twins[8].results, strict=True):
            assert gpu.same_bits(ours[:rows], all_rows[:rows]), f"of {rows} rows"


@pytest.mark.parametrize("rows", range(1, 9))
@pytest.mark.parametrize("cache", ["float16", "bfloat16", "float8_e4m3fn"])
def test_attention_has_the_bits_of_its_own_kernels(cache, rows, workspace) -> None:
    """At the borders of leaves, and with nothing cached."""
    for position in (0, 63, 64, 65, 65 - rows, 190):
        gpu.test_attention_has_the_bits_of_its_own_kernels(position, cache, rows, workspace)


@pytest.mark.parametrize("heads", [(8, 1), (5, 5)], ids=str)
def test_any_number_of_heads(heads, workspace) -> None:
    gpu.test_any_number_of_heads(heads, "float16", workspace)


@pytest.mark.parametrize("cache", ["bfloat16", "float8_e4m3fn"])
def test_attention_by_both_teams_of_a_block(cache, workspace) -> None:
    gpu.test_attention_of_rows_from_before_the_launch(cache, workspace)


def test_a_position_out_of_range_changes_nothing(workspace) -> None:
    for position in (-1, 313):
        gpu.test_a_position_out_of_range_changes_nothing(position, workspace)


@pytest.mark.parametrize("rows", [1, 5, 8])
def test_a_whole_pass_is_one_launch(rows, workspace) -> None:
    gpu.test_a_whole_pass_is_one_launch(False, rows, workspace)


def test_a_whole_pass_matches_the_reference(workspace, assert_close) -> None:
    gpu.test_a_whole_pass_matches_the_reference(workspace, assert_close)
